"""Benchmark of preparing words: a text is made, counted and encoded.

The text lies in a temporary folder; its words are drawn by Zipf's law, the
r-th most frequent one 1/r times as often as the first. All of them occur at
its start, so the vocabulary has the size that was asked for.
"""

import os
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np

from txl_jax.corpora import counting, preparation
from txl_jax.data import prepared
from txl_jax.data.options import Data

_WORDS_A_LINE = 56  # as in WikiText-103
_DRAWN = 1_000_000  # words drawn at a time
_LETTERS = np.array([chr(ord('a') + i) for i in range(26)])


def write_text(path, megabytes, distinct, seed=0):
  """Writes a text of words.

  Args:
    path: pathlib.Path of the text.
    megabytes: its size, in 1,000,000 bytes, reached within a few MB.
    distinct: different words, at least 1.
    seed: of the order of the words.
  """
  rng = np.random.default_rng(seed)
  names = np.array([_name(i) for i in range(distinct)], object)
  names[distinct // 1000] = '–'  # a text is seldom ASCII throughout
  shares = np.cumsum(1 / np.arange(1, distinct + 1))
  ids = rng.permutation(distinct)
  with path.open('wb') as f:
    while True:
      words = names[ids].tolist()
      starts = range(0, len(words), _WORDS_A_LINE)
      lines = (' '.join(words[i : i + _WORDS_A_LINE]) for i in starts)
      f.write(''.join(f' {line} \n' for line in lines).encode())
      if f.tell() >= megabytes * 1e6:
        return
      drawn = rng.random(_DRAWN) * shares[-1]
      ids = np.minimum(np.searchsorted(shares, drawn), distinct - 1)


def _name(i):
  """A word for each number, the longer the larger, no two alike."""
  digits = []
  while True:
    digits.append(_LETTERS[i % 26])
    i = i // 26 - 1
    if i < 0:
      # With a space about 5.2 bytes a word, as in WikiText-103.
      return ''.join(digits) + 'al'


def run(megabytes, distinct, processes):
  """Makes a text, prepares it, and prints how long that took.

  Args:
    megabytes: size of the text, see `write_text`.
    distinct: different words.
    processes: that read it; 0 for the default.
  """
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    path = folder / 'text'
    write_text(path, megabytes, distinct)
    begin = time.perf_counter()
    asked = Data('text', f'{folder}/data', f'{path}', level='word')
    data = preparation.prepare(asked, processes=processes)
    seconds = time.perf_counter() - begin
    size = path.stat().st_size
    tokens = sum(data.tokens(split).size for split in prepared.SPLITS)
  processes = processes or counting.processes_by_default()
  # Linux counts in KiB, macOS in bytes.
  unit = 1 if sys.platform == 'darwin' else 1024

  def usage(who):
    return resource.getrusage(who).ru_maxrss * unit / 1e6

  ours, theirs = usage(resource.RUSAGE_SELF), usage(resource.RUSAGE_CHILDREN)
  print(
    f'prepare: {size / 1e6:,.0f} MB, {tokens:,} tokens, '
    f'{len(data.vocabulary):,} words in the vocabulary, {processes} processes, '
    f'cpus {os.cpu_count()}\n'
    f'txl_jax: {tokens / seconds:,.0f} tokens/s, {seconds:.1f} s with reading, '
    'checksums and the check of what was written\n'
    f'memory: at most {ours:,.0f} MB, and {theirs:,.0f} MB for each of the '
    'processes',
    flush=True,
  )
