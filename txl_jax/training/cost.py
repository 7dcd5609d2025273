"""What a training step costs: the FLOPs of its products.

XLA's `cost_analysis` counts a loop once: of a scan of ten products it said the
FLOPs of one (jax 0.10.2).

Shapes: B batch, E context, T segment.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax import models
from txl_jax.models import base
from txl_jax.training.options import Config


class Cost(NamedTuple):
  """FLOPs of the products of a step."""

  forward: int
  backward: int


def flops_per_token(config: Config, vocab_size: int) -> float:
  """FLOPs of training on a scored token; what is done twice counts once."""
  rows = config.train.batch_size // config.train.accumulate
  T = config.train.segment_len
  model = models.build(config.model, vocab_size).with_keys(remat='none')
  cost = of_rows(model, rows, T, config.train.context)
  scored = T - T // 2 if config.train.loss == 'half' else T
  return (cost.forward + cost.backward) / (rows * scored)


def of_rows(model: base.LanguageModel, B: int, T: int, E: int = 0) -> Cost:
  """The Cost of B rows of T tokens after E of context.

  FLOPs are those of plain operations: what a kernel leaves out, or computes
  again, changes nothing.
  """
  one, arguments = loss(model.with_keys(attention='xla'), B, T, E)
  forward = flops(jax.make_jaxpr(one)(*arguments).jaxpr)
  both = flops(jax.make_jaxpr(jax.value_and_grad(one))(*arguments).jaxpr)
  return Cost(forward, both - forward)


def loss(model: base.LanguageModel, B: int, T: int, E: int = 0) -> Any:
  """The loss in training of B rows of E + T tokens, and its arguments' shapes.

  These are the parameters, int32 tokens [B, E + T] and the memory.
  """
  tokens = jax.ShapeDtypeStruct((B, E + T), jnp.int32)
  memory = jax.eval_shape(functools.partial(model.init_memory, B))
  key = jax.random.key(0)
  params = base.param_shapes(model)
  more: Any = dict(train=True, progress=jnp.float32(0), rngs={'dropout': key})
  if E:
    more['context'] = jnp.full([B], E)

  def of_rows(params, tokens, memory):
    segment = tokens, tokens[:, E:], memory
    out: Any = model.apply({'params': params}, *segment, **more)
    return out.nll.sum() + out.aux.sum()

  return of_rows, (params, tokens, memory)


def flops(jaxpr: Any) -> int:
  """Multiplications and additions of the products of a jaxpr.

  Of matrix products and convolutions: 2 x the numbers of the output x those
  that each of them sums, times the iterations of the scans around it.
  """
  total = 0
  for eqn in jaxpr.eqns:
    total += _of_product(eqn)
    times = eqn.params['length'] if eqn.primitive.name == 'scan' else 1
    # Of the branches of a condition one is run.
    every = max if eqn.primitive.name == 'cond' else sum
    total += times * every([*map(flops, _inside(eqn)), 0])
  return total


def _inside(eqn):
  """The jaxprs that an equation of a jaxpr computes with."""
  for value in eqn.params.values():
    for x in jax.tree.leaves(value):
      x = getattr(x, 'jaxpr', x)  # open a ClosedJaxpr
      if hasattr(x, 'eqns'):
        yield x


def _of_product(eqn):
  """FLOPs of an equation, 0 where it is no product."""
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
