"""Corpora of token ids: the same ids from every kind of file, or one line."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests import refusing
from tests.data.corpora import asking
from txl_jax.data.corpora import finding, id_files
from txl_jax.data.data_config import Data
from txl_jax.program.errors import UserError

IDS = np.random.RandomState(0).randint(0, 300, 600)
RECORDS = [x.tolist() for x in np.split(IDS, [7, 7, 50, 444])]


def prepare(path, **options):
  data = path.parent / 'data'
  return asking.prepare('text', data, path=path, level='id', **options)


def refused(path, **options):
  said = refusing.refused(prepare, path, **options)
  return said.replace(f'{path.parent}/', '')


def write_arrow(path, table):
  with pa.OSFile(str(path), 'wb') as f, pa.ipc.new_stream(f, table.schema) as w:
    w.write_table(table)


def write(path, ids=IDS, records=RECORDS):
  """Writes ids as the name of the file says."""
  table = lambda: pa.table({'ids': records, 'n': [1] * len(records)})
  if path.suffix == '.npy':
    np.save(path, ids)
  elif path.suffix == '.bin':
    ids.astype(np.uint16).tofile(path)
  elif path.suffix == '.parquet':
    parquet.write_table(table(), path)
  elif path.suffix == '.arrow':
    write_arrow(path, table())
  else:
    path.write_text(''.join(json.dumps({'ids': x}) + '\n' for x in records))
  return path


def field_of(name):
  return {} if name in ('a.npy', 'a.bin') else {'field': 'ids'}


NAMES = 'a.npy', 'a.bin', 'a.jsonl', 'a.parquet', 'a.arrow'


@pytest.mark.parametrize('name', NAMES)
def test_ids_are_those_of_the_file(tmp_path, name):
  found = prepare(write(tmp_path / name), **field_of(name))
  assert len(found.vocabulary) == IDS.max() + 1
  splits = [found.tokens(s) for s in ('train', 'validation', 'test')]
  assert [*map(len, splits)] == [540, 30, 30]
  assert (np.concatenate(splits) == IDS).all()


@pytest.mark.parametrize('name', NAMES[2:])
def test_a_record_is_a_document(tmp_path, name):
  path = write(tmp_path / name)
  found = prepare(path, field='ids', documents='record', vocab_size=400)
  parts = [found.tokens(s) for s in ('train', 'validation', 'test')]
  assert len(found.vocabulary) == 401
  expected = [[400, *x, 400] for x in RECORDS if x]
  for split, wanted in zip(parts, ([0, 1], [2], [3])):
    joined = [400, *(i for k in wanted for i in expected[k][1:])]
    assert split.tolist() == joined


@pytest.mark.parametrize('tracks', [0, 1, 2])
def test_a_folder_of_miditok(tmp_path, tracks):
  """A .json for each piece, with its ids or a list for each track."""
  pieces = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
  (tmp_path / 'pieces').mkdir()
  (tmp_path / 'pieces/tokenizer.json').write_text('{"vocab": {"Pitch": 0}}')
  for i, ids in enumerate(pieces):
    piece = {'programs': [[0, False]], 'ids': [ids] * tracks or ids}
    folder = tmp_path / 'pieces' / ('train' if i < 2 else 'val')
    folder.mkdir(exist_ok=True)
    (folder / f'{i}.json').write_text(json.dumps(piece))
  path = tmp_path / 'pieces'
  found = prepare(path, field='ids', documents='record', vocab_size=20)
  one, two, three = ([*ids, 20] * max(tracks, 1) for ids in pieces)
  assert found.tokens('train').tolist() == [20, *one, *two]
  assert found.tokens('validation').tolist() == [20, *three]
  assert found.files['left out'] == 'tokenizer.json'


def test_a_folder_of_nanogpt(tmp_path):
  text = 'To be,\nor not\n' * 90
  letters = sorted({*text})
  stoi = {c: i for i, c in enumerate(letters)}
  folder = tmp_path / 'shakespeare_char'
  folder.mkdir()
  ids = np.array([stoi[c] for c in text], np.uint16)
  for name, part in (('train', ids[:1000]), ('val', ids[1000:])):
    part.tofile(folder / f'{name}.bin')
  meta = {'vocab_size': len(letters), 'stoi': stoi}
  meta['itos'] = dict(enumerate(letters))
  (folder / 'meta.pkl').write_bytes(pickle.dumps(meta))
  for name in ('prepare.py', 'readme.md', 'input.txt'):
    (folder / name).write_text('x')
  found = prepare(folder)
  assert (found.tokens('train') == ids[:1000]).all()
  assert (found.tokens('validation') == ids[1000:]).all()
  assert found.vocabulary.symbols == tuple(letters)
  assert found.vocabulary.decode(ids) == text.encode()
  assert Data('text', level='auto', path=f'{folder}').level == 'id'
  for path in f'{folder}/input.txt', f'{tmp_path}', 'hf://datasets/a/b', '':
    assert Data('text', level='auto', path=path).level == 'byte'
  left_out = '4 files: input.txt, meta.pkl, prepare.py, readme.md'
  assert found.files['left out'] == left_out
  (folder / 'meta.pkl').write_bytes(pickle.dumps(meta | {'vocab_size': '9'}))
  assert 'meta.pkl: its vocab_size is not an int; allowed: a' in refused(folder)
  (folder / 'meta.pkl').write_bytes(pickle.dumps(meta | {'itos': print}))
  assert 'meta.pkl is refused: it names builtins.print' in refused(folder)
  (folder / 'meta.pkl').write_bytes(pickle.dumps(meta)[:-9])
  assert 'meta.pkl is not a valid pickle' in refused(folder)
  (folder / 'meta.pkl').write_bytes(pickle.dumps([1]))
  assert 'allowed: a list of names, {name: id}' in refused(folder)


@pytest.mark.parametrize('magic, dtype', [(20240520, 'u2'), (20240801, 'u4')])
def test_the_header_of_llm_c(tmp_path, magic, dtype):
  head = struct.pack('<3i', magic, 1, len(IDS)).ljust(1024, b'\0')
  path = tmp_path / 'a.bin'
  path.write_bytes(head + IDS.astype(f'<{dtype}').tobytes())
  assert (prepare(path).tokens('train') == IDS[:540]).all()
  path.write_bytes(path.read_bytes()[:-4])
  assert f'bytes of ids, expected {600 * int(dtype[1])}' in refused(path)
  path.write_bytes(struct.pack('<3i', magic, 1, 1 << 24).ljust(1024, b'\0'))
  assert f' 0 bytes of ids, expected {int(dtype[1]) << 24}' in refused(path)


def test_names_of_a_file(tmp_path):
  path = write(tmp_path / 'a.npy', IDS % 4)
  names = tmp_path / 'names.json'
  for text in ('["A_1","B","C","D"]', '{"vocab": {"D":3,"B":1,"A_1":0,"C":2}}'):
    names.write_text(text)
    found = prepare(path, vocab_file=names)
    names.write_text(json.dumps(found.vocabulary.of_documents().to_json()))
    assert prepare(path, vocab_file=names).digest == found.digest
    assert found.vocabulary.symbols == ('A_1', 'B', 'C', 'D')
  found = prepare(path, vocab_file=names, vocab_size=6)
  assert found.vocabulary.symbols[3:] == ('D', '4', '5')
  line = refused(path, vocab_file=names, vocab_size=3)
  first = (IDS % 4).tolist().index(3)
  assert f'has the id 3 at position {first}; allowed: 0 to 2, ' in line
  odd = '["A","A"]', '[1, 2]', '{"A":-1}', '3', '{"A":1e9}', '["\\ud83d"]', '[]'
  odd += '{"A":3,"B":3}', '["A","","C","D"]'
  for bad in odd:
    names.write_text(bad)
    assert refused(path, vocab_file=names).startswith('data.vocab_file: names')
  names.write_text('{"A":1048576}')
  assert 'its ids are not from 0 to 1048575; ' in refused(
    path, vocab_file=names
  )


@pytest.mark.parametrize(
  'name, ids, found',
  [
    ('a.npy', IDS - 1, f'a.npy has the id -1 at position {IDS.argmin()}; '),
    ('a.npy', IDS * 2.0, 'a.npy is float64 [600]; allowed: integers [n]'),
    ('a.npy', IDS > 3, 'a.npy is bool [600]'),
    ('a.npy', IDS.reshape(2, 300), 'a.npy is int64 [2, 300]'),
    ('a.npy', IDS.astype(object), 'a.npy is object [600]'),
    ('a.npy', IDS << 40, 'allowed: 0 to 1048575'),
    ('a.bin', IDS.view(np.uint16), 'a.bin looks like uint32 read as uint16'),
    ('a.npy', IDS[:2], 'a.npy has 8 bytes, too few ids to make 3'),
  ],
)
def test_arrays_that_are_refused(tmp_path, name, ids, found):
  if name == 'a.bin':
    ids = IDS.astype('<u4').view(np.uint16)
  assert found in refused(write(tmp_path / name, ids))


@pytest.mark.parametrize('version', [1, 2])
@pytest.mark.parametrize(
  'header',
  [
    '(((((',
    "{'descr': '<i8'",
    '"""',
    '\n  x\n y',
    '[' * 5000,
    '{[]: 1}',
    "{'descr': ',', 'fortran_order': False, 'shape': (3,)}",
  ],
)
def test_the_header_of_an_array_is_damaged(version, header):
  size = struct.pack('<H' if version == 1 else '<I', len(header))
  data = b'\x93NUMPY' + bytes([version, 0]) + size + header.encode()
  with pytest.raises(UserError, match=r'^a\.npy is damaged: [^\n]{1,200}$'):
    id_files.array(data + bytes(24), 'a.npy', 'uint16')


