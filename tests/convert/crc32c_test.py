import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from txl_jax.convert import crc32c


def slow(data):
  """One bit after the other."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
  'data, expected',
  [  # of RFC 3720, appendix B.4, and the usual check value
    (bytes(32), 0x8A9136AA),
    (b'\xff' * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(32))[::-1], 0x113FDB5C),
    (b'123456789', 0xE3069283),
    (b'', 0),
  ],
)
def test_published_values(data, expected):
  assert crc32c.crc32c(data) == expected


@hypothesis.given(st.integers(0, 70_000), st.sampled_from([7, 6777, 1 << 18]))
@hypothesis.settings(deadline=None, max_examples=30, database=None)
def test_any_length_in_any_parts(n, part):
  data = np.random.default_rng(n).bytes(n)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(crc32c, '_PART', part)
    assert crc32c.crc32c(data) == slow(data)


def test_arrays_of_any_kind():
  x = np.arange(10_001, dtype=np.float32)
  assert crc32c.crc32c(x) == slow(x.tobytes())
  assert crc32c.crc32c(memoryview(x.tobytes())[3:]) == slow(x.tobytes()[3:])


def test_every_bit_counts():
  data = bytearray(np.random.default_rng(0).bytes(60_000))
  whole = crc32c.crc32c(data)
  for at in range(0, len(data), 1999):
    data[at] ^= 1 << at % 8
    assert crc32c.crc32c(data) != whole
    data[at] ^= 1 << at % 8


def test_the_mask_of_leveldb():
  """That of the empty message, and of a rotation that carries over."""
  assert crc32c.masked(b'') == 0xA282EAD8
  crc = crc32c.crc32c(b'123456789')
  rotated = (crc >> 15 | crc << 17) % 2**32
  assert crc32c.masked(b'123456789') == (rotated + 0xA282EAD8) % 2**32
