"""Checkpoints that TensorFlow wrote; golden/make_tensorflow.py made them."""

import pathlib
import shutil
import struct

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.convert import bundle, guard
from txl_jax.convert.formats import tensorflow_file

GOLDEN = pathlib.Path(__file__).parent / 'golden'
FOUR = np.arange(4, dtype='<f4').tobytes()
GOOD = bundle.entry((4,), data=FOUR)


def refused(path, **limits):
  return guard.refused(tensorflow_file.read, path, **limits)


@pytest.fixture(scope='module', autouse=True)
def warm():
  """What is made on first use is no sign of anything."""
  tensorflow_file.read(GOLDEN / 'tf_plain.ckpt-0')


def copy(folder, name='tf_plain'):
  for path in GOLDEN.glob(f'{name}.ckpt-0.*'):
    shutil.copy(path, folder)
  return folder / f'{name}.ckpt-0'


def test_variables_without_those_of_training():
  found = tensorflow_file.read(GOLDEN / 'tf_plain.ckpt-0')
  index = (GOLDEN / 'tf_plain.ckpt-0.index').read_bytes()
  for name in b'Adam', b'beta1_power', b'global_step':
    assert name in index
  assert len(found) == 26
  assert found['transformer/r_w_bias'].shape == (2, 3)
  assert found['transformer/layer_1/rel_attn/qkv/kernel'].shape == (8, 18)
  assert all(x.dtype == np.float32 for x in found.values())
  # The script draws them in its own order, r_w_bias first.
  drawn = np.random.default_rng(0).normal(0, 0.4, [2, 3]).astype(np.float32)
  np.testing.assert_array_equal(found['transformer/r_w_bias'], drawn)


def test_a_checkpoint_by_any_of_its_names(tmp_path):
  prefix = copy(tmp_path)
  whole = tensorflow_file.read(prefix)
  for end in '.index', '.data-00000-of-00001':
    found = tensorflow_file.read(f'{prefix}{end}')
    assert [*found] == [*whole]
    for name, x in whole.items():
      np.testing.assert_array_equal(found[name], x)


def test_types_and_shards(tmp_path):
  items, data = {}, [b'', b'']
  values = {
    1: np.float32([[1, 2], [3, 4]]), 2: np.full((1,) * 8, 1.5), 3: np.int32(7),
    4: np.uint8([255]), 5: np.int16([-300]), 6: np.int8([-3]), 9: np.arange(3),
    10: np.array([True, False]), 17: np.uint16([60_000]), 22: np.uint32([9]),
    23: np.uint64([1 << 63]), 19: np.float16([1, -2]),
    14: np.uint16([0x3FC0, 0xC010]),  # 1.5 and -2.25 of bfloat16
  }  # fmt: skip
  for i, (dtype, x) in enumerate(values.items()):
    place = i % 2, len(data[i % 2])
    made = x.tobytes()
    items[f'v{dtype}'] = bundle.entry(x.shape, dtype, *place, data=made)
    data[i % 2] += made
  # TensorFlow leaves out the size 0.
  nothing = bundle.field(2, bundle.field(2, b''))
  items['empty'] = bundle.entry((), more=nothing)
  prefix = bundle.write(tmp_path, items, data[0], shards=2)
  second = tmp_path / 'model.ckpt-0.data-00001-of-00002'
  second.write_bytes(data[1])
  found = tensorflow_file.read(prefix)
  values[14] = np.float32([1.5, -2.25])
  assert found['empty'].shape == (0,)
  for dtype, x in values.items():
    np.testing.assert_array_equal(found[f'v{dtype}'], x)
    assert found[f'v{dtype}'].dtype == x.dtype
  second.unlink()
  assert second.name in refused(prefix)


@pytest.mark.parametrize(
  'items, said',
  [
    ({'a': bundle.entry((5,), data=FOUR)}, 'has 16 bytes for the shape [5]'),
    ({'a': bundle.entry((3,), data=FOUR)}, 'has 16 bytes for the shape [3]'),
    ({'a': bundle.entry((-4,), data=FOUR)}, 'has 16 bytes for the shape'),
    ({'a': bundle.entry((1 << 62,), data=FOUR)}, 'for the shape'),
    ({'a': bundle.entry((1 << 40, 1 << 40), data=FOUR)}, 'for the shape'),
    ({'a': bundle.entry((1,) * 8 + (4,), data=FOUR)}, 'for the shape'),
    ({'a': bundle.entry((1 << 40,), size=4 << 40)}, 'more bytes than the data'),
    ({'a': bundle.entry((4,), offset=4, data=FOUR)}, 'too short'),
    ({'a': bundle.entry((4,), offset=1 << 62, data=FOUR)}, 'too short'),
    ({'a': bundle.entry((4,), data=FOUR[::-1])}, 'checksum'),
    ({'a': bundle.entry((4,), shard=1, data=FOUR)}, 'in file 1 of 1'),
    ({'a': bundle.entry((4,), shard=2, data=FOUR)}, 'in file 2 of 1'),
    ({'a': bundle.entry((4,), dtype=7, data=FOUR)}, 'has dtype 7'),
    ({'a': bundle.entry((4,), dtype=8, data=FOUR)}, 'has dtype 8'),
    ({'a': bundle.entry((4,), data=FOUR, more=bundle.field(7, b''))},
     "'a' is partitioned"),
    ({'a': GOOD, 'b': GOOD}, 'more bytes than the data'),
    ({'a\nb': GOOD}, 'is not a valid name'),
    ({'a': b'\xff' * 10 + b'\x01'}, 'too many bytes'),
    ({'a': b'\x12\x7f'}, 'truncated'),
    ({'a': b'\x0b\x01'}, 'field of type 3'),
  ],
)  # fmt: skip
def test_variables_that_cannot_be(tmp_path, items, said):
  prefix = bundle.write(tmp_path, items, FOUR)
  assert said in refused(prefix, memory=1 << 20)