@pytest.mark.parametrize(
  'value, shown',
  [
    ([1, -2], None),
    ([1, 2.0], '[1, 2.0]'),
    ([1, True], '[1, true]'),
    ([[1, 2], [3, 4]], '[[1, 2], [3, 4]]'),
    ([[1], [2, 3]], '[[1], [2, 3]]'),
    (['1'], '["1"]'),
    ([1, 1 << 70], f'[1, {1 << 70}]'),
    (None, 'null'),
    ('1 2', '"1 2"'),
  ],
)
def test_records_that_are_refused(tmp_path, value, shown):
  path = write(tmp_path / 'a.jsonl', records=[[1, 2], value])
  expected = f'a.jsonl: line 2 has {shown}; allowed: an object whose field'
  if shown is None:
    expected = 'a.jsonl: line 2 has the id -2 at position 1; allowed: 0 to'
  assert refused(path, field='ids').startswith(expected)


@pytest.mark.parametrize(
  'values, found',
  [
    ([[1.0]], 'row 1 has [1.0]; allowed: an object'),
    ([[True]], 'row 1 has [true]'),
    ([[1], None], 'row 2 has null'),
    ([[[1], [2, 3]]], 'row 1 has [[1], [2, 3]]'),
    (['a'], 'row 1 has "a"'),
    ([[1, 2]] * 100 + [[3, None]], 'row 101 has [3, null]; allowed'),
    ([[1, 500]], 'row 1 has the id 500 at position 1; allowed: 0 to 299'),
  ],
)
def test_tables_that_are_refused(tmp_path, values, found):
  path = tmp_path / 'a.parquet'
  parquet.write_table(pa.table({'ids': values}), path)
  assert found in refused(path, field='ids', vocab_size=300)


