"""Whether a model has learnt nothing but how frequent tokens are.

Every model starts there. With norms after the sums (post-norm) and too high a
learning rate it may stay there (docs/troubleshooting.md).
"""

from typing import Any

import numpy as np

from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import figures

_FIRST = 300  # steps; before that any model may be there
_COUNTED = 1 << 24  # tokens of the training split
_NEAR = 0.98  # of the nll that frequencies alone give


def by_frequencies(
  train: np.ndarray, scored: np.ndarray, vocab_size: int
) -> float:
  """Mean nll of tokens, integers [n], by their frequencies in others [m].

  Each of V tokens is counted once more than it occurs.
  """
  counts = 1 + np.bincount(train[:_COUNTED], minlength=vocab_size)
  nll = np.log(counts.sum()) - np.log(counts)
  found = np.bincount(scored, minlength=vocab_size)
  return float(found @ nll / found.sum())


def told(
  step: int, nats: float, corpus: Prepared, scored: Any, config: Any
) -> str:
  """A warning if an evaluation is hardly better than frequencies; else ''.

  It had a mean nll in nats, over the integers `scored` [n]. Early steps are not
  judged.
  """
  optim, model = config['optim'], config['model']
  if step < max(_FIRST, 2 * optim['warmup']):
    return ''
  vocabulary = corpus.vocabulary
  alone = by_frequencies(corpus.tokens('train'), scored, len(vocabulary))
  if nats < _NEAR * alone:
    return ''
  unit = vocabulary.unit
  here, there = (figures.figures(x, unit)[unit] for x in (nats, alone))
  ways = [f'a lower optim.lr (it is {optim["lr"]:g})', 'a longer optim.warmup']
  if model.get('pre_norm') is False:
    ways.append('model.pre_norm=True')
  return (
    f'warning: {here:.4f} {unit} is {"no" if nats >= alone else "hardly"} '
    f'better than what the frequencies of tokens give ({there:.4f}): so far '
    f'the model has learnt nothing else; if that lasts, try '
    f'{", ".join(ways[:-1])} or {ways[-1]} in a new run'
  )
