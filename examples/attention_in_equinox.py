"""Attention with memory in Equinox: a language model of one layer.

It learns that every text repeats itself after ten tokens, although it reads
segments of four: it sees earlier tokens only through its memory.

  pip install -e . && pip install equinox  # in a clone
  python examples/attention_in_equinox.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from txl_jax import attention

# B rows, T segment, M memory, S = M + T keys, H heads, K and D widths.
V, D, H, K, T, M = 8, 32, 2, 16, 4, 12


class Layer(eqx.Module):
  """Relative attention with memory, an argument and a return value."""

  q: jax.Array
  k: jax.Array
  v: jax.Array
  r: jax.Array
  u: jax.Array
  v_bias: jax.Array
  o: jax.Array

  def __init__(self, key):
    shapes = [(D, H, K)] * 4 + [(H, K)] * 2 + [(H, K, D)]
    keys = jax.random.split(key, len(shapes))
    made = [0.2 * jax.random.normal(*both) for both in zip(keys, shapes)]
    self.q, self.k, self.v, self.r, self.u, self.v_bias, self.o = made

  def __call__(self, x, memory, filled):
    """x [B, T, D], memory [B, M, D], whose last filled [B] states are real."""
    states = jnp.concatenate([jax.lax.stop_gradient(memory), x], axis=1)
    q = jnp.einsum('btd,dhk->bthk', x, self.q)
    k = jnp.einsum('bsd,dhk->bshk', states, self.k)
    v = jnp.einsum('bsd,dhk->bshk', states, self.v)
    R = attention.sinusoid(attention.distances(states.shape[1]), D)
    r = jnp.einsum('sd,dhk->shk', R, self.r)
    mask = attention.visibility(x.shape[1], M, filled)
    biases = self.u, self.v_bias
    out = attention.relative_attention(q, k, v, r, *biases, mask)
    y = x + jnp.einsum('bthk,hkd->btd', out, self.o)
    # The memory of the next segment: the inputs of this layer.
    filled = jnp.minimum(filled + x.shape[1], M)
    return y, attention.update_memory(memory, x), filled


class Model(eqx.Module):
  """Embedding, one layer, and a softmax tied to the embedding."""

  embed: jax.Array
  layer: Layer

  def __init__(self, key):
    first, second = jax.random.split(key)
    self.embed = 0.2 * jax.random.normal(first, (V, D))
    self.layer = Layer(second)

  def __call__(self, tokens, memory, filled):
    """Log-probabilities [B, T, V] of the next tokens, and the memory."""
    y, memory, filled = self.layer(self.embed[tokens], memory, filled)
    return jax.nn.log_softmax(y @ self.embed.T), memory, filled


def from_weights(weights):
  """The model with the weights of `attention_in_jax.init`."""
  made = Model(jax.random.key(0))
  made = eqx.tree_at(lambda m: m.embed, made, weights['embed'])
  names = [name for name in weights if name != 'embed']
  where = lambda m: [getattr(m.layer, name) for name in names]
  return eqx.tree_at(where, made, [weights[name] for name in names])


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
  model, tx = Model(jax.random.key(0)), optax.adam(1e-2)
  opt_state = tx.init(eqx.filter(model, eqx.is_array))

  @eqx.filter_jit
  def step(model, opt_state, key):
    def loss(model):
      return jnp.mean(score(model, texts(key))[:, 10:])

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, opt_state = tx.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, value

  for n in range(101):
    key = jax.random.fold_in(jax.random.key(1), n)
    model, opt_state, value = step(model, opt_state, key)
    if n % 50 == 0:
      print(f'step {n}: {value:.3f} nats per token')


if __name__ == '__main__':
  main()
