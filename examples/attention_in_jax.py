"""Attention with memory in bare JAX: a language model of one layer.

It learns that every text repeats itself after ten tokens, although it reads
segments of four: it sees earlier tokens only through its memory.

  pip install -e .  # in a clone
  python examples/attention_in_jax.py
"""

import jax
import jax.numpy as jnp
import optax

from txl_jax import attention

# B rows, T segment, M memory, S = M + T keys, H heads, K and D widths.
V, D, H, K, T, M = 8, 32, 2, 16, 4, 12

SHAPES = dict(
  embed=(V, D),
  q=(D, H, K),
  k=(D, H, K),
  v=(D, H, K),
  r=(D, H, K),
  u=(H, K),
  v_bias=(H, K),
  o=(H, K, D),
)


def init(key):
  """Weights: a dict of arrays."""
  keys = jax.random.split(key, len(SHAPES))
  return {
    name: 0.2 * jax.random.normal(k, shape)
    for k, (name, shape) in zip(keys, SHAPES.items())
  }


def from_weights(weights):
  """The model is just its weights."""
  return weights


def layer(w, x, memory, filled):
  """x [B, T, D], memory [B, M, D], whose last filled [B] states are real."""
  states = jnp.concatenate([jax.lax.stop_gradient(memory), x], axis=1)
  q = jnp.einsum('btd,dhk->bthk', x, w['q'])
  k = jnp.einsum('bsd,dhk->bshk', states, w['k'])
  v = jnp.einsum('bsd,dhk->bshk', states, w['v'])
  R = attention.sinusoid(attention.distances(states.shape[1]), D)
  r = jnp.einsum('sd,dhk->shk', R, w['r'])
  mask = attention.visibility(x.shape[1], M, filled)
  out = attention.relative_attention(q, k, v, r, w['u'], w['v_bias'], mask)
  y = x + jnp.einsum('bthk,hkd->btd', out, w['o'])
  # The memory of the next segment: the inputs of this layer.
  filled = jnp.minimum(filled + x.shape[1], M)
  return y, attention.update_memory(memory, x), filled


def score(w, tokens):
  """Nll [B, n - 1] of int tokens [B, n], read in segments of T."""
  B, n = tokens.shape
  memory, filled = jnp.zeros([B, M, D]), jnp.zeros([B], int)
  nll = []
  for at in range(0, n - 1, T):
    piece = tokens[:, at : at + T + 1]
    x = w['embed'][piece[:, :-1]]
    y, memory, filled = layer(w, x, memory, filled)
    log_p = jax.nn.log_softmax(y @ w['embed'].T)
    at_target = jnp.take_along_axis(log_p, piece[:, 1:, None], axis=-1)
    nll.append(-at_target[..., 0])
  return jnp.concatenate(nll, axis=1)


def texts(key, B=16, n=41):
  """Random tokens [B, n] that repeat after ten."""
  return jnp.tile(jax.random.randint(key, (B, 10), 0, V), 5)[:, :n]


def main():
  """Trains for 101 steps; the final loss is far below ln 8 = 2.08."""
  w, tx = init(jax.random.key(0)), optax.adam(1e-2)
  opt_state = tx.init(w)

  @jax.jit
  def step(w, opt_state, key):
    def loss(w):
      return jnp.mean(score(w, texts(key))[:, 10:])

    value, grads = jax.value_and_grad(loss)(w)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(w, updates), opt_state, value

  for n in range(101):
    key = jax.random.fold_in(jax.random.key(1), n)
    w, opt_state, value = step(w, opt_state, key)
    if n % 50 == 0:
      print(f'step {n}: {value:.3f} nats per token')


if __name__ == '__main__':
  main()
