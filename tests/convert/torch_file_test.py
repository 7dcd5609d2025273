"""Files that torch wrote; golden/make_torch.py made them."""

import io
import pathlib
import struct
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests import programs, refusing
from tests.convert import guard, pickling
from txl_jax.convert.formats import torch_file
from txl_jax.program import pickles

GOLDEN = pathlib.Path(__file__).parent / 'golden'
FILES = sorted(GOLDEN.glob('torch_*.pt'))
MODULE = {
  'r_w_bias': (2, 3),
  'word_emb.emb_layers.0.weight': (6, 4),
  'pos_emb.inv_freq': (2,),
  'crit.out_layers.0.weight': (6, 4),
  'crit.out_layers.0.bias': (6,),
  'layers.0.0.weight': (4,),
  'layers.0.0.bias': (4,),
}


def refused(path, **limits):
  return guard.refused(torch_file.read, path, **limits)


@pytest.fixture(scope='module', autouse=True)
def warm():
  """What is imported on first use is no sign of anything."""
  for path in FILES:
    torch_file.load(path)


@pytest.mark.parametrize('form', ['zip', 'old'])
def test_a_state_dict(form):
  with guard.nothing_runs(memory=1 << 20):
    found, options = torch_file.read(GOLDEN / f'torch_{form}.pt')
  expected = dict(np.load(GOLDEN / 'torch.npz'))
  assert [*found] == [*expected] and not options
  for name, x in expected.items():
    np.testing.assert_array_equal(found[name], x)
    assert found[name].dtype == x.dtype, name
  assert np.shares_memory(found['weight'], found['tied'])
  assert np.shares_memory(found['rows'], found['column'])
  assert not found['weight'].flags.writeable


@pytest.mark.parametrize('form', ['module_zip', 'module_old', 'nvidia'])
def test_a_module_by_any_name(form):
  with guard.nothing_runs(memory=1 << 20):
    found, options = torch_file.read(GOLDEN / f'torch_{form}.pt')
  assert [(k, x.shape) for k, x in found.items()] == [*MODULE.items()]
  same = [f'{a}.0.weight' for a in ('crit.out_layers', 'word_emb.emb_layers')]
  assert np.shares_memory(*(found[name] for name in same))
  if form == 'nvidia':
    args = {'dataset': 'wt103', 'n_layer': 1, 'cutoffs': [2, 4]}
    config = {'n_token': 6, 'dtype': 'float16', 'tie_projs': [True]}
    assert options['args'] == args and options['model_config'] == config
    assert options['train_step'] == 7
  else:
    assert options['n_layer'] == 1 and options['cutoffs'] == [2, 4]
    assert options['word_emb.div_val'] == 1
    assert options['layers.0.0.eps'] == 1e-5


def some_tensors():
  x = np.arange(24, dtype=np.float32).reshape(4, 6)
  return {
    'a.weight': x,
    'b.weight': x,
    'turned': x.T,
    'some': x[1:3, ::2],
    'scalar': np.float32(2.5),
    'empty': np.zeros([0, 3], np.float32),
    'name with ü': x[0],
  }


def test_what_is_written_is_read(tmp_path):
  path = tmp_path / 'model.pt'
  torch_file.write(path, some_tensors())
  found, _ = torch_file.read(path)
  assert [*found] == [*some_tensors()]
  for name, x in some_tensors().items():
    np.testing.assert_array_equal(found[name], x)
    assert found[name].shape == np.shape(x)
  assert np.shares_memory(found['a.weight'], found['b.weight'])
  tensor = pickles.fields(torch_file.load(path)[0])['a.weight']
  assert tensor.args[1:5] == (0, (4, 6), (6, 1), False)  # it needs no gradient
  with zipfile.ZipFile(path) as archive:
    assert archive.testzip() is None
    assert len(archive.namelist()) == 3 + len(found) - 1
  assert [p.name for p in tmp_path.iterdir()] == ['model.pt']


def test_attributes_that_are_kept():
  kept = {'a': 1, 'b': [1.5, 'x', None], 'c': (True,) * 1000}
  others = {2: 3, 'd': [object()], 'e': [0] * 1001, 'f': {}}
  assert torch_file._plain(kept | others) == kept


def test_a_large_array_under_three_names(tmp_path, monkeypatch):
  monkeypatch.setattr(zipfile, 'ZIP64_LIMIT', 9)  # as if it had gigabytes
  x = np.arange(10_000, dtype=np.float32)
  torch_file.write(tmp_path / 'x.pt', dict.fromkeys('abc', x))
  found = torch_file.read(tmp_path / 'x.pt').tensors
  assert all(np.array_equal(found[name], x) for name in 'abc')


def test_what_cannot_be_written(tmp_path):
  refusing.refused(
    torch_file.write, tmp_path / 'no/model.pt', {'x': np.ones(2)}
  )
  assert not [*tmp_path.iterdir()]


# Files that are not as they should be


