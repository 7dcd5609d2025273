"""What a model computes inside while reading a text, with memory carried along.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, D width of
  a layer.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from txl_jax.models import base
from txl_jax.parallel import placement


@functools.partial(jax.jit, static_argnames=('model', 'method'))
def read(
  model: base.LanguageModel,
  params: Any,
  memory: Any,
  tokens: jax.Array,
  lengths: jax.Array,
  method: str,
) -> tuple[Any, Any]:
  """What a method of the model returns for int32 [1, T], and the new memory."""
  options: Any = dict(lengths=lengths, method=method)
  return model.apply({'params': params}, tokens, memory, **options)


def shapes(
  model: base.LanguageModel, params: Any, segment_len: int, method: str
) -> Any:
  """The shapes of what `read` returns for a segment, but for the memory."""
  memory = jax.eval_shape(lambda: model.init_memory(1))
  ints = [jax.ShapeDtypeStruct(x, np.int32) for x in ((1, segment_len), (1,))]
  own = functools.partial(read, model, method=method)
  return jax.eval_shape(own, params, memory, *ints)[0]


def segments(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  segment_len: int,
  method: str,
) -> Iterator[tuple[int, int, Any]]:
  """`read` of each segment of int [n], one row, from an empty memory.

  The model is at test time with longest=0: keys are in order, not in a ring.
  Yields where a segment starts, how many tokens it has, at most T (the rest is
  padding), and the arrays, which are on the devices.
  """
  T = segment_len
  memory = jax.jit(lambda: model.init_memory(1))()
  for at in range(0, len(tokens), T):
    segment = np.asarray(tokens[at : at + T], np.int32)
    real = len(segment)
    padded = np.pad(segment, (0, T - real))[None]
    lengths = np.full([1], real, np.int32)
    shown, memory = read(model, params, memory, padded, lengths, method)
    yield at, real, shown


def hidden(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  layer: int,
  segment_len: int,
) -> np.ndarray:
  """The states of a layer, float32 [n, D]; 0 is the input of the first."""
  parts = []
  text = segments(model, params, tokens, segment_len, 'hidden')
  for _, real, states in text:
    states = placement.fetch(states[layer])[0, :real]
    parts.append(states.astype(np.float32))
  return np.concatenate(parts)


def attention(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  segment_len: int,
) -> np.ndarray:
  """Probabilities A[layer, head, i, j] that token i gives to token j.

  float32 [N, H, n, n], 0 where i does not see j. A row sums to 1, or to less if
  memory began with states of zero that belong to no token.
  """
  n, T = len(tokens), segment_len
  N, _, H, _, S = shapes(model, params, T, 'attention_maps').shape
  out, M = np.zeros([N, H, n, n], np.float32), S - T
  for at, real, maps in segments(model, params, tokens, T, 'attention_maps'):
    end, past = at + real, min(at, M)
    found = placement.fetch(maps)[:, 0, :, :real]  # [N, H, T, S]
    out[:, :, at:end, at - past : end] = found[..., M - past : M + real]
  return out