@pytest.mark.parametrize('name', NAMES)
def test_files_that_are_cut_short(tmp_path, name):
  path = write(tmp_path / name)
  path.write_bytes(path.read_bytes()[:-5])
  assert refused(path, **field_of(name)).startswith(name)


def test_names_say_what_the_bytes_are(tmp_path):
  """A format that is known is never read as numbers, and ids never as one."""
  f = io.BytesIO()
  np.save(f, IDS)
  array = f.getvalue()
  table = pa.table({'ids': RECORDS})
  parquet.write_table(table, tmp_path / 'x.parquet')
  write_arrow(tmp_path / 'x.arrow', table)
  text = 'Être, ou ne pas être\n'.encode() * 20
  formats = {
    'pickle': pickle.dumps(IDS.tolist()),
    'pickle ': pickle.dumps(IDS, protocol=2),
    'zip archive': b'PK\x03\x04' + array,  # as of torch.save
    'Parquet': (tmp_path / 'x.parquet').read_bytes(),
    'Arrow': (tmp_path / 'x.arrow').read_bytes(),
    'compressed': gzip.compress(array),
    'compressed ': lzma.compress(array),
    'compressed  ': bz2.compress(array),
    'a text': text,
    'a text ': json.dumps(IDS.tolist()).encode(),
  }
  for what, data in formats.items():
    data = data[: len(data) // 8 * 8]
    for name, allowed in ('a.npy', 'a NumPy array'), ('a.bin', 'uint16 numb'):
      (tmp_path / name).write_bytes(data)
      line = refused(tmp_path / name)
      assert line.startswith(f'{name} is ') and what.strip() in line
      assert f'; allowed: {allowed}' in line
  (tmp_path / 'a.npy').write_bytes(b'\x13' + array[1:])
  assert refused(tmp_path / 'a.npy').startswith('a.npy is damaged at its start')
  (tmp_path / 'a.bin').write_bytes(array)
  assert (prepare(tmp_path / 'a.bin').tokens('train') == IDS[:540]).all()
  # Ids that begin as these formats do: GPT-2's 640 is b'\x80\2'.
  for first in 640, 896, 1152, 1408, 35615, 40223, 55551, 65535:
    ids = np.append(first, IDS).astype('<u2')
    assert (id_files.array(ids.tobytes(), 'a.bin', 'uint16') == ids).all()
  assert (id_files.array(text, 'a.bin', 'uint8') == [*text]).all()


def test_other_files_and_fields(tmp_path):
  (tmp_path / 'a.txt').write_text('1 2 3')
  assert 'a.txt has no token ids; allowed: .bin' in refused(tmp_path / 'a.txt')
  path = write(tmp_path / 'a.parquet')
  assert "a.parquet has the columns 'ids', 'n'; allowed" in refused(path)
  table = pa.table([RECORDS, RECORDS], names=['ids', 'ids'])
  parquet.write_table(table, path)
  assert "the columns 'ids', 'ids'; al" in refused(path, field='ids')
  path = write(tmp_path / 'a.npy')
  line = refused(path, documents='line')
  assert line.startswith("data.documents is 'line'; allowed: none, file, since")
  line = refused(path, documents='record')
  assert line.startswith("data.documents is 'record'; allowed: none, file, ")


@pytest.mark.parametrize('level', ['byte', 'word'])
def test_text_of_a_folder_of_save_to_disk(tmp_path, level):
  lines = [f'line {i % 3}' for i in range(40)]
  (tmp_path / 'plain').mkdir()
  for split, n in (('train', 40), ('test', 30)):
    folder = tmp_path / 'saved' / split
    data = 'data-00000-of-00001.arrow'
    folder.mkdir(parents=True)
    table = pa.table({'text': lines[:n]})
    # What `datasets` caches of maps and filters lies beside the data.
    for name in (data, 'cache-0123456789abcdef.arrow', 'data-of-before.arrow'):
      write_arrow(folder / name, table)
    state = {'_data_files': [{'filename': data}], '_fingerprint': 'a'}
    (folder / 'state.json').write_text(json.dumps(state))
    (folder / 'dataset_info.json').write_text('{}')
    text = ''.join(f'{x}\n' for x in lines[:n])
    (tmp_path / 'plain' / f'{split}.txt').write_text(text)
  (tmp_path / 'saved/dataset_dict.json').write_text('{}')
  one, two = (
    asking.prepare('text', tmp_path / 'data', path=tmp_path / x, level=level)
    for x in ('plain', 'saved')
  )
  assert one.digest == two.digest
  left_out = two.manifest['source']['files_of']['left out']
  beside = 'cache-0123456789abcdef.arrow', 'data-of-before.arrow'
  assert {f'test/{x}' for x in beside} < {*left_out}
  assert 'train/state.json' in left_out
  (folder / 'state.json').write_text('{}')  # which lists no files
  saved = Data('text', path=f'{tmp_path}/saved')
  found = finding.find(saved)
  assert [*found.splits['test']] == sorted(f'test/{x}' for x in (*beside, data))
  (folder / 'state.json').write_text('{"_data_files": [1]}')
  assert 'state.json is damaged: ' in refusing.refused(finding.find, saved)
  (folder / 'state.json').write_text(json.dumps(state))
  (folder / 'data-00000-of-00001.arrow').unlink()
  prepare = asking.prepare, 'text', tmp_path / 'data'
  said = refusing.refused(*prepare, path=tmp_path / 'saved')
  assert ' lists ' in said and said.endswith(', which does not exist')


def of_text(largest):
  """Ids of tokens, of which those with small ids are frequent."""
  return largest * np.random.RandomState(1).rand(600) ** 9


def of_dna(letters):
  """Ids that say nothing by their size."""
  return np.random.RandomState(2).randint(0, letters, 2000)


@pytest.mark.parametrize(
  'ids', [of_text(300), of_text(1_000_000), *map(of_dna, (2, 4, 15))]
)
@pytest.mark.parametrize(
  'dtype, read_as, found',
  [
    ('<i8', 'uint16', 'int64'),
    ('<u4', 'uint16', 'uint32'),
    ('<i8', 'uint32', 'int64'),
    ('<i8', 'uint8', 'int64'),
    ('<i4', 'uint8', 'uint32'),
    ('<u2', 'uint8', 'uint16'),
    ('<u2', 'uint16', ''),
    ('<u1', 'uint8', ''),
    ('<u4', 'uint32', ''),
    ('<i8', 'int64', ''),
  ],
)
def test_a_type_that_is_too_narrow(dtype, read_as, found, ids):
  # What a byte shows are ids up to some thousands.
  most = min(np.iinfo(dtype).max, 1000 if read_as == 'uint8' else 1_000_000)
  ids = (ids * min(1, most / ids.max())).astype(dtype)
  args = ids.tobytes(), 'a.bin', read_as
  if found:
    said = refusing.refused(id_files.array, *args)
    assert said.startswith(f'a.bin looks like {found} read as')
  else:
    np.testing.assert_array_equal(id_files.array(*args), ids)


@pytest.mark.parametrize(
  'dtype, found',
  [
    ('<f4', 'float32'),
    ('<f8', 'float64'),
    ('>i4', 'big-endian int32'),
    ('>i8', 'big-endian int64'),
    ('<i4', 'uint32'),
    ('<i8', 'int64'),
  ],
)
@pytest.mark.parametrize('read_as', ['uint8', 'uint16'])
def test_other_numbers_than_a_bin_may_have(dtype, found, read_as):
  ids = IDS - (dtype[0] == '<' and dtype[1] == 'i')  # some -1
  with pytest.raises(UserError, match=f'a.bin looks like {found} read as'):
    id_files.array(ids.astype(dtype).tobytes(), 'a.bin', read_as)


def test_the_position_of_an_id_in_a_later_block(tmp_path, monkeypatch):
  monkeypatch.setattr(id_files, '_BLOCK', 100)
  ids = np.arange(250)
  assert prepare(write(tmp_path / 'a.npy', ids)).tokens('test')[-1] == 249
  ids[239:241] = 0, -1
  said = refused(write(tmp_path / 'a.npy', ids))
  assert said.startswith('a.npy has the id -1 at position 240; allowed: 0 to ')


def test_a_short_text_may_be_numbers():
  text = b'to be or not ' * 5
  assert id_files.array(text[:62], 'a.bin', 'uint16').size == 31
  said = refusing.refused(id_files.array, text[:64], 'a.bin', 'uint16')
  assert said == 'a.bin is a text; allowed: uint16 numbers, or a .npy'


def test_short_files_have_the_type_that_is_said():
  # The last are pitches and durations.
  for ids in [5], [97, 0] * 31, [60, 4, 64, 12, 67, 1] * 100:
    data = np.array(ids, '<u2').tobytes()
    assert id_files.array(data, 'a.bin', 'uint16').tolist() == ids
  args = np.array([97, 0] * 32, '<u2').tobytes(), 'a.bin', 'uint16'
  assert 'looks like uint32' in refusing.refused(id_files.array, *args)


@pytest.mark.parametrize(
  'dtype, ids, found',
  [
    ('uint16', [15, 0] * 40 + [3, 1], ''),
    ('uint16', [16, 0] * 40 + [3, 1], 'uint32'),
    ('uint16', [1, 0] * 15 + [0] * 40, ''),
    ('uint16', [1, 0] * 16 + [0] * 40, 'uint32'),
    ('uint16', [100, 0, 0, 0] * 40 + [3, 0, 1, 0], 'uint32'),
    ('uint8', [100, 0] * 40 + [3, 16], ''),
    ('uint8', [100, 0] * 40 + [3, 15], 'uint16'),
  ],
)
def test_what_just_shows_a_wider_type(dtype, ids, found):
  args = np.array(ids, dtype).tobytes(), 'a.bin', dtype
  if found:
    said = refusing.refused(id_files.array, *args)
    assert said.startswith(f'a.bin looks like {found} read')
  else:
    assert id_files.array(*args).tolist() == ids


def test_a_shape_that_is_not_that_of_the_file():
  buffer = io.BytesIO()
  np.save(buffer, np.arange(5))
  for data in buffer.getvalue() + b'more', buffer.getvalue()[:-8]:
    said = refusing.refused(id_files.array, data, 'a.npy', 'uint16')
    assert said.endswith(' bytes of ids, expected 40')


def test_a_table_whose_end_is_lost(tmp_path):
  path = write(tmp_path / 'a.arrow')
  path.write_bytes(path.read_bytes()[:-300])
  assert refused(path, field='ids').startswith('a.arrow is damaged: ')
