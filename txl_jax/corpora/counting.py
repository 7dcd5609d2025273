"""Words of large texts: counted and encoded block by block, in order.

A text is cut into blocks of whole lines, which worker processes read; results
are taken in the order of the blocks, so nothing depends on the number of
processes. Memory holds a few blocks for each process, however large the text.

Looking a word up is what takes the time, and each is looked up once: `Numbers`
gives it a number while it counts; once the vocabulary is known, numbers become
token ids by a table.
"""

import collections
import concurrent.futures
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tqdm

from txl_jax.data.words import Words, split
from txl_jax.errors import UserError

_BLOCK = 1 << 23  # bytes
_MOST = 4  # processes unless the caller says how many

_work: Callable  # what this worker process does with each block


def processes_by_default() -> int:
  """As many as there are CPUs, but no more than four."""
  if hasattr(os, 'sched_getaffinity'):
    return min(len(os.sched_getaffinity(0)), _MOST)
  return min(os.cpu_count() or 1, _MOST)


def progress(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
  """The chunks, with a bar on a terminal that tells how much was read."""
  with tqdm.tqdm(
    desc=what, unit='B', unit_scale=True, disable=None, leave=False
  ) as bar:
    for chunk in chunks:
      bar.update(len(chunk))
      yield chunk


def blocks(chunks: Iterable[bytes], size: int = _BLOCK) -> Iterator[bytes]:
  """A text in blocks of about `size` bytes, each but the last whole lines.

  A line that is longer than a block is cut at a space.
  """
  pieces, n = [], 0
  for chunk in chunks:
    pieces.append(chunk)
    n += len(chunk)
    if n < size:
      continue
    text = b''.join(pieces)
    cut = text.rfind(b'\n') + 1 or text.rfind(b' ') + 1
    if cut:
      yield text[:cut]
    pieces = [text[cut:]]
    n = len(text) - cut
  if text := b''.join(pieces):
    yield text


class Numbers:
  """Numbers for the words of texts, in the order of first appearance.

  Attributes:
    words: {word: number}.
  """

  def __init__(self, eos: str, lower: bool):
    """Starts without words.

    Args:
      eos: the word that every newline is; '' for none.
      lower: whether to lower-case texts.
    """
    self._options = eos, lower
    self.words = _growing()
    self._counts = np.zeros([0], np.int64)

  def read(
    self, chunks: Iterable[bytes], counted: bool, processes: int
  ) -> Iterator[np.ndarray]:
    """The numbers of the words of a text, block by block.

    Args:
      chunks: the text.
      counted: whether its words count.
      processes: that work, at least 1.

    Yields:
      int32 [n].
    """
    tasks = ((block,) for block in blocks(chunks))
    tables = {}  # of each process: its numbers to ours
    reader = _Reader(*self._options)
    for process, new, numbers in _in_order(reader.read, tasks, processes):
      table = tables.get(process, np.zeros([0], np.int32))
      # What is new to all processes is new to the one that has read it, so
      # words come in the order of the text.
      table = np.append(table, _number(self.words, new))
      tables[process] = table
      missing = len(self.words) - len(self._counts)
      self._counts = np.append(self._counts, np.zeros([missing], np.int64))
      if counted:
        self._counts[table] += np.bincount(numbers, minlength=len(table))
      yield table[numbers]

  def counts(self) -> dict[str, int]:
    """Occurrences of the words that were counted, in the same order."""
    counts = zip(self.words, self._counts.tolist())
    return {word: n for word, n in counts if n}

  def ids(self, vocabulary: Words) -> np.ndarray:
    """The token id for each number, -1 for none, int32 [numbers]."""
    ids = {word: i for i, word in enumerate(vocabulary.symbols)}
    return np.array([ids.get(word, -1) for word in self.words], np.int32)


def look_up(
  vocabulary: Words, chunks: Iterable[bytes], processes: int
) -> Iterator[np.ndarray]:
  """The token ids of a text, int32 [n], block by block, -1 for unknown words.

  Args:
    vocabulary: encodes it.
    chunks: the text.
    processes: that work, at least 1.
  """
  tasks = ((block,) for block in blocks(chunks))
  return _in_order(vocabulary.look_up, tasks, processes)


def refuse(
  vocabulary: Words,
  pieces: Iterable[tuple[str, int, Iterable[bytes]]],
  processes: int,
) -> None:
  """Raises the error for the first unknown word, if there is one.

  Args:
    vocabulary: without unk.
    pieces: of the text: what each is, the number of its first line there, and
      its chunks.
    processes: that work, at least 1.

  Raises:
    UserError: see `Words.encode`.
  """

  def tasks():
    for source, line, chunks in pieces:
      for block in blocks(chunks):
        yield block, source, line
        line += block.count(b'\n')

  for _ in _in_order(vocabulary.encode, tasks(), processes):
    pass


class _Reader:
  """Numbers the words that one process reads."""

  def __init__(self, eos, lower):
    self._options = eos, lower
    self._numbers = None  # made where it is used: it cannot be sent

  def read(self, block):
    """The process, the words new to it, and int32 [n], all by its numbers."""
    if self._numbers is None:
      self._numbers = _growing()
    known = len(self._numbers)
    found = _number(self._numbers, split(block, *self._options))
    new = list(itertools.islice(self._numbers, known, None))
    return os.getpid(), new, found


def _growing() -> collections.defaultdict[str, int]:
  """A dict that gives a word the next number when it is first looked up."""
  numbers = collections.defaultdict()
  numbers.default_factory = numbers.__len__
  return numbers


def _number(numbers, words):
  return np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))


def _start(work):
  """Prepares a worker; Ctrl-C is for its parent, with which it ends."""
  global _work
  _work = work
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
  """Ends this worker once its parent was killed: no task would ever come."""
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)


def _call(task):
  return _work(*task)


def _in_order(
  work: Callable, tasks: Iterable[tuple], processes: int
) -> Iterator[Any]:
  """work(*task) for each task, in order; a single task needs no process."""
  tasks = iter(tasks)
  first = list(itertools.islice(tasks, 2))
  tasks = itertools.chain(first, tasks)
  if processes == 1 or len(first) < 2:
    yield from itertools.starmap(work, tasks)
    return
  # Not forked: the parent may have threads.
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(
    processes, context, _start, (work,)
  ) as pool:
    waiting = collections.deque()
    try:
      for task in tasks:
        waiting.append(pool.submit(_call, task))
        if len(waiting) > processes + 1:
          yield waiting.popleft().result()
      while waiting:
        yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as e:
      raise UserError(
        'a process that reads the text has died, perhaps for lack of memory; '
        'fewer of them need less: --processes=1'
      ) from e
    finally:
      pool.shutdown(cancel_futures=True)
