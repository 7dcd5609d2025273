"""What a training step costs: FLOPs, and bytes kept for the backward pass.

Shapes: B batch, T segment.
"""

import functools
import math

import jax
import jax.numpy as jnp

from txl_jax import models
from txl_jax.training import optim
from txl_jax.training import state as state_lib


def flops_per_token(config, vocab_size):
  """What training on a token costs in matrix products; see `table`.

  What `model.remat` computes twice counts once.

  Args:
    config: ConfigDict.
    vocab_size: V.
  """
  rows = config.train.batch_size // config.train.accumulate
  T = config.train.segment_len
  model = models.build(config.model, vocab_size, remat='none')
  state = jax.eval_shape(
    lambda: state_lib.create(
      model, optim.optimiser(config.optim), rows, jax.random.key(0)
    )
  )
  forward, backward, _ = of_rows(model, state, rows, T)
  return (forward + backward) / (rows * T)


def nbytes(tree):
  """Bytes of the arrays of a pytree, or of their shapes."""
  return sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )


def of_rows(model, state, B, T):
  """FLOPs forward and backward, and bytes kept between, of B rows."""
  tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
  memory = jax.eval_shape(functools.partial(model.init_memory, B))

  def loss(params, tokens, memory):
    out = model.apply(
      {'params': params},
      tokens,
      tokens,
      memory,
      train=True,
      rngs={'dropout': jax.random.key(0)},
    )
    return out.nll.sum() + out.aux

  arguments = (state.params, tokens, memory)
  forward = flops(jax.make_jaxpr(loss)(*arguments).jaxpr)
  both = flops(jax.make_jaxpr(jax.value_and_grad(loss))(*arguments).jaxpr)
  # What jax.vjp returns holds the arrays that the backward pass will need,
  # the parameters among them.
  kept = jax.eval_shape(
    lambda params, *rest: jax.vjp(lambda p: loss(p, *rest), params)[1],
    *arguments,
  )
  return forward, both - forward, nbytes(kept) - nbytes(state.params)


def flops(jaxpr):
  """Multiplications and additions of the matrix products of a jaxpr.

  2 x the product of the output's shape x the contracted sizes, times the
  iterations of the scans around it.
  """
  total = 0
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'dot_general':
      (contracted, _), _ = eqn.params['dimension_numbers']
      shape = eqn.invars[0].aval.shape
      inner = math.prod(shape[i] for i in contracted)
      total += 2 * math.prod(eqn.outvars[0].aval.shape) * inner
    times = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    inside = [x for v in eqn.params.values() for x in jax.tree.leaves(v)]
    inside = (getattr(x, 'jaxpr', x) for x in inside)  # open a ClosedJaxpr
    total += times * sum(flops(x) for x in inside if hasattr(x, 'eqns'))
  return total
