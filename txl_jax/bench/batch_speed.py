"""Speed of cutting the batches that training reads: `data.streams.Streams`.

The corpora are files of random tokens in a temporary folder, mapped into
memory and read once before: what is measured is the copy from the page cache
into int32 arrays. Shapes: B batch, T segment.
"""

import os
import pathlib
import tempfile
import time

import numpy as np

from txl_jax.bench import side_by_side
from txl_jax.data import streams

_B, _T = 64, 768
_DRAWN = 10_000_000  # tokens drawn at a time
_SYMBOLS, _WORDS = 204, 793_471  # as in enwik8 and in lm1b
_LENGTHS = 2, 52  # of sentences, 26.5 tokens on average, as in lm1b


def _corpus(path, tokens, symbols, dtype):
  """A file of random tokens, mapped, in the page cache."""
  rng = np.random.default_rng(0)
  with path.open('wb') as f:
    for start in range(0, tokens, _DRAWN):
      n = min(_DRAWN, tokens - start)
      rng.integers(symbols, size=n, dtype=np.int32).astype(dtype).tofile(f)
  mapped = np.memmap(path, dtype, 'r')
  mapped.max()  # reads every page
  return mapped


def _sentences(tokens):
  """Where sentences of random lengths start, int64 [sentences + 1]."""
  low, high = _LENGTHS
  rng = np.random.default_rng(1)
  lengths = rng.integers(low, high, size=tokens // low, dtype=np.int64)
  starts = np.append(0, np.cumsum(lengths))
  return starts[starts < tokens]


def _measure(reader, repeats):
  """Tokens in a second of whole epochs, one figure for each."""
  steps = 0
  while reader.locate(steps)[0] == 0:
    steps += 1
  rates = []
  for _ in range(repeats):
    begin = time.perf_counter()
    for step in range(steps):
      reader.batch(step)
    rates.append(steps * _B * _T / (time.perf_counter() - begin))
  return np.array(rates)


def _report(name, rates, more=''):
  rates = side_by_side.spread(rates / 1e6, '.1f')
  print(f'{name}: median {rates} M tokens/s{more}', flush=True)


def run(tokens: int, repeats: int) -> None:
  """Cuts three corpora into batches and prints how fast that is.

  Args:
    tokens: of each corpus, at least one batch.
    repeats: how often each is read.
  """
  steps = (tokens - 1) // _B // _T
  print(
    f'data: {tokens:,} tokens, {steps:,} batches of {_B} x {_T}, '
    f'{repeats} repeats, cpus {os.cpu_count()}',
    flush=True,
  )
  with tempfile.TemporaryDirectory() as temporary:
    path = pathlib.Path(temporary) / 'tokens'
    for dtype, symbols in ((np.uint8, _SYMBOLS), (np.int32, _WORDS)):
      corpus = _corpus(path, tokens, symbols, dtype)
      rates = _measure(streams.Streams(corpus, _B, _T), repeats)
      _report(f'contiguous, {np.dtype(dtype)}', rates)
    starts = _sentences(tokens)
    # The array ends with the word that closes its last sentence.
    corpus = corpus[: starts[-1] + 1]
    reader = streams.Streams(corpus, _B, _T, sentences=starts)
    begin = time.perf_counter()
    reader.batch(0)
    drawing = time.perf_counter() - begin
    rates = _measure(reader, repeats)
    whole = len(corpus) / (len(corpus) / np.median(rates) + drawing)
    _report(
      'shuffled by sentence, int32',
      rates,
      f'; with the {drawing:.2f} s that drawing the order of '
      f'{len(starts) - 1:,} sentences takes, once an epoch: {whole / 1e6:.1f}',
    )