def entry_of(shared, key, length, value=b''):
  """An entry of a block: the characters shared with the last key, the rest."""
  sizes = shared, len(key), length
  return b''.join(map(bundle.varint, sizes)) + key + value


DAMAGED = (
  entry_of(1, b'', 0),
  entry_of(0, b'a', 1),
  entry_of(0, b'a' * 1001, 0),
  entry_of(0, b'a' * 600, 0) + entry_of(600, b'a' * 401, 0),
)


def test_the_longest_name(tmp_path):
  head = entry_of(0, b'', len(bundle.header()), bundle.header())
  body = head + entry_of(0, b'a' * 600, len(GOOD), GOOD)
  body += entry_of(600, b'a' * 400, len(GOOD), GOOD)
  prefix = index_of(tmp_path, bundle.table(bundle.sealed(body)))
  (tmp_path / 'model.ckpt-0.data-00000-of-00001').write_bytes(FOUR * 2)
  assert [*tensorflow_file.read(prefix)] == ['a' * 600, 'a' * 1000]


def index_of(folder, data):
  (folder / 'model.ckpt-0.index').write_bytes(data)
  return folder / 'model.ckpt-0'


def test_tables_that_cannot_be(tmp_path):
  head = b'', bundle.header()
  good = bundle.block([head, (b'a', GOOD)])
  far = bundle.varint(1 << 63) * 4 + struct.pack('<Q', bundle.MAGIC)
  for table, said in [
    (bytes(47), 'too short'),
    (bytes(48), 'is not that of a LevelDB table'),
    (bundle.table(bundle.block([head], kind=1)), 'is compressed'),
    (bundle.table(bundle.block([head], kind=7)), 'is compressed'),
    (bundle.table(bundle.block([(b'a', GOOD)])), 'file 0 of 0'),
    (bundle.table(good).replace(b'\x08\x01', b'\x08\x02', 1), 'checksum'),
    (bundle.table(good, footer=far), 'truncated'),
    *((bundle.table(bundle.sealed(x)), 'a block is damaged') for x in DAMAGED),
  ]:
    assert said in refused(index_of(tmp_path, table), memory=1 << 20)


def test_an_empty_block_any_number_of_times(tmp_path):
  """Its checksum would be computed each time."""
  empty = struct.pack('<I', 0) * (1 << 20) + struct.pack('<I', 1 << 20) + b'\0'
  empty += struct.pack('<I', bundle.masked(empty))
  handle = bundle.varint(0) + bundle.varint(len(empty) - 5)
  index = bundle.block([(b'%06d' % i, handle) for i in range(10_000)])
  end = bundle.varint(0) * 2 + bundle.varint(len(empty))
  end += bundle.varint(len(index) - 5)
  data = empty + index + end.ljust(40, b'\0')
  path = index_of(tmp_path, data + struct.pack('<Q', bundle.MAGIC))
  assert 'larger than the file' in refused(path, seconds=2, memory=64 << 20)


def test_files_that_are_none(tmp_path):
  prefix = tmp_path / 'model.ckpt-0'
  assert 'cannot be read' in refused(prefix)
  assert 'cannot be read' in refused(tmp_path)
  prefix.with_name('model.ckpt-0.index').mkdir()
  assert 'cannot be read' in refused(f'{prefix}.index')


def test_files_that_were_cut(tmp_path):
  prefix = copy(tmp_path, 'tf_div4')
  for name in 'index', 'data-00000-of-00001':
    path = pathlib.Path(f'{prefix}.{name}')
    data = path.read_bytes()
    for size in range(0, len(data), 183):
      path.write_bytes(data[:size])
      refused(prefix, memory=4 << 20)
    path.write_bytes(data)
  tensorflow_file.read(prefix)


@hypothesis.given(st.data())
@guard.EXAMPLES
def test_damage(tmp_path_factory, data):
  """Checksums cover nearly all: it is refused, or read as it was."""
  folder = tmp_path_factory.mktemp('damaged')
  prefix = copy(folder, 'tf_div4')
  whole = tensorflow_file.read(GOLDEN / prefix.name)
  path = data.draw(st.sampled_from(sorted(folder.iterdir())))
  path.write_bytes(guard.damaged(data, path.read_bytes()))
  read = tensorflow_file.read
  if found := guard.read_or_refuse(read, prefix, memory=4 << 20):
    assert [*found] == [*whole]
    for name, x in whole.items():
      np.testing.assert_array_equal(found[name], x)


@hypothesis.given(st.data())
@guard.EXAMPLES
def test_entries_of_any_numbers(tmp_path_factory, data):
  """With the right checksums, as who means harm would write them."""
  sizes = st.integers(0, 20) | st.sampled_from([-1, 1 << 31, 1 << 40, 1 << 62])
  items = {}
  for name in 'abc':
    items[name] = bundle.entry(
      data.draw(st.lists(sizes, max_size=3)),
      data.draw(st.integers(0, 30)),
      data.draw(st.integers(0, 2)),
      data.draw(sizes),
      data.draw(st.none() | sizes),
      FOUR,
      data.draw(st.binary(max_size=4)),
    )
  prefix = bundle.write(tmp_path_factory.mktemp('x'), items, FOUR * 4)
  read = tensorflow_file.read
  if found := guard.read_or_refuse(read, prefix, memory=1 << 20):
    assert sum(x.nbytes for x in found.values()) <= 16 * 4