def archive(path, pickle, folder='archive', storage=bytes(16), **options):
  """An archive with a pickle and one storage of four float32."""
  with zipfile.ZipFile(path, 'w', **options) as f:
    f.writestr(f'{folder}/data.pkl', pickle)
    f.writestr(f'{folder}/data/0', storage)
  return path


def whole(n):
  return b'\x8a\x08' + struct.pack('<q', n)


def numbers(values):
  return b'(' + b''.join(map(whole, values)) + b't'


def tensor(shape=(4,), strides=(1,), offset=0, size=4, kind='FloatStorage',
           rebuild='_rebuild_tensor_v2', key='0'):  # fmt: skip
  storage = b'((' + pickling.text('storage') + f'ctorch\n{kind}\n'.encode()
  storage += pickling.text(key) + pickling.text('cpu') + whole(size) + b'tQ'
  args = whole(offset) + numbers(shape) + numbers(strides)
  return f'ctorch._utils\n{rebuild}\n'.encode() + storage + args + b'\x89}tR'


def state(*tensors):
  items = b''.join(pickling.text(f't{i}') + x for i, x in enumerate(tensors))
  return b'\x80\x02}(' + items + b'u.'


def test_a_tensor_written_by_hand(tmp_path):
  path = archive(tmp_path / 'x.pt', state(tensor((2, 2), (1, 2))))
  assert torch_file.read(path).tensors['t0'].shape == (2, 2)


@pytest.mark.parametrize(
  'one, said',
  [
    (tensor((5,)), 'not in its storage'),
    (tensor((2,), (1,), 3), 'not in its storage'),
    (tensor((1 << 62,)), 'not in its storage'),
    (tensor((2, 2), (1 << 62, 1 << 62)), 'not in its storage'),
    (tensor((1 << 40, 1 << 40), (0, 0)), 'is not a file of weights'),
    (tensor((1 << 40,), (0,)), 'more bytes than'),
    (tensor((-4,)), 'not in its storage'),
    (tensor((4,), (-1,), 3), 'not in its storage'),
    (tensor((4,), (1,), -1), 'not in its storage'),
    (tensor((2, 2), (1,)), 'is not a file of weights'),
    (tensor((1,) * 65, (1,) * 65), 'is not a file of weights'),
    (tensor((5,), size=1 << 40), 'not in its storage'),
    (tensor(kind='DoubleStorage'), 'not in its storage'),
    (tensor(kind='ComplexFloatStorage'),
     'it has a ComplexFloatStorage, which is not supported'),
    (tensor(rebuild='_rebuild_sparse_tensor'), '_rebuild_sparse_tensor'),
    (tensor(key='../../etc/passwd'), 'is not a file of weights'),
    (tensor(key='1'), 'is not a file of weights'),
    (b'ctorch.nn.parameter\nParameter\n(' * 9999 + b'K\x01' + b'tR' * 9999,
     'no'),
    (b'K\x01', 'it has no tensors'),
  ],
)  # fmt: skip
def test_tensors_that_cannot_be(tmp_path, one, said):
  path = archive(tmp_path / 'x.pt', state(one))
  assert said in refused(path, memory=8 << 20)


def test_tensors_that_share_their_bytes(tmp_path):
  """Each is a view; all together would be more than the file."""
  many = state(*[tensor()] * 4000)
  path = archive(tmp_path / 'x.pt', many, storage=bytes(16))
  assert torch_file.read(path)
  size = 1 << 20
  large = state(*[tensor((size,), size=size)] * 40)
  path = archive(tmp_path / 'y.pt', large, storage=bytes(4 * size))
  assert 'more bytes than' in refused(path)


def test_modules_within_modules_without_end(tmp_path, monkeypatch):
  """Each is twice in the next one: the first, two to the power of 18 times."""
  monkeypatch.setattr(torch_file, '_FIELDS', 20_000)
  kind = b'cmem_transformer\nMemTransformerLM\n)\x81'
  inside = b'}' + pickling.text('_modules')
  module = kind + inside + b'}sb'
  for n in range(18):
    memo = bytes([n])
    pair = [pickling.text(name) + b'h' + memo for name in 'ab']
    children = b'}(' + b''.join(pair) + b'u'
    module += b'q' + memo + kind + inside + children + b'sb'
  path = archive(tmp_path / 'x.pt', b'\x80\x02' + module + b'.')
  assert 'too many modules' in refused(path, memory=256 << 20)


def test_arguments_that_are_there_many_times(tmp_path):
  """One dict of 20,000 numbers under each of 2,000 names."""
  named = lambda n, of: b''.join(pickling.text(f'{i}') + of for i in range(n))
  many = b'}(' + named(20_000, b'K\x01') + b'u'
  inside = pickling.text('x') + many + b'q\x00' + named(2000, b'h\x00')
  pickle = b'\x80\x02}(' + inside + pickling.text('t') + tensor() + b'u.'
  path = archive(tmp_path / 'x.pt', pickle)
  with guard.nothing_runs(memory=16 << 20):
    assert torch_file.read(path).options == {}


