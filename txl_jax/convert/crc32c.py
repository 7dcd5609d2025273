"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, with numpy alone.

A checksum is the remainder of the message, a polynomial over the field of two
elements, divided by P. With y = x^32, the degree by which a word of four bytes
counts,

  y^6777 + y^484 + y^100 + 1 = 0  modulo P,

which a search over sums of three powers finds. So a word may be replaced by
itself, added (exclusive or) to the words 6293, 6677 and 6777 places further
on. That is done to a whole stretch of words at once, until the last 6777 are
left. Their bits are then summed by what each counts.
"""

import functools

import numpy as np

_P = 0x82F63B78  # reflected: the highest bit is the constant term
_PLACES = 6293, 6677, 6777  # words further on
_LEFT = _PLACES[-1]
_PART = 1 << 18  # words that are copied at a time


def crc32c(data: np.ndarray | bytes | memoryview) -> int:
  """The checksum of bytes, or of a contiguous array's bytes in memory."""
  message = np.frombuffer(data, np.uint8)
  n = message.size
  before = -n % 4  # zeros in front, to fill a word, have no effect
  work = np.zeros(_LEFT + min(_PART, (before + n + 4) // 4), '<u4')
  fresh = work[_LEFT:].view(np.uint8)
  for start in range(-before, n + 4, 4 * _PART):
    stop = min(start + 4 * _PART, n + 4)  # four zeros at the end do
    inside = slice(max(start, 0), max(min(stop, n), start, 0))
    fresh[:] = 0
    fresh[inside.start - start : inside.stop - start] = message[inside]
    if start <= 0:
      fresh[before : before + 4] ^= 0xFF
    _fold(work, (stop - start) // 4)
  words = min((before + n + 4) // 4, _LEFT)  # those before are zero
  left = work[_LEFT - words : _LEFT].view(np.uint8)
  bits = np.unpackbits(left, bitorder='little').view(bool)
  return int(np.bitwise_xor.reduce(_powers()[-bits.size :][bits])) ^ 0xFFFFFFFF


def masked(data: np.ndarray | bytes | memoryview) -> int:
  """The checksum as TensorFlow and LevelDB store it: rotated, plus a number."""
  crc = crc32c(data)
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _fold(work, words):
  """Adds the first words to later ones and moves what is left to the front."""
  for i in range(0, words, _PLACES[0]):
    some = work[i : min(i + _PLACES[0], words)]
    for place in _PLACES:
      work[i + place :][: len(some)] ^= some
  work[:_LEFT] = work[words : words + _LEFT].copy()


@functools.cache
def _powers():
  """x^d modulo P, uint32 [32 * 6777], highest d first."""
  found, power = [], 1 << 31
  for _ in range(32 * _LEFT):
    found.append(power)
    power = power >> 1 ^ (_P if power & 1 else 0)
  return np.array(found[::-1], np.uint32)
