"""Relative effective context length (Dai et al. 2019, Appendix C).

Shapes
  m models, C contexts, P positions, n tokens; G segments of T tokens hold a
  context of c, B of them are read at once.

A model makes use of a longer context if it is then better than the best model
of its group with a shorter one.
l_i(c, t) = -log p_i(x_t | the c tokens before), nan where model i is not read
that far, see `reach`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax.evaluation import perplexity, scoring
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.settings import ON_RESUME, count, key, size

_KEYS = 'recl.batch_size', 'recl.longest', 'eval.model.mem_len'
# The published threshold: from this gain on a longer context counts as used.
THRESHOLD = 0.01
# Of the interval beside each result.
PERCENTILES = 2.5, 97.5


@dataclasses.dataclass(frozen=True)
class Recl:
  """The section `recl`: a group of runs, the contexts and the positions."""

  MAY_CHANGE = ON_RESUME

  others: tuple[str, ...] = key(
    (),
    'Folders of the runs to compare this one with; they need the same '
    'vocabulary.',
    is_path=True,
  )
  positions: int = size(
    2000,
    'P: tokens to score, spread evenly over the split; a figure to publish '
    'needs that many or more.',
  )
  step: int = size(
    100, 'Step between context lengths, in tokens; also the shortest one.'
  )
  longest: int = key(
    1000, 'Longest context, in tokens.', at_least=2, at_most=10**6
  )
  shares: tuple[float, ...] = key(
    (0.1, 0.5, 1.0), 'r: fractions of the positions to use, the hardest ones.'
  )
  batch_size: int = size(16, 'B: contexts read at once.')
  resamples: int = count(
    1000,
    'How often the positions are drawn anew from themselves, for the interval '
    'beside each result; 0 is no interval.',
    at_most=10**5,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if not all(type(x) is str and x and '\0' not in x for x in self.others):
      yield 'others', 'folders'
    if self.longest < 2 * self.step:
      yield 'step', f'at most half of recl.longest, {self.longest // 2}'
    numbers = [x for x in self.shares if type(x) in (int, float)]
    within = [0 < x <= 1 for x in numbers]
    if not within or not all(within) or len(within) < len(self.shares):
      yield 'shares', 'one or more numbers above 0, at most 1'


def contexts(step: int, longest: int) -> range:
  """The contexts c: step, 2 step, ..., at most the longest."""
  return range(step, longest + 1, step)


def positions(n: int, longest: int, count: int) -> np.ndarray:
  """int64 [P]: distinct places, evenly spaced from `longest` to n - 1."""
  return np.unique(np.linspace(longest, n - 1, count).astype(np.int64))


def reach(model: base.LanguageModel, trained: int) -> float:
  """The longest context that a model is read with, infinity for any.

  Without a memory, what it can read at once, trained in segments of T tokens.
  """
  return math.inf if model.remembers() else model.reach(trained)


def _shape(model, c, batch_size, segment_len, mesh):
  """(rows, G, T) of the segments that contexts of c are read in."""
  T = min(segment_len, c) if model.remembers() else c
  more = -batch_size % mesh_lib.row_parts(mesh) if mesh else 0
  return batch_size + more, -(-c // T), T


def check(
  model: base.LanguageModel,
  params: Any,
  c: int,
  *,
  batch_size: int,
  segment_len: int,
  mesh: Mesh | None = None,
) -> None:
  """Raises a UserError if there is too little memory for `after_context`."""
  B, G, T = _shape(model, c, batch_size, segment_len, mesh)
  perplexity.check(
    model, params, np.zeros(B * G * T + 1, np.int32), mesh=mesh,
    batch_size=B, segment_len=T, segments_per_call=G, keys=_KEYS,
  )  # fmt: skip


def after_context(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  at: np.ndarray,
  c: int,
  *,
  batch_size: int,
  segment_len: int,
  mesh: Mesh | None = None,
) -> np.ndarray:
  """l(c, t): nll of tokens[t] after exactly the c before it, float32 [P].

  Every t in `at`, int64 [P], is at least c and starts with an empty memory. A
  model with memory reads the c tokens in segments; one without reads them at
  once.
  """
  rows, G, T = _shape(model, c, batch_size, segment_len, mesh)
  nll = np.zeros(len(at), np.float32)
  start = jax.jit(
    lambda: model.init_memory(rows),
    out_shardings=scoring.memory_shardings(model, mesh),
  )
  variables = base.freeze(model, params)
  for first in range(0, len(at), rows):
    here = at[first : first + rows]
    inputs = np.zeros([rows, G * T], np.int32)
    inputs[: len(here), :c] = tokens[here[:, None] - c + np.arange(c)]
    targets = np.full([rows, G * T], -1, np.int32)
    targets[: len(here), c - 1] = tokens[here]
    fold = lambda x: x.reshape(rows, G, T).swapaxes(0, 1)  # [G, B, T]
    _, found = scoring.jit_score(
      variables, start(), fold(inputs), fold(targets), model=model, mesh=mesh
    )
    last = placement.fetch(found)[-1, : len(here), c - 1 - (G - 1) * T]
    nll[first : first + rows] = last
  return nll


def table(
  read: Callable[[int], np.ndarray],
  lengths: Sequence[int],
  positions: int,
  longest: float,
  progress: Callable[[int], None] = lambda c: None,
) -> np.ndarray:
  """l of one model, float64 [C, P], with `read` giving l for each c.

  It is nan for contexts above the longest one of the model.
  """
  found = np.full([len(lengths), positions], np.nan)
  for row, c in zip(found, lengths):
    if c <= longest:
      progress(c)
      row[:] = read(c)
  return found


class Found(NamedTuple):
  """The result for one model and share r."""

  length: int | None  # RECL, in tokens; None if it is not read at all
  gains: tuple[float, ...]  # g(c, c + step) for each context, nan beyond reach
  at_end: bool  # whether it may be longer than any context tried
  at_reach: bool  # whether no gain was small, but the model is read no farther
  interval: tuple[int, int] | None  # PERCENTILES of the length, in tokens


def effective(
  nll: np.ndarray, lengths: Sequence[int], share: float, resamples: int = 0
) -> list[Found]:
  """For each model in l, float64 [m, C, P]: the last c before a small gain.

  From the first of the C contexts, c grows while g(c, c + step) >= THRESHOLD.
  The interval is that of the P positions: each resample draws P of them with
  replacement, the same in every call. None without resamples.
  """
  drops, order = _drops(nll)
  P = nll.shape[2]
  gains = _gains(drops, order, np.ones(P, np.int64), share)
  ends = [_last(_gains(drops, order, n, share)) for n in _drawn(P, resamples)]
  found = []
  for i, k in enumerate(_last(gains)):
    own = (*gains[i].tolist(),)
    if np.isnan(nll[i, 0, 0]):
      found.append(Found(None, own, False, False, None))
      continue
    at_end = bool(k == len(own))
    at_reach = not at_end and math.isnan(own[k])
    interval = _interval([lengths[end[i]] for end in ends])
    found.append(Found(lengths[k], own, at_end, at_reach, interval))
  return found


def _drawn(P, resamples):
  """For each resample int64 [P], how often it has each position."""
  rng = np.random.default_rng(0)
  for _ in range(resamples):
    yield np.bincount(rng.integers(P, size=P), minlength=P)


def _interval(found):
  """Lengths at the PERCENTILES of those found in resamples; None for none."""
  if not found:
    return None
  low, high = np.percentile(found, PERCENTILES, method='inverted_cdf')
  return int(low), int(high)


def _drops(nll):
  """How much a longer context helps, hardest positions first; their order.

  For each context c but the last and its next one c': b(c, t) - min(b(c, t),
  l_i(c', t)), [C - 1, m, P], where b(c, t) = min_i l_i(c, t), the best of the
  group; and the positions t, [C - 1, P], that of the largest b(c, t) first.
  """
  best = np.fmin.reduce(nll)[:-1]  # of the models that are read so far
  order = np.argsort(-best, axis=1, kind='stable')
  drops = best[:, None] - np.minimum(best[:, None], nll[:, 1:].swapaxes(0, 1))
  return np.take_along_axis(drops, order[:, None], axis=2), order


def _gains(drops, order, times, share):
  """g_i(c, c') of each model i and context c, c' the next one, [m, C - 1].

  Over the share r of the positions with the largest b(c, t), of which position
  t counts times[t]: f_i(c, c') = mean_t min(b(c, t), l_i(c', t)) and
  g = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c), in which f_i(c, c) is
  the mean of b(c, t).
  """
  kept = max(1, round(share * times.sum()))
  times = times[order]
  times = np.clip(kept - (np.cumsum(times, axis=1) - times), 0, times)
  sums = (drops @ times[..., None].astype(float))[..., 0]  # [C - 1, m]
  return -np.expm1(-sums / kept).T


def _last(gains):
  """int64 [m]: how many contexts come before the first small gain."""
  return np.cumprod(gains >= THRESHOLD, axis=1).sum(axis=1)
