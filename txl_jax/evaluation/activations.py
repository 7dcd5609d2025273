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

_read = jax.jit(inspection.read, static_argnames=('model', 'kind'))


def shapes(
  model: base.LanguageModel, params: Any, segment_len: int, kind: str
) -> Any:
  """Shapes of what `inspection.read` shows for one segment."""
  memory = jax.eval_shape(lambda: model.init_memory(1))
  tokens = jax.ShapeDtypeStruct((1, segment_len), np.int32)
  lengths = jax.ShapeDtypeStruct((1,), np.int32)
  read = functools.partial(_read, model, kind=kind)
  return jax.eval_shape(
    read, {'params': params}, tokens, memory, lengths=lengths
  )[0]


def segments(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  segment_len: int,
  kind: str,
) -> Iterator[tuple[int, int, Any]]:
  """Yields (start, length, what is shown) for each segment of int [n].

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
    result, memory = _read(
      model, {'params': params}, padded, memory, kind, lengths=lengths
    )
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
