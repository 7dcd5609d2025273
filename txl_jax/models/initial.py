"""Initial weights: normal draws, those of arrays of one shape in one loop.

The random bits of every array are compiled anew, which for the layers of a deep
model takes longer than anything else before its first step. In a loop over the
keys of all arrays of one shape they are compiled once.
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
class _Kind:
  """N(mean, std^2) in arrays of one shape."""

  std: float
  mean: float
  shape: tuple[int, ...]
  dtype: Any

  def draw(self, key):
    x = nn.initializers.normal(self.std)(key, self.shape, self.dtype)
    return self.mean + x if self.mean else x


_source = contextvars.ContextVar[Callable[[_Kind], jax.Array] | None](
  'source', default=None
)


def normal(std: float, mean: float = 0.0) -> Callable[..., jax.Array]:
  """The Flax initialiser N(mean, std^2)."""

  def init(key, shape, dtype=jnp.float32):
    kind = _Kind(std, mean, tuple(shape), jnp.dtype(dtype))
    source = _source.get()
    return source(kind) if source else kind.draw(key)

  return init


@contextlib.contextmanager
def _drawn_from(source: Callable[[_Kind], jax.Array]) -> Iterator[None]:
  """Within it, initialisers return what the source has for their kind."""
  token = _source.set(source)
  try:
    yield
  finally:
    _source.reset(token)


def together(function: Callable[[], Any], key: jax.Array) -> Any:
  """The result of a function that draws by `normal`; to be called under `jit`.

  The function is called twice: for the kinds of its draws, in their order, and
  then with the draws. The nth has the nth key split from `key`.
  """
  kinds: list[_Kind] = []

  def note(kind):
    kinds.append(kind)
    return jnp.zeros(kind.shape, kind.dtype)

  with _drawn_from(note):
    jax.eval_shape(function)
  keys = jax.random.split(key, len(kinds))
  drawn = {}
  for kind in dict.fromkeys(kinds):
    places = [n for n, other in enumerate(kinds) if other == kind]
    drawn[kind] = iter(jax.lax.map(kind.draw, keys[jnp.array(places)]))
  with _drawn_from(lambda kind: next(drawn[kind])):
    return function()
