"""A small language model of another family, which the package does not know.

Two causal convolutions (kernel k, widths D and C), whose memory is the last
k - 1 inputs of each: two arrays of different widths, rows first. In the first
half of training a head of its own predicts from the first layer too.

Shapes: B batch, T segment, D model width, C inner width, k kernel.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from txl_jax import attention
from txl_jax.models import base, config
from txl_jax.program.settings import key


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
  name: str = key('convolution', 'The model.', choices=('convolution',))
  d_model: int = key(12, 'D.', at_least=1)
  width: int = key(16, 'C.', at_least=1)
  kernel: int = key(3, 'k.', at_least=2)
  aux_weight: float = key(0.3, 'Of the loss of the first layer.', at_least=0)


class Convolution(nn.Module):
  features: int
  kernel: int

  @nn.compact
  def __call__(self, x):
    """[B, T + k - 1, C] -> [B, T, features]."""
    shape = (self.kernel, x.shape[-1], self.features)
    kernel = self.param('kernel', nn.initializers.lecun_normal(), shape)
    bias = self.param('bias', nn.initializers.zeros, (self.features,))
    y = jax.lax.conv_general_dilated(
      x, kernel, (1,), 'VALID', dimension_numbers=('NTC', 'TIO', 'NTC')
    )
    return y + bias


class CausalConvolution(base.LanguageModel):
  Config = Config
  SHARDING = (
    *base.LanguageModel.SHARDING,
    (r'first/kernel', (None, None, 'tensor')),
    (r'first/bias', ('tensor',)),
    (r'second/kernel', (None, 'tensor', 'fsdp')),
    (r'second/bias', ()),
    (r'head/(kernel|bias)', ()),
  )

  def setup(self):
    super().setup()
    c = self.config
    self.first = Convolution(c.width, c.kernel)
    self.second = Convolution(c.d_model, c.kernel)
    self.head = nn.Dense(self.vocab_size)

  def init_memory(self, batch_size):
    c = self.config
    return {
      'first': jnp.zeros([batch_size, c.kernel - 1, c.d_model]),
      'second': jnp.zeros([batch_size, c.kernel - 1, c.width]),
    }

  def row_axes(self):
    return {'first': 0, 'second': 0}

  def inference_params(self, params):
    return {name: x for name, x in params.items() if name != 'head'}

  def _both(self, tokens, memory, lengths, train):
    """The states after each layer, and the new memory."""
    h = self.vocabulary.embed(tokens, train=train)
    new = {'first': attention.update_memory(memory['first'], h, lengths)}
    inner = jnp.tanh(self.first(jnp.concatenate([memory['first'], h], axis=1)))
    new['second'] = attention.update_memory(memory['second'], inner, lengths)
    both = jnp.concatenate([memory['second'], inner], axis=1)
    return inner, h + self.second(both), new

  def states(self, tokens, memory, *, lengths=None, train=False):
    _, h, memory = self._both(tokens, memory, lengths, train)
    return h, memory

  def __call__(
    self, tokens, targets, memory, *, train, lengths=None, progress=None
  ):
    out = super().__call__(
      tokens, targets, memory, train=train, lengths=lengths
    )
    if not train:
      return out
    inner, _, _ = self._both(tokens, memory, lengths, train)
    scores = jax.nn.log_softmax(self.head(inner))
    at = jnp.maximum(targets, 0)[..., None]
    nll = -jnp.take_along_axis(scores, at, axis=-1)[..., 0]
    loss = jnp.sum(jnp.where(targets >= 0, nll, 0))
    on = jnp.where(0.0 if progress is None else progress < 0.5, 1.0, 0.0)
    more = on * self.config.aux_weight * loss
    return out.replace(aux=out.aux.at[0].add(more))
