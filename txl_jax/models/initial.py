"""Initial weights: normal draws, those of arrays of one shape in one loop.

The random bits of every array are compiled anew, which for the layers of a deep
model takes longer than anything else before its first step. In a loop over the
keys of all arrays of one shape they are compiled once; the draws are the same,
bit for bit.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend import core

# What answers a draw in place of itself, and in which trace it does: see
# `together`.
_answer = contextvars.ContextVar[tuple[Any, Any]](
  'answer', default=(None, None)
)


@dataclasses.dataclass(frozen=True)
class _Kind:
  """N(mean, std^2) in arrays of one shape."""

  std: float
  mean: float
  shape: tuple[int, ...]
  dtype: Any

  def draw(self, key):
    x = nn.initializers.normal(self.std)(key, self.shape, self.dtype)
    return self.mean + x if self.mean else x


def normal(std: float, mean: float = 0.0) -> Callable[..., jax.Array]:
  """The Flax initialiser N(mean, std^2)."""

  def init(key, shape, dtype=jnp.float32):
    kind = _Kind(std, mean, tuple(shape), jnp.dtype(dtype))
    trace, answer = _answer.get()
    # Loops have traces of their own, and Flax where it checks shapes.
    return answer(key, kind) if trace == _trace() else kind.draw(key)

  return init


def _trace():
  return core.get_opaque_trace_state(convention='flax')


@contextlib.contextmanager
def _answered(answer: Callable) -> Iterator[None]:
  """Draws in the trace of the caller are what `answer`(key, kind) returns."""
  token = _answer.set((_trace(), answer))
  try:
    yield
  finally:
    _answer.reset(token)


def together(function: Callable[[], Any]) -> Any:
  """The result of a function that draws by `normal`; to be called under `jit`.

  The function is called twice: first to collect the keys and kinds of its
  draws, which are zeros then, and again with the draws.
  """
  kinds: dict[_Kind, list] = {}  # of each the keys

  def ask(key, kind):
    kinds.setdefault(kind, []).append(key)
    return jnp.zeros(kind.shape, kind.dtype)

  with _answered(ask):
    function()
  drawn = {
    kind: iter(jax.lax.map(kind.draw, jnp.stack(keys)))
    for kind, keys in kinds.items()
  }
  with _answered(lambda _, kind: next(drawn[kind])):
    return function()
