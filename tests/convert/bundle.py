"""Indexes of checkpoints, written entry by entry; also those that cannot be."""

import struct

from txl_jax.convert.formats.tensorflow_file import masked

MAGIC = 0xDB4775248B80FB57


def varint(n):
  n &= (1 << 64) - 1
  out = b''
  while n >= 0x80:
    out += bytes([n & 0x7F | 0x80])
    n >>= 7
  return out + bytes([n])


def field(number, value):
  """A field of a message: a whole number, or bytes."""
  if isinstance(value, bytes):
    return varint(number << 3 | 2) + varint(len(value)) + value
  return varint(number << 3) + varint(value)


def header(shards=1, endianness=0):
  return field(1, shards) + field(2, endianness) + field(3, field(1, 1))


def entry(shape=(), dtype=1, shard=0, offset=0, size=None, data=b'', more=b''):
  """An entry; its checksum is that of the data."""
  dims = b''.join(field(2, field(1, n)) for n in shape)
  size = len(data) if size is None else size
  crc = varint(6 << 3 | 5) + struct.pack('<I', masked(data))
  numbers = field(3, shard) + field(4, offset) + field(5, size)
  return field(1, dtype) + field(2, dims) + numbers + crc + more


def block(items, kind=0):
  """A block of (key, value), each key whole, with its checksum."""
  body = b''
  for key, value in items:
    body += varint(0) + varint(len(key)) + varint(len(value)) + key + value
  return sealed(body, kind)


def sealed(body, kind=0):
  """A block of these entries."""
  body += struct.pack('<II', 0, 1) + bytes([kind])
  return body + struct.pack('<I', masked(body))


def table(*blocks, footer=None):
  """A table of data blocks, each as `block` makes it."""
  out, handles = b'', []
  for i, one in enumerate(blocks):
    handle = varint(len(out)) + varint(len(one) - 5)
    handles.append((b'\xff' * (i + 1), handle))
    out += one
  meta = varint(len(out)) + varint(len(block([])) - 5)
  out += block([])
  index = block(handles)
  handle = varint(len(out)) + varint(len(index) - 5)
  out += index
  end = (meta + handle).ljust(40, b'\0') + struct.pack('<Q', MAGIC)
  return out + (footer or end)


def write(folder, items, data=b'', shards=1, **options):
  """A checkpoint of {name: entry}; its prefix."""
  named = [(k.encode(), v) for k, v in sorted(items.items())]
  index = table(block([(b'', header(shards, **options)), *named]))
  (folder / 'model.ckpt-0.index').write_bytes(index)
  name = f'model.ckpt-0.data-00000-of-{shards:05}'
  (folder / name).write_bytes(data)
  return folder / 'model.ckpt-0'
