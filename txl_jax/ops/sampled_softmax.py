"""An estimate of the softmax from a few words (Bengio and Senecal 2003).

A pure function on plain arrays, for training only; the words are sorted by
frequency. Shapes: N tokens, D model width, V vocabulary.
"""

import jax
import jax.numpy as jnp


def nll(
  h: jax.Array,
  targets: jax.Array,
  weights: jax.Array,
  bias: jax.Array,
  samples: int,
  key: jax.Array,
) -> jax.Array:
  """An estimate of -log p(target) from a few words instead of all V.

  n words are drawn with replacement, the same ones for all tokens, from the
  log-uniform distribution, which is close to that of words sorted by frequency:

    q(k) = log((k + 2) / (k + 1)) / log(V + 1)

  Each one that is not the target adds exp(score) / (n q). Their sum is an
  unbiased estimate of the sum over all other words, and the result tends to the
  exact nll as n grows (importance sampling, Bengio and Senecal 2003).

  h is [N, D], in the dtype of the products; targets are int32 [N], weights
  [V, D], bias [V], and n is `samples`. The result is [N], float32 or wider, 0
  at a target of -1, which is not scored.
  """
  V = len(weights)
  wide = jnp.promote_types(h.dtype, jnp.float32)
  u = jax.random.uniform(key, [samples], wide)
  drawn = jnp.exp(u * jnp.log(V + 1.0)).astype(jnp.int32) - 1
  drawn = jnp.clip(drawn, 0, V - 1)
  q = jnp.log1p(1 / (drawn + 1).astype(wide)) / jnp.log(V + 1.0)
  at = jnp.maximum(targets, 0)

  own = jnp.sum(h * weights[at].astype(h.dtype), axis=-1, dtype=wide)
  own += bias[at]  # [N]
  table = weights[drawn].astype(h.dtype)
  others = jnp.einsum('nd,sd->ns', h, table, preferred_element_type=wide)
  others += bias[drawn] - jnp.log(samples * q)  # [N, samples]
  others = jnp.where(drawn == at[:, None], jnp.finfo(wide).min, others)
  total = jnp.logaddexp(own, jax.nn.logsumexp(others, axis=-1))
  return jnp.where(targets >= 0, total - own, 0)
