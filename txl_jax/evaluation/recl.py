"""Relative effective context length (Dai et al. 2019, Appendix C).

Shapes
  m models, C contexts, P positions, n tokens; G segments of T tokens hold a
  context of c, B of them are read at once.

A model makes use of a longer context if it is then better than the best model
of its group with a shorter one.
l_i(c, t) = -log p_i(x_t | the c tokens before).
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
from txl_jax.settings import ON_RESUME, key, size

_KEYS = 'recl.batch_size', 'recl.longest', 'eval.model.mem_len'
# The published threshold: from this gain on a longer context counts as used.
THRESHOLD = 0.01


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
    1000, 'P: tokens to score, spread evenly over the split.'
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


def reads(model: base.LanguageModel, c: int) -> int:
  """How many of c tokens a model can read: all, or the last `reach`."""
  return c if model.remembers() else int(min(c, model.reach()))


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
  shape = _shape(model, reads(model, c), batch_size, segment_len, mesh)
  B, G, T = shape
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
  once, or only the last of them, see `reads`.
  """
  c = reads(model, c)
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
  progress: Callable[[int], None] = lambda c: None,
) -> np.ndarray:
  """l of one model, float64 [C, P], with `read` giving l for each c."""
  rows = []
  for c in lengths:
    progress(c)
    rows.append(np.asarray(read(c), np.float64))
  return np.stack(rows)


class Found(NamedTuple):
  """The result for one model and share r."""

  length: int  # RECL, in tokens
  gains: tuple[float, ...]  # g(c, c + step) for each context in turn
  at_end: bool  # whether it may be longer than any context tried


def gain(nll: np.ndarray, model: int, k: int, share: float) -> float:
  """g_i(c, c') from l, float64 [m, C, P], where c is context k, c' the next.

  b(c, t) = min_i l_i(c, t), the best of the group; over the share r of the
  positions with the largest b(c, t), f_i(c, c') = mean_t min(b(c, t),
  l_i(c', t)), g = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c).
  """
  best = nll[:, k].min(axis=0)  # [P]
  count = max(1, round(share * len(best)))
  hardest = np.argsort(-best, kind='stable')[:count]
  f = [np.minimum(best, nll[model, j])[hardest].mean() for j in (k, k + 1)]
  return float(-math.expm1(f[1] - f[0]))


def effective(
  nll: np.ndarray, lengths: Sequence[int], share: float
) -> list[Found]:
  """For each model in l, float64 [m, C, P]: the last c before a small gain.

  From the first of the C contexts, c grows while g(c, c + step) >= THRESHOLD.
  """
  found = []
  for i in range(len(nll)):
    pairs = range(len(lengths) - 1)
    gains = tuple(gain(nll, i, k, share) for k in pairs)
    k = next((k for k in pairs if gains[k] < THRESHOLD), len(pairs))
    found.append(Found(lengths[k], gains, k == len(pairs)))
  return found
