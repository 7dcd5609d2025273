"""Documents of a text: its files, its records, or the parts between separators.

The end of a file also ends a document. Empty documents are skipped.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

from txl_jax.data.corpora.local import Part, Split
from txl_jax.data.options import Data
from txl_jax.program.errors import UserError


@dataclasses.dataclass(frozen=True)
class _Piece:
  """A piece of a document."""

  text: bytes
  ends: bool  # whether the document ends with it
  size: int  # its bytes in the file, with a separator


def each(
  asked: Data,
  split: Split,
  shown: Callable[[Iterable[bytes]], Iterable[bytes]] = iter,
) -> Iterator[Iterator[bytes]]:
  """The documents of a split, each in pieces that must be read in order.

  `shown` is given the text of each part, and returns it.
  """
  parts = (_pieces(asked, shown(part())) for part in split.parts)
  pieces = itertools.chain.from_iterable(parts)

  def to_its_end(piece):
    yield piece.text
    while not piece.ends:
      piece = next(pieces)
      yield piece.text

  for piece in pieces:
    if piece.text:
      yield to_its_end(piece)


def places(asked: Data, files: Iterable[Part], wanted: list[int]) -> list[int]:
  """Ends of documents at which the joined files are cut.

  Each is the first at or after the wanted offset that leaves no part without a
  document. UserError: there are too few documents.
  """
  ends, at, begun = [0], 0, False
  for part in files:
    pieces = _pieces(asked, part())
    if asked.documents == 'file':  # which need not be read
      pieces = [_Piece(b'-', True, part.size)] if part.size else []
    for piece in pieces:
      at, begun = at + piece.size, begun or bool(piece.text)
      if piece.ends and begun:
        ends.append(at)
      elif piece.ends:  # a separator after nothing belongs to the one before
        ends[-1] = at
      begun = begun and not piece.ends
  if (count := len(ends) - 1) <= len(wanted):
    raise UserError(
      f'data.path: {asked.path} has {count} document{"s" * (count != 1)}, too '
      f'few to cut it into {len(wanted) + 1} splits; allowed: more, or texts '
      'for data.validation_path and data.test_path'
    )
  found, last = [], 0
  for i, offset in enumerate(wanted):
    first = bisect.bisect_left(ends, offset)
    last = min(max(first, last + 1), count - len(wanted) + i)
    found.append(ends[last])
  return found


def _pieces(asked: Data, chunks: Iterable[bytes]) -> Iterator[_Piece]:
  """The pieces of a part of a file; the last one ends a document."""
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
  """A text in pieces; those before a separator end a document."""
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
