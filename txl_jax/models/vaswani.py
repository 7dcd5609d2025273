"""A Transformer without memory whose inputs have sinusoids added.

Those of Vaswani et al. 2017, as the ablations of Dai et al. 2019 have them.

Shapes: B batch, T segment, D model width.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import transformer, transformer_config
from txl_jax.settings import key


@dataclasses.dataclass(frozen=True)
class Config(transformer_config.Absolute):
  """The section `model` of a config for `Vaswani`."""

  name: str = key(
    'vaswani',
    'The model.',
    choices={'vaswani': 'absolute sinusoids (Vaswani et al. 2017)'},
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.d_model % 2:
      yield 'd_model', 'even numbers'
    yield from super().problems()


class Vaswani(transformer.Transformer):
  """Absolute positions, see `models.base` and `Config`.

  Positions count down within a row of n real tokens: token i, before dropout,
  is sqrt(D) embedding_i + sinusoid(n - 1 - i).
  """

  Config = Config

  def inputs(
    self, tokens: jax.Array, lengths: jax.Array | None, train: bool
  ) -> jax.Array:
    """See `transformer.Transformer`."""
    c, left = self.config, transformer.tokens_left(tokens.shape[1], lengths)
    wide = jnp.promote_types(c.dtype, jnp.float32)
    table = attention.sinusoid(left.reshape(-1).astype(wide), c.d_model)
    table = table.reshape(*left.shape, c.d_model).astype(c.dtype)
    return self.embed(tokens, train=train, positions=table)
