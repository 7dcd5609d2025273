"""What preparation shows of its progress."""

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator

import tqdm

_shown: contextvars.ContextVar[Callable[[str, int], None] | None]
_shown = contextvars.ContextVar('shown', default=None)


@contextlib.contextmanager
def shown(report: Callable[[str, int], None] | None) -> Iterator[None]:
  """Reports progress to a function of what is read and how many bytes."""
  before = _shown.set(report)
  try:
    yield
  finally:
    _shown.reset(before)


def progress(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
  """The chunks, with a progress bar if stderr is a terminal."""
  report, done = _shown.get(), 0
  with tqdm.tqdm(
    desc=what, unit='B', unit_scale=True, disable=bool(report) or None,
    leave=False,
  ) as bar:  # fmt: skip
    for chunk in chunks:
      bar.update(len(chunk))
      done += len(chunk)
      if report:
        report(what, done)
      yield chunk
