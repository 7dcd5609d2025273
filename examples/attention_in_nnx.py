"""Attention with memory in Flax NNX: a language model of one layer.

It learns that every text repeats itself after ten tokens, although it reads
segments of four: it sees earlier tokens only through its memory.

  pip install -e .  # in a clone
  python examples/attention_in_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from txl_jax import attention

# B rows, T segment, M memory, S = M + T keys, H heads, K and D widths.
V, D, H, K, T, M = 8, 32, 2, 16, 4, 12


def weight(rngs, *shape):
  """A parameter of a shape."""
  return nnx.Param(0.2 * jax.random.normal(rngs.params(), shape))


class Layer(nnx.Module):
  """Relative attention with memory, an argument and a return value."""

  def __init__(self, rngs):
    self.q, self.k, self.v, self.r = (weight(rngs, D, H, K) for _ in range(4))
    self.u, self.v_bias = weight(rngs, H, K), weight(rngs, H, K)
    self.o = weight(rngs, H, K, D)

  def __call__(self, x, memory, filled):
    """x [B, T, D], memory [B, M, D], whose last filled [B] states are real."""
    states = jnp.concatenate([jax.lax.stop_gradient(memory), x], axis=1)
    q = jnp.einsum('btd,dhk->bthk', x, self.q[...])
    k = jnp.einsum('bsd,dhk->bshk', states, self.k[...])
    v = jnp.einsum('bsd,dhk->bshk', states, self.v[...])
    R = attention.sinusoid(attention.distances(states.shape[1]), D)
    r = jnp.einsum('sd,dhk->shk', R, self.r[...])
    mask = attention.visibility(x.shape[1], M, filled)
    biases = self.u[...], self.v_bias[...]
    out = attention.relative_attention(q, k, v, r, *biases, mask)
    y = x + jnp.einsum('bthk,hkd->btd', out, self.o[...])
    # The memory of the next segment: the inputs of this layer.
    filled = jnp.minimum(filled + x.shape[1], M)
    return y, attention.update_memory(memory, x), filled


class Model(nnx.Module):
  """Embedding, one layer, and a softmax tied to the embedding."""

  def __init__(self, rngs):
    self.embed, self.layer = weight(rngs, V, D), Layer(rngs)

  def __call__(self, tokens, memory, filled):
    """Log-probabilities [B, T, V] of the next tokens, and the memory."""
    embed = self.embed[...]
    y, memory, filled = self.layer(embed[tokens], memory, filled)
    return jax.nn.log_softmax(y @ embed.T), memory, filled


def from_weights(weights):
  """The model with the weights of `attention_in_jax.init`."""
  model = Model(nnx.Rngs(0))
  for name, x in weights.items():
    holder = model if name == 'embed' else model.layer
    setattr(holder, name, nnx.Param(x))
  return model


def score(model, tokens):
  """Nll [B, n - 1] of int tokens [B, n], read in segments of T."""
  B, n = tokens.shape
  memory, filled = jnp.zeros([B, M, D]), jnp.zeros([B], int)
  nll = []
  for at in range(0, n - 1, T):
    piece = tokens[:, at : at + T + 1]
    log_p, memory, filled = model(piece[:, :-1], memory, filled)
    at_target = jnp.take_along_axis(log_p, piece[:, 1:, None], axis=-1)
    nll.append(-at_target[..., 0])
  return jnp.concatenate(nll, axis=1)


def texts(key, B=16, n=41):
  """Random tokens [B, n] that repeat after ten."""
  return jnp.tile(jax.random.randint(key, (B, 10), 0, V), 5)[:, :n]


def main():
  """Trains for 101 steps; the final loss is far below ln 8 = 2.08."""
  model = Model(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

  @nnx.jit
  def step(model, optimizer, key):
    def loss(model):
      return jnp.mean(score(model, texts(key))[:, 10:])

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value

  for n in range(101):
    key = jax.random.fold_in(jax.random.key(1), n)
    value = step(model, optimizer, key)
    if n % 50 == 0:
      print(f'step {n}: {value:.3f} nats per token')


if __name__ == '__main__':
  main()
