"""Whether a model has learnt nothing but how frequent tokens are.

Every model starts there. With norms after the sums (post-norm) and too high a
learning rate it may stay there (docs/troubleshooting.md).
"""

from typing import Any

import numpy as np

from txl_jax.evaluation import figures

_FIRST = 300  # steps; before that any model may be there
_COUNTED = 1 << 24  # tokens of the training split
_NEAR = 0.98  # of the nll that frequencies alone give


def nats(train: np.ndarray, scored: np.ndarray, vocab_size: int) -> float:
  """Mean nll of tokens, integers [n], by their frequencies in others [m].

  Each of V tokens is counted once more than it occurs.
  """
  counts = 1 + np.bincount(train[:_COUNTED], minlength=vocab_size)
  nll = np.log(counts.sum()) - np.log(counts)
  found = np.bincount(scored, minlength=vocab_size)
  return float(found @ nll / found.sum())


def may_be_told(step: int, warmup: int) -> bool:
  """Whether a model should have learnt more by now."""
  return step >= max(_FIRST, 2 * warmup)


def told(found: float, alone: float, unit: str, config: Any) -> str:
  """A warning if nats are hardly better than those of frequencies; else ''."""
  if found < _NEAR * alone:
    return ''
  here, there = (figures.figures(x, unit)[unit] for x in (found, alone))
  optim, model = config['optim'], config['model']
  ways = [f'a lower optim.lr (it is {optim["lr"]:g})', 'a longer optim.warmup']
  if model.get('pre_norm') is False:
    ways.append('model.pre_norm=True')
  return (
    f'warning: {here:.4f} {unit} is {"no" if found >= alone else "hardly"} '
    f'better than what the frequencies of tokens give ({there:.4f}): so far '
    f'the model has learnt nothing else; if that lasts, try '
    f'{", ".join(ways[:-1])} or {ways[-1]} in a new run'
  )
