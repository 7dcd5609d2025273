"""Documents of a text: its files, or its records. Empty ones are skipped."""

import bisect
import itertools
from collections.abc import Iterator

from txl_jax.data.corpora.local import Part, Split
from txl_jax.data.options import Data


def each(asked: Data, split: Split) -> Iterator[Iterator[bytes]]:
  """The documents of a split, each in pieces."""
  for part in split.parts:
    if asked.documents == 'record':
      # A chunk is a record, see `local.records`.
      yield from (iter([record]) for record in part() if record)
    elif part.size:
      yield part()


def places(asked: Data, parts: list[Part], wanted: list[int]) -> list[int]:
  """Ends of documents at which the joined files are cut.

  Each is the first at or after the wanted offset that leaves no part without a
  document; with too few documents, some parts are empty.
  """
  if asked.documents == 'record':
    sizes = [len(record) for part in parts for record in part() if record]
  else:
    sizes = [part.size for part in parts if part.size]
  ends, last, found = [0, *itertools.accumulate(sizes)], 0, []
  for i, offset in enumerate(wanted):
    latest = max(len(sizes) - len(wanted) + i, 0)
    last = min(max(bisect.bisect_left(ends, offset), last + 1), latest)
    found.append(ends[last])
  return found
