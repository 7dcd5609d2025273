"""FLOPs of the matrix products and convolutions of a training step.

Counted from the jaxpr, because XLA's `cost_analysis` counts a loop body once:
for a scan of ten products it returned the FLOPs of one (jax 0.10.2).

Shapes: B batch, E context, T segment.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax import models
from txl_jax.models import base
from txl_jax.training.train_config import Config


class Cost(NamedTuple):
  """FLOPs of the forward and backward passes."""

  forward: int
  backward: int


def flops_per_token(config: Config, vocab_size: int) -> float:
  """Training FLOPs per scored token; rematerialisation is not counted."""
  rows = config.train.batch_size // config.train.accumulate
  T = config.train.segment_len
  model = models.build(config.model, vocab_size).with_keys(remat='none')
  cost = of_rows(model, rows, T, config.train.context)
  scored = T - T // 2 if config.train.loss == 'half' else T
  return (cost.forward + cost.backward) / (rows * scored)


def of_rows(model: base.LanguageModel, B: int, T: int, E: int = 0) -> Cost:
  """The Cost of B rows of T tokens, each with E tokens of context.

  Attention is counted as in the plain implementation, whatever a fused kernel
  skips or recomputes. On a CPU that has one more column of distances, and no
  gradients of the memory's keys and values, which XLA drops elsewhere.
  """
  model = model.with_keys(attention='xla')
  tokens = jax.ShapeDtypeStruct((B, E + T), jnp.int32)
  memory = jax.eval_shape(functools.partial(model.init_memory, B))
  context: dict[str, Any] = {'context': jnp.full([B], E)} if E else {}

  def loss(params, tokens, memory):
    out: Any = model.apply(
      {'params': params},
      tokens,
      tokens[:, E:],
      memory,
      train=True,
      progress=jnp.float32(0),
      rngs={'dropout': jax.random.key(0)},
      **context,
    )
    return out.nll.sum() + out.aux.sum()

  shapes = base.param_shapes(model), tokens, memory
  forward = flops(jax.make_jaxpr(loss)(*shapes).jaxpr)
  both = flops(jax.make_jaxpr(jax.value_and_grad(loss))(*shapes).jaxpr)
  return Cost(forward, both - forward)


def flops(jaxpr: Any) -> int:
  """Multiplications and additions in the products of a jaxpr.

  A matrix product or convolution counts 2 x (output elements) x (terms summed
  per element), times the iterations of the enclosing scans and the steps of an
  enclosing kernel's grid.
  """
  total = 0
  for eqn in jaxpr.eqns:
    total += _of_product(eqn)
    times = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    if mapping := eqn.params.get('grid_mapping'):
      times = math.prod(mapping.grid)
    # Only one branch of a cond runs: count the most expensive one.
    combine = max if eqn.primitive.name == 'cond' else sum
    total += times * combine([*map(flops, _subjaxprs(eqn)), 0])
  return total


def _subjaxprs(eqn):
  """The jaxprs among the parameters of an equation."""
  for value in eqn.params.values():
    for x in jax.tree.leaves(value):
      x = getattr(x, 'jaxpr', x)  # open a ClosedJaxpr
      if hasattr(x, 'eqns'):
        yield x


def _of_product(eqn):
  """FLOPs of an equation; 0 if it is not a product."""
  dimensions = eqn.params.get('dimension_numbers')
  shapes = [x.aval.shape for x in eqn.invars]
  if eqn.primitive.name == 'dot_general':
    (contracted, _), _ = dimensions
    summed = math.prod(shapes[0][i] for i in contracted)
  elif eqn.primitive.name == 'conv_general_dilated':
    summed = math.prod(shapes[1]) // shapes[1][dimensions.rhs_spec[0]]
  else:
    return 0
  return 2 * math.prod(eqn.outvars[0].aval.shape) * summed
