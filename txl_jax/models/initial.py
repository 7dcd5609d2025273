"""Weight initialisation; all arrays of one shape are drawn in a single loop.

XLA compiles the random number generator anew for every array drawn, which for a
deep model takes longer than anything else before the first step. A loop over
the keys of all arrays of one shape compiles it once.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class _Distribution:
  """N(mean, std^2) for arrays of one shape and dtype."""

  std: float
  mean: float
  shape: tuple[int, ...]
  dtype: Any

  def draw(self, key: jax.Array) -> jax.Array:
    x = nn.initializers.normal(self.std)(key, self.shape, self.dtype)
    return self.mean + x if self.mean else x


_Sampler = Callable[[_Distribution], jax.Array]
_sampler = contextvars.ContextVar[_Sampler | None]('sampler', default=None)


def normal(std: float, mean: float = 0.0) -> Callable[..., jax.Array]:
  """A Flax initialiser that draws from N(mean, std^2)."""

  def init(key, shape, dtype=jnp.float32):
    distribution = _Distribution(std, mean, tuple(shape), jnp.dtype(dtype))
    sampler = _sampler.get()
    return sampler(distribution) if sampler else distribution.draw(key)

  return init


@contextlib.contextmanager
def _drawn_from(sampler: _Sampler) -> Iterator[None]:
  """Within this context, initialisers return sampler(distribution)."""
  token = _sampler.set(sampler)
  try:
    yield
  finally:
    _sampler.reset(token)


def together(function: Callable[[], Any], key: jax.Array) -> Any:
  """Calls a function whose draws are from `normal`; must run under `jit`.

  The function is called twice: first traced, to list its draws in order, then
  with their values. The nth draw uses the nth key split from `key`.
  """
  draws: list[_Distribution] = []

  def record(distribution):
    draws.append(distribution)
    return jnp.zeros(distribution.shape, distribution.dtype)

  with _drawn_from(record):
    jax.eval_shape(function)
  keys = jax.random.split(key, len(draws))
  values = {}
  for distribution in dict.fromkeys(draws):
    indices = [n for n, draw in enumerate(draws) if draw == distribution]
    drawn = jax.lax.map(distribution.draw, keys[jnp.array(indices)])
    values[distribution] = iter(drawn)
  with _drawn_from(lambda distribution: next(values[distribution])):
    return function()