def test_names_of_tensors_that_break_lines(tmp_path):
  pickle = b'\x80\x02}(' + pickling.text('a\nb') + tensor() + b'u.'
  refused(archive(tmp_path / 'x.pt', pickle))


@pytest.mark.parametrize('kind', ['a', 'z'])
def test_what_is_no_storage(kind):
  with pytest.raises(ValueError, match='it has a FloatStorage, which is not'):
    torch_file._storage((kind, 'FloatStorage', '0', 'cpu', 4))


def test_a_pickle_that_runs_code(tmp_path):
  mark = tmp_path / 'mark'
  call = pickling.call('os', 'system', f'touch {mark}')
  assert 'names os.system' in refused(archive(tmp_path / 'x.pt', call))
  old = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.'
  (tmp_path / 'y.pt').write_bytes(old + call)
  assert 'names os.system' in refused(tmp_path / 'y.pt')
  (tmp_path / 'z.pt').write_bytes(call)
  assert 'has an unknown format; allowed: ' in refused(tmp_path / 'z.pt')
  assert not mark.exists()


def test_archives_of_another_kind(tmp_path):
  path, good = tmp_path / 'x.pt', state(tensor())
  archive(path, good, compression=zipfile.ZIP_DEFLATED)
  assert 'compressed' in refused(path)
  bomb = zipfile.ZIP_DEFLATED
  archive(path, good, storage=bytes(1 << 26), compression=bomb)
  assert path.stat().st_size < 1 << 17
  assert 'compressed' in refused(path, memory=1 << 20)
  with zipfile.ZipFile(archive(path, good), 'a') as f:
    f.writestr('other/data.pkl', good)
  assert 'or several' in refused(path)
  path.unlink()
  with zipfile.ZipFile(path, 'w') as f:
    f.writestr('archive/version', '3')
  assert 'it has no member data.pkl' in refused(path)
  path = archive(tmp_path / 'y.pt', good)
  data = bytearray(path.read_bytes())
  at = data.rindex(b'PK\x01\x02')  # of the storage, as if it were 1 GB
  data[at + 20 : at + 28] = struct.pack('<II', 1 << 30, 1 << 30)
  path.write_bytes(data)
  assert 'checksum' in refused(path, memory=1 << 20)


def test_a_directory_with_too_many_members(tmp_path):
  out = io.BytesIO()
  with zipfile.ZipFile(out, 'w') as f:
    f.writestr('archive/data.pkl', state(tensor()))
  data = out.getvalue()
  at = data.rindex(b'PK\x05\x06')
  end = bytearray(data[at:])
  locator = struct.pack('<IIQI', 0x07064B50, 0, at, 1)
  end64 = struct.pack('<IQHHIIQQQQ', 0x06064B50, 44, 45, 45, 0, 0, 1 << 40,
                      1 << 40, 46 << 40, 0)  # fmt: skip
  (tmp_path / 'x.pt').write_bytes(data[:at] + end64 + locator + end)
  refused(tmp_path / 'x.pt', memory=1 << 20)


def test_a_value_of_the_file_that_was_changed(tmp_path):
  path = archive(tmp_path / 'x.pt', state(tensor()), storage=b'\x01' * 16)
  data = path.read_bytes()
  for last in b'\x02\x03\x05\x07':  # checksums above and below
    other = data.replace(b'\x01' * 16, b'\x01' * 15 + bytes([last]))
    path.write_bytes(other)
    assert 'checksum' in refused(path)
  at = other.rindex(b'PK\x01\x02') + 16
  path.write_bytes(other[:at] + bytes(4) + other[at + 4 :])
  assert torch_file.read(path)  # written without checksums


def test_files_that_are_none(tmp_path):
  path = tmp_path / 'x.pt'
  assert 'cannot be read' in refused(path)
  for data in b'PK\x03\x04', torch_file._MAGIC, b'', b'text', b'\xff' * 20:
    path.write_bytes(data)
    known = data[:2] in (b'PK', b'\x80\x02')
    assert ('has an unknown format' in refused(path)) != known
  path.unlink()
  programs.make_pipe(path)
  assert 'cannot be read' in refused(path)
  assert 'cannot be read' in refused(tmp_path)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_a_file_that_was_cut(path, tmp_path):
  data, cut = path.read_bytes(), tmp_path / path.name
  for size in range(0, len(data) - 1, 97):
    cut.write_bytes(data[:size])
    refused(cut, memory=4 << 20)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
@hypothesis.given(st.data())
@guard.EXAMPLES
def test_damage(path, tmp_path_factory, data):
  """It is refused in a line, or what is read has the size of the file."""
  damaged = tmp_path_factory.mktemp('damaged') / path.name
  damaged.write_bytes(guard.damaged(data, path.read_bytes()))
  size = damaged.stat().st_size
  found = guard.read_or_refuse(torch_file.read, damaged, memory=8 << 20)
  if found:
    assert sum(x.nbytes for x in found.tensors.values()) <= 4 * size
