"""Where attention goes: by distance, for each layer and head.

This is what Dai et al. (2019) show in Appendix D. A query attends to the token
`d` before it (0 is itself) with probability A[d]; over d they sum to 1. Behind
it is a score, the sum of the four terms of `models.layers.score_terms`.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, P tokens of
  a passage, D distances or ranges of distances.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from txl_jax.evaluation import inside
from txl_jax.models import base
from txl_jax.parallel import capacity, placement
from txl_jax.program.errors import UserError
from txl_jax.program.settings import ON_RESUME, count, size


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
  """The section `attention_maps`."""

  MAY_CHANGE = ON_RESUME

  start: int = count(0, 'Where the text begins in the split.')
  tokens: int = size(4096, 'Tokens whose attention is averaged.')
  passage: int = size(
    20,
    'How many of these, from the first, are also shown one by one.',
    at_most=1000,
  )
  context: int = count(
    1024,
    'Tokens before the text that fill the memory, in whole segments.',
    at_most=10**6,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.passage > self.tokens:
      yield 'passage', f'at most attention_maps.tokens, {self.tokens}'


class Maps(NamedTuple):
  """Probabilities by distance, from 0 on."""

  mean: np.ndarray  # float64 [N, H, S], over all n tokens
  passage: np.ndarray  # float32 [N, H, P, S], for the first P tokens


class Terms(NamedTuple):
  """The terms of the scores; of each query, less their mean over its keys."""

  mean: np.ndarray  # float64 [4, N, H, S] by distance; NaN where none is seen
  spread: np.ndarray  # float64 [4, N, H], deviation over the keys of a query


# The terms of a score, as Section 3.3 of the paper names them.
TERMS = {
  'a': 'query by key, q·k',
  'b': 'query by distance, q·r',
  'c': 'any query by key, u·k',
  'd': 'any query by distance, v·r',
}


@functools.partial(jax.jit, static_argnames='absent')
def by_distance(maps: jax.Array, absent: float = 0.0) -> jax.Array:
  """A[..., i, d] from maps [..., T, S], in which query i is key M + i."""
  T, S = maps.shape[-2:]
  key = jnp.arange(T)[:, None] + S - T - jnp.arange(S)  # [T, S]
  there = jnp.take_along_axis(
    maps, jnp.broadcast_to(jnp.maximum(key, 0), maps.shape), axis=-1
  )
  return jnp.where(key >= 0, there, absent)


def measure(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  start: int,
  *,
  segment_len: int,
  context: int,
  passage: int,
  mesh: Mesh | None = None,
  progress: Callable[[int], None] = lambda read: None,
) -> Maps:
  """The attention of tokens[start:], read as one row in segments of T.

  The memory has read the `context` tokens before them, in whole segments.
  Progress is called with the number of tokens averaged so far. UserError: the
  model has no attention, or there is too little memory for the maps of a
  segment.
  """
  if not model.ATTENDS:
    raise UserError(
      f'{type(model).__name__} has no attention to show; allowed: models that '
      'attend'
    )
  T, n = segment_len, len(tokens) - start
  total, first = 0.0, []
  _check(model, params, T, mesh, 'attention_maps')
  text = _segments(model, params, tokens, start, T, context, 'attention_maps')
  for at, real, seen in text:
    found = placement.fetch(by_distance(seen[:, 0]))[:, :, :real]
    total = total + found.sum(axis=2, dtype=np.float64)
    if at - start < passage:
      first.append(found[:, :, : passage - (at - start)])
    progress(at - start + real)
  return Maps(np.asarray(total) / n, np.concatenate(first, axis=2))


def terms(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  start: int,
  *,
  segment_len: int,
  context: int,
  mesh: Mesh | None = None,
) -> Terms:
  """The terms of the scores of tokens[start:], over the keys that are seen.

  A constant would change no probability, so the mean over the keys of a query
  is subtracted. `mean` is that over the queries which see a key at a distance,
  `spread` the root of the mean square over the keys of a query, averaged over
  queries. Arguments and errors are as for `measure`.
  """
  method = 'attention_terms'
  _check(model, params, segment_len, mesh, method)
  total, count, spread = 0.0, 0, 0.0
  text = _segments(model, params, tokens, start, segment_len, context, method)
  for _, real, seen in text:
    found = placement.fetch(by_distance(seen[:, :, 0], math.nan))
    found = np.asarray(found[..., :real, :], np.float64)  # [N, 4, H, T, S]
    found -= np.nanmean(found, axis=-1, keepdims=True)
    spread = spread + np.sqrt(np.nanmean(found**2, axis=-1)).sum(-1)
    total = total + np.nansum(found, axis=-2)
    count = count + np.isfinite(found).sum(axis=-2)
  mean = np.full(np.shape(total), math.nan)
  np.divide(total, count, out=mean, where=np.asarray(count) > 0)
  spread = np.asarray(spread) / (len(tokens) - start)
  return Terms(np.moveaxis(mean, 1, 0), np.moveaxis(spread, 1, 0))


def _segments(model, params, tokens, start, T, context, method):
  """(Place, real tokens, arrays of a method) of each segment from start on.

  The memory has read the `context` tokens before it, in whole segments.
  """
  begin = start - min(context, start) // T * T
  for seen in inside.segments(model, params, tokens[begin:], T, method):
    if (at := begin + seen.at) >= start:
      yield at, seen.real, seen.arrays


def _check(model, params, T, mesh, method):
  memory = jax.eval_shape(lambda: model.init_memory(1))
  shapes = [jax.ShapeDtypeStruct(x, np.int32) for x in ((1, T), (1,))]
  read = functools.partial(inside.read, model, method=method)
  maps, _ = jax.eval_shape(read, params, memory, *shapes)
  lengths = 'eval.segment_len', 'eval.model.mem_len'
  parts = {
    'the parameters': (capacity.on_a_device(params), ['mesh.fsdp']),
    'the maps of a segment': (2 * capacity.on_a_device(maps), lengths),
  }
  capacity.check('attention_maps', mesh, parts)


def edges(S: int, most: int) -> np.ndarray:
  """Borders, int64, of at most `most` equal ranges of distances 0 to S - 1."""
  width = -(-S // most)
  return np.append(np.arange(0, S, width), S)


def in_ranges(maps: np.ndarray, borders: np.ndarray) -> np.ndarray:
  """Sums of [..., S] over each range of distances: [..., D]."""
  return np.add.reduceat(maps, borders[:-1], axis=-1)
