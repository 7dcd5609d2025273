"""Attention with memory in Haiku: a language model of one layer.

It learns that every text repeats itself after ten tokens, although it reads
segments of four: it sees earlier tokens only through its memory.

  pip install -e . && pip install dm-haiku  # in a clone
  python examples/attention_in_haiku.py
"""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from txl_jax import attention

# B rows, T segment, M memory, S = M + T keys, H heads, K and D widths.
V, D, H, K, T, M = 8, 32, 2, 16, 4, 12


def weight(name, *shape):
  """A parameter of a shape."""
  init = hk.initializers.RandomNormal(0.2)
  return hk.get_parameter(name, shape, init=init)


class Layer(hk.Module):
  """Relative attention with memory, an argument and a return value."""

  def __call__(self, x, memory, filled):
    """x [B, T, D], memory [B, M, D], whose last filled [B] states are real."""
    states = jnp.concatenate([jax.lax.stop_gradient(memory), x], axis=1)
    q = jnp.einsum('btd,dhk->bthk', x, weight('q', D, H, K))
    k = jnp.einsum('bsd,dhk->bshk', states, weight('k', D, H, K))
    v = jnp.einsum('bsd,dhk->bshk', states, weight('v', D, H, K))
    R = attention.sinusoid(attention.distances(states.shape[1]), D)
    r = jnp.einsum('sd,dhk->shk', R, weight('r', D, H, K))
    mask = attention.visibility(x.shape[1], M, filled)
    biases = weight('u', H, K), weight('v_bias', H, K)
    out = attention.relative_attention(q, k, v, r, *biases, mask)
    y = x + jnp.einsum('bthk,hkd->btd', out, weight('o', H, K, D))
    # The memory of the next segment: the inputs of this layer.
    filled = jnp.minimum(filled + x.shape[1], M)
    return y, attention.update_memory(memory, x), filled


class Model(hk.Module):
  """Embedding, one layer, and a softmax tied to the embedding."""

  def __call__(self, tokens, memory, filled):
    """Log-probabilities [B, T, V] of the next tokens, and the memory."""
    embed = weight('embed', V, D)
    y, memory, filled = Layer(name='layer')(embed[tokens], memory, filled)
    return jax.nn.log_softmax(y @ embed.T), memory, filled


forward = hk.without_apply_rng(
  hk.transform(lambda *arguments: Model(name='model')(*arguments))
)


def from_weights(weights):
  """Parameters from the weights of `attention_in_jax.init`."""
  of_layer = {name: x for name, x in weights.items() if name != 'embed'}
  return {'model': {'embed': weights['embed']}, 'model/layer': of_layer}


def score(params, tokens):
  """Nll [B, n - 1] of int tokens [B, n], read in segments of T."""
  B, n = tokens.shape
  memory, filled = jnp.zeros([B, M, D]), jnp.zeros([B], int)
  nll = []
  for at in range(0, n - 1, T):
    piece = tokens[:, at : at + T + 1]
    arguments = piece[:, :-1], memory, filled
    log_p, memory, filled = forward.apply(params, *arguments)
    at_target = jnp.take_along_axis(log_p, piece[:, 1:, None], axis=-1)
    nll.append(-at_target[..., 0])
  return jnp.concatenate(nll, axis=1)


def texts(key, B=16, n=41):
  """Random tokens [B, n] that repeat after ten."""
  return jnp.tile(jax.random.randint(key, (B, 10), 0, V), 5)[:, :n]


def main():
  """Trains for 101 steps; the final loss is far below ln 8 = 2.08."""
  tx = optax.adam(1e-2)
  empty = jnp.zeros([1, M, D]), jnp.zeros([1], int)
  params = forward.init(jax.random.key(0), jnp.zeros([1, T], int), *empty)
  opt_state = tx.init(params)

  @jax.jit
  def step(params, opt_state, key):
    def loss(params):
      return jnp.mean(score(params, texts(key))[:, 10:])

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, value

  for n in range(101):
    key = jax.random.fold_in(jax.random.key(1), n)
    params, opt_state, value = step(params, opt_state, key)
    if n % 50 == 0:
      print(f'step {n}: {value:.3f} nats per token')


if __name__ == '__main__':
  main()
