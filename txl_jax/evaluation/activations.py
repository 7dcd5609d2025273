"""Hidden states and attention maps of a model on a text, with memory.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, D model
  width.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from txl_jax.models import base, inspection
from txl_jax.parallel import placement


@functools.partial(jax.jit, static_argnames=('model', 'kind'))
def read(
  model: base.LanguageModel,
  params: Any,
  memory: Any,
  tokens: jax.Array,
  lengths: jax.Array,
  kind: str,
) -> tuple[Any, Any]:
  """`inspection.read` of int32 [1, T]."""
  variables = {'params': params}
  return inspection.read(
    model, variables, tokens, memory, kind, lengths=lengths
  )


def shapes(
  model: base.LanguageModel, params: Any, segment_len: int, kind: str
) -> Any:
  """Shapes of the first result of `read` for one segment."""
  memory = jax.eval_shape(lambda: model.init_memory(1))
  ints = [jax.ShapeDtypeStruct(x, np.int32) for x in ((1, segment_len), (1,))]
  read_segment = functools.partial(read, model, kind=kind)
  return jax.eval_shape(read_segment, params, memory, *ints)[0]


def segments(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  segment_len: int,
  kind: str,
) -> Iterator[tuple[int, int, Any]]:
  """Yields (start, length, result of `read`) for each segment of int [n].

  The memory starts empty. The model is from `at_test_time` without `longest`,
  as a ring is not in the order of positions. Segments are padded to T; the
  length counts only real tokens. Results stay on the device.
  """
  T = segment_len
  memory = base.start_memory(model, params, 1)
  for start in range(0, len(tokens), T):
    segment = np.asarray(tokens[start : start + T], np.int32)
    length = len(segment)
    padded = np.pad(segment, (0, T - length))[None]
    lengths = np.full([1], length, np.int32)
    result, memory = read(model, params, memory, padded, lengths, kind)
    yield start, length, result


def hidden(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  layer: int,
  segment_len: int,
) -> np.ndarray:
  """Output of a layer, float32 [n, D]; layer 0 is the embedding."""
  parts = []
  text = segments(model, params, tokens, segment_len, inspection.STATES)
  for _, length, states in text:
    states = placement.fetch(states[layer])[0, :length]
    parts.append(states.astype(np.float32))
  return np.concatenate(parts)


def attention(
  model: base.LanguageModel, params: Any, tokens: np.ndarray, segment_len: int
) -> np.ndarray:
  """Attention probabilities A[layer, head, i, j] of query i and key j.

  float32 [N, H, n, n], 0 where i does not see j. A row sums to 1, or to less as
  long as the memory holds initial zero states, which belong to no token.
  """
  n, T = len(tokens), segment_len
  N, _, H, _, S = shapes(model, params, T, inspection.MAPS).shape
  out = np.zeros([N, H, n, n], np.float32)
  M = S - T
  for at, length, maps in segments(model, params, tokens, T, inspection.MAPS):
    end = at + length
    past = min(at, M)
    maps = placement.fetch(maps)[:, 0, :, :length]  # [N, H, length, S]
    out[:, :, at:end, at - past : end] = maps[..., M - past : M + length]
  return out
