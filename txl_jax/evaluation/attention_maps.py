"""Where attention goes: by distance, for each layer and head.

This is what Dai et al. (2019) show in Appendix D. A query attends to the token
`d` before it (0 is itself) with probability A[d]; over d they sum to 1.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, P tokens of
  a passage, D distances or ranges of distances.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from txl_jax.errors import UserError
from txl_jax.evaluation import inside
from txl_jax.models import base
from txl_jax.parallel import capacity, placement
from txl_jax.settings import ON_RESUME, count, size


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


@jax.jit
def by_distance(maps: jax.Array) -> jax.Array:
  """A[..., i, d] from maps [..., T, S] whose query i is key M + i; else 0."""
  T, S = maps.shape[-2:]
  key = jnp.arange(T)[:, None] + S - T - jnp.arange(S)  # [T, S]
  there = jnp.take_along_axis(
    maps, jnp.broadcast_to(jnp.maximum(key, 0), maps.shape), axis=-1
  )
  return jnp.where(key >= 0, there, 0)


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
  _check(model, params, T, mesh)
  read = -(min(context, start) // T) * T
  total, first, begin = 0.0, [], start + read
  text = tokens[begin:]
  for seen in inside.segments(model, params, text, T, 'attention_maps'):
    at, real = begin + seen.at, seen.real
    if at < start:
      continue
    found = placement.fetch(by_distance(seen.arrays[:, 0]))[:, :, :real]
    total = total + found.sum(axis=2, dtype=np.float64)
    if at - start < passage:
      first.append(found[:, :, : passage - (at - start)])
    progress(at - start + real)
  return Maps(np.asarray(total) / n, np.concatenate(first, axis=2))


def _check(model, params, T, mesh):
  memory = jax.eval_shape(lambda: model.init_memory(1))
  shapes = [jax.ShapeDtypeStruct(x, np.int32) for x in ((1, T), (1,))]
  read = functools.partial(inside.read, model, method='attention_maps')
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
