"""Documents of a text: its files, its records, or what a separator is between.

The end of a file ends a document too. One without bytes is none.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

from txl_jax.corpora.local import Part, Split
from txl_jax.data.options import Data


@dataclasses.dataclass(frozen=True)
class _Piece:
  """A piece of a document."""

  text: bytes
  ends: bool  # whether the document ends with it
  size: int  # of what it is in the file, with a separator


def each(
  asked: Data,
  split: Split,
  shown: Callable[[Iterable[bytes]], Iterable[bytes]] = iter,
) -> Iterator[Iterator[bytes]]:
  """The documents of a split, each in pieces that are read in this order.

  `shown` is given the text of each part, and gives it back.
  """
  parts = (_pieces(asked, part, shown(part())) for part in split.parts)
  pieces = itertools.chain.from_iterable(parts)
  for piece in pieces:
    if piece.text:
      yield _to_its_end(piece, pieces)


def _to_its_end(piece, pieces):
  yield piece.text
  while not piece.ends:
    piece = next(pieces)
    yield piece.text


def places(asked: Data, files: Iterable[Part], wanted: list[int]) -> list[int]:
  """The first end of a document at or after each offset of the joined files."""
  ends, at = [], 0
  if asked.documents == 'file':
    ends = [*itertools.accumulate(part.size for part in files)]
  else:
    for part in files:
      for piece in _pieces(asked, part, part()):
        at += piece.size
        if piece.ends:
          ends.append(at)
  return [next(end for end in ends if end >= offset) for offset in wanted]


def _pieces(asked: Data, part, chunks) -> Iterator[_Piece]:
  """Those of a part of a file; the last one ends a document."""
  if asked.documents == 'record':
    # A chunk is a record, see `formats`.
    yield from (_Piece(record, True, len(record)) for record in chunks)
    return
  if asked.documents == 'separator':
    yield from _separated(chunks, asked.separator.encode())
  else:
    yield from (_Piece(chunk, False, len(chunk)) for chunk in chunks)
  yield _Piece(b'', True, 0)


def _separated(chunks, separator):
  """A text in pieces, of which those before a separator end a document."""
  rest, kept = b'', len(separator) - 1
  for chunk in chunks:
    *whole, rest = (rest + chunk).split(separator)
    for text in whole:
      yield _Piece(text, True, len(text) + len(separator))
    # What may be the beginning of a separator waits for what follows.
    sure = max(len(rest) - kept, 0)
    yield _Piece(rest[:sure], False, sure)
    rest = rest[sure:]
  yield _Piece(rest, False, len(rest))
