"""Words of large texts: counted and encoded block by block, in order.

Results are taken in the order of the blocks, so nothing depends on the number
of processes. Memory holds a few blocks for each, however large the text.
"""

import collections
import contextlib
import contextvars
import functools
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import tqdm

from txl_jax.data.vocabularies.words import split
from txl_jax.program.errors import UserError

_BLOCK = 1 << 23  # bytes
_MOST = 4  # processes, unless the caller says how many
_work: Callable[[bytes], Any]  # of a worker process


def processes_by_default() -> int:
  """As many as there are CPUs, but no more than four."""
  if hasattr(os, 'sched_getaffinity'):
    return min(len(os.sched_getaffinity(0)), _MOST)
  return min(os.cpu_count() or 1, _MOST)


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
  if report := _shown.get():
    done = 0
    for chunk in chunks:
      done += len(chunk)
      report(what, done)
      yield chunk
    return
  with tqdm.tqdm(
    desc=what, unit='B', unit_scale=True, disable=None, leave=False
  ) as bar:
    for chunk in chunks:
      bar.update(len(chunk))
      yield chunk


def blocks(chunks: Iterable[bytes], size: int = _BLOCK) -> Iterator[bytes]:
  """A text in blocks of about `size` bytes, of whole lines or else words."""
  pieces, n = [], 0
  for chunk in chunks:
    pieces.append(chunk)
    n += len(chunk)
    if n < size:
      continue
    text = b''.join(pieces)
    if cut := text.rfind(b'\n') + 1 or text.rfind(b' ') + 1:
      yield text[:cut]
    pieces, n = [text[cut:]], len(text) - cut
  if text := b''.join(pieces):
    yield text


def count(
  chunks: Iterable[bytes], eos: str, lower: bool, processes: int
) -> dict[str, int]:
  """Occurrences of the words of a text, in the order of first appearance.

  Words are as `data.words.split` gives them.
  """
  total = collections.Counter()
  work = functools.partial(_count, eos, lower)
  for counts in in_order(work, blocks(chunks), processes):
    total.update(counts)
  return total


def _count(eos, lower, block):
  return collections.Counter(split(block, eos, lower))


def in_order(
  work: Callable[[bytes], Any], tasks: Iterable[bytes], processes: int
) -> Iterator[Any]:
  """work(task) for each, in order."""
  tasks = iter(tasks)
  first = [*itertools.islice(tasks, 2)]
  tasks = itertools.chain(first, tasks)
  if processes == 1 or len(first) < 2:  # a single task needs no process
    yield from map(work, tasks)
    return
  context = multiprocessing.get_context('spawn')  # the parent may have threads
  waiting = collections.deque()
  try:
    with ProcessPoolExecutor(processes, context, _begin, (work,)) as pool:
      for task in tasks:
        # Executor.map would read all of the text at once.
        waiting.append(pool.submit(_call, task))
        if len(waiting) > processes:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
  except BrokenProcessPool as e:
    raise UserError(
      'a process that reads the text has died, perhaps for lack of memory; '
      'fewer of them need less: --processes=1'
    ) from e


def _begin(work):
  """Prepares a worker process, which ends with its parent; Ctrl-C is for it."""
  global _work
  _work = work
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)


def _call(task):
  return _work(task)
