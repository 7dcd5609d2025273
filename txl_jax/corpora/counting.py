"""Words of large texts: counted and encoded block by block, in order.

Results are taken in the order of the blocks, so nothing depends on the number
of processes. Memory holds a few blocks for each, however large the text. Each
word is looked up only once, as that is what takes time: `Numbers` numbers it
while counting; once the vocabulary is known, a table maps numbers to token ids.
"""

import collections
import contextlib
import contextvars
import functools
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import tqdm

from txl_jax.data.words import split
from txl_jax.errors import UserError

_BLOCK = 1 << 23  # bytes
_MOST = 4  # processes, unless the caller says how many


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


class Numbers:
  """Numbers for the words of texts, in the order of first appearance."""

  def __init__(self, eos: str, lower: bool):  # as in `Words`
    self._options = eos, lower
    self.words = _Growing()  # {word: number}
    self._counts = np.zeros([0], np.int64)

  def read(
    self, chunks: Iterable[bytes], counted: bool, processes: int
  ) -> Iterator[np.ndarray]:
    """The numbers of the words of a text, int32 [n], block by block."""
    # For each process, a table from its numbers to ours.
    tables = collections.defaultdict(lambda: np.zeros([0], np.int32))
    work = functools.partial(_number, _Growing(), *self._options)
    for process, new, numbers in in_order(work, blocks(chunks), processes):
      # A word new to all processes is new to the one that has read it, so
      # words are numbered in the order of the text.
      table = np.append(tables[process], self.words.of(new))
      tables[process] = table
      self._counts.resize(len(self.words), refcheck=False)  # new ones are 0
      if counted:
        self._counts[table] += np.bincount(numbers, minlength=len(table))
      yield table[numbers]

  def counts(self) -> dict[str, int]:
    """Occurrences of the words that were counted, in the same order."""
    return {w: n for w, n in zip(self.words, self._counts.tolist()) if n}


class _Growing(dict):
  """Numbers of words; a new word gets the next number when looked up."""

  def __missing__(self, word):
    self[word] = number = len(self)
    return number

  def of(self, words):
    return np.fromiter(map(self.__getitem__, words), np.int32, len(words))


def _number(numbers, eos, lower, block):
  """The process, the words new to it, and int32 [n], all by its numbers."""
  known = len(numbers)
  found = numbers.of(split(block, eos, lower))
  return os.getpid(), list(itertools.islice(numbers, known, None)), found


def in_order(
  work: Callable[[bytes], Any], tasks: Iterable[bytes], processes: int
) -> Iterator[Any]:
  """work(task) for each, in order; every process keeps its own copy of work."""
  tasks = iter(tasks)
  first = list(itertools.islice(tasks, 2))
  tasks = itertools.chain(first, tasks)
  if processes == 1 or len(first) < 2:  # a single task needs no process
    yield from map(work, tasks)
    return
  busy = collections.deque()
  try:
    with contextlib.ExitStack() as stack:
      for task in tasks:
        if len(busy) < processes:
          worker, results = stack.enter_context(_worker(work)), ()
        else:
          worker = busy.popleft()
          results = (worker.recv(),)
        worker.send(task)
        busy.append(worker)
        yield from results
      for worker in busy:
        yield worker.recv()
  except (EOFError, ConnectionError) as e:
    raise UserError(
      'a process that reads the text has died, perhaps for lack of memory; '
      'fewer of them need less: --processes=1'
    ) from e


@contextlib.contextmanager
def _worker(work):
  """The connection to a new worker process, which ends with the connection."""
  context = multiprocessing.get_context('spawn')  # the parent may have threads
  ours, theirs = context.Pipe()
  process = context.Process(target=_serve, args=(work, theirs), daemon=True)
  resource_tracker.ensure_running()  # else it would unblock what we block
  # Ctrl-C is for the parent: the new process blocks it from its start.
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
  process.start()
  signal.pthread_sigmask(signal.SIG_SETMASK, before)
  theirs.close()
  try:
    with ours:
      yield ours
  finally:
    process.join()


def _serve(work, connection):
  """Works until the other end is closed, also by the death of the parent."""
  with contextlib.suppress(EOFError, OSError):  # also within a block
    while True:
      connection.send(work(connection.recv()))
