"""Speed of preparing words, and of cutting the batches that training reads.

Both make what they read in a temporary folder. Shapes: B batch, T segment.
"""

import os
import pathlib
import resource
import sys
import tempfile
import time

import numpy as np

from benchmarks.results import Measured, spread
from txl_jax.data import prepared, streams
from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import Data

_WORDS_A_LINE = 56  # as in WikiText-103
_DRAWN = 1_000_000  # words or tokens drawn at a time
_B, _T = 64, 768
_SYMBOLS = {np.uint8: 204, np.int32: 793_471}  # as in enwik8 and in lm1b
_LENGTHS = 2, 52  # of sentences, 26.5 tokens on average, as in lm1b


def prepare(megabytes: int, distinct: int) -> dict[str, Measured]:
  """Makes a text, prepares it, and prints and returns how fast that was.

  The text has so many 1,000,000 bytes, give or take a few, and different words.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'text'
    _write_text(path, megabytes * 1_000_000, distinct)
    size = path.stat().st_size / 1e6
    asked = Data('text', f'{folder}/data', f'{path}', level='word')
    begin = time.perf_counter()
    data = preparation.prepare(asked)
    seconds = time.perf_counter() - begin
    tokens = sum(data.tokens(split).size for split in prepared.SPLITS)
  # Linux counts in KiB, macOS in bytes.
  unit = 1 if sys.platform == 'darwin' else 1024
  memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
  print(
    f'prepare: {size:,.0f} MB, {tokens:,} tokens, '
    f'{len(data.vocabulary):,} words in the vocabulary, cpus {os.cpu_count()}\n'
    f'txl_jax: {tokens / seconds:,.0f} tokens/s, {seconds:.1f} s with reading, '
    'checksums and the check of what was written\n'
    f'memory: at most {memory:,.0f} MB'
  )
  return {'txl_jax': Measured([tokens / seconds], 'tokens/s')}


def _write_text(path, size, distinct):
  """Writes words by Zipf's law: the r-th is 1/r times as frequent as the first.

  All of them occur at the start, so the vocabulary is as large as asked for.
  """
  rng = np.random.default_rng(0)
  # With a space about 5.2 bytes a word, as in WikiText-103.
  names = [f'{np.base_repr(i, 36).lower()}al' for i in range(distinct)]
  names = np.array(names, object)
  names[distinct // 1000] = '–'  # a text is seldom ASCII throughout
  shares = np.cumsum(1 / np.arange(1, distinct + 1))
  ids = rng.permutation(distinct)
  with path.open('wb') as f:
    while True:
      words = names[ids].tolist()
      for i in range(0, len(words), _WORDS_A_LINE):
        line = ' '.join(words[i : i + _WORDS_A_LINE])
        f.write(f' {line} \n'.encode())
      if f.tell() >= size:
        return
      drawn = rng.random(_DRAWN) * shares[-1]
      ids = np.minimum(np.searchsorted(shares, drawn), distinct - 1)


def cut(tokens: int, repeats: int) -> dict[str, Measured]:
  """Cuts three corpora of so many tokens into batches, and tells how fast.

  They are files of random tokens, mapped into memory: what is measured is the
  copy from the page cache into int32 arrays.
  """
  steps = (tokens - 1) // _B // _T
  about = f'{steps:,} batches of {_B} x {_T}, {repeats} repeats'
  print(f'data: {tokens:,} tokens, {about}, cpus {os.cpu_count()}', flush=True)
  results = {}

  def measure(name, reader, more=''):
    """Prints how fast a corpus is cut."""
    rates = []
    for _ in range(repeats):
      begin = time.perf_counter()
      for step in range(steps):
        reader.batch(step)
      rates.append(steps * _B * _T / 1e6 / (time.perf_counter() - begin))
    results[name] = Measured(rates, 'M tokens/s')
    text = f'{name}: median {spread(rates, ".1f")} M tokens/s'
    print(f'{text}{more}', flush=True)

  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / 'tokens'
    for dtype, symbols in _SYMBOLS.items():
      rng = np.random.default_rng(0)
      corpus = np.memmap(path, dtype, 'w+', shape=tokens)
      for start in range(0, tokens, _DRAWN):
        part = corpus[start : start + _DRAWN]
        part[:] = rng.integers(symbols, size=len(part), dtype=np.int32)
      reader = streams.Streams(corpus, _B, _T)
      measure(f'contiguous, {corpus.dtype}', reader)
    rng, (low, high) = np.random.default_rng(1), _LENGTHS
    starts = np.append(0, np.cumsum(rng.integers(low, high, tokens // low)))
    starts = starts[starts < tokens]
    # The array ends with the word that closes its last sentence.
    corpus = corpus[: starts[-1] + 1]
    reader = streams.Streams(corpus, _B, _T, sentences=starts)
    begin = time.perf_counter()
    reader.batch(0)
    drawn = f'drawn in {time.perf_counter() - begin:.2f} s, once an epoch'
    order = f'; the order of {len(starts) - 1:,} sentences {drawn}'
    measure('shuffled by sentence, int32', reader, order)
  return results
