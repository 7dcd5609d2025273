"""What a config would be: parameters, arithmetic, memory; nothing allocated.

Shapes: B batch, T segment, M memory, N layers.
"""

import collections
import functools
import math
import re

import jax
import jax.numpy as jnp

from txl_jax import models, optim, sharding, steps, train_state


def table(config, vocab_size):
  """The summary of a config.

  Args:
    config: ConfigDict.
    vocab_size: V.

  Returns:
    A list of lines, among them 'parameters: N'.
  """
  train = config.train
  B, T = train.batch_size, train.segment_len
  built = steps.build(config, vocab_size, None)
  model, state = built.model, built.abstract
  size = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
  mesh = sharding.abstract_mesh(config.mesh)
  placed = train_state.shardings(state, mesh)
  lines = _modules(state.params, placed.params if mesh.size > 1 else None)
  rows = B // train.accumulate
  forward, backward, saved = _costs(model, state, rows, T)
  tokens = rows * T
  # How many of its chunks a tail visits depends on the text.
  tails = ', one chunk of tokens in each tail' if config.model.cutoffs else ''
  memory = nbytes(state.memory)
  gradients = nbytes(state.params)
  step = nbytes(state) + gradients * (1 if train.accumulate == 1 else 2) + saved
  average = nbytes(state.average)
  return [
    *lines,
    f'parameters: {size(state.params)}',
    f'FLOPs per token: {forward / tokens / 1e6:,.1f} M scored, '
    f'{(forward + backward) / tokens / 1e6:,.1f} M trained '
    f'(matrix products, T {T}, M {config.model.mem_len}{tails})',
    f'memory state: {_mib(memory)}, {_mib(memory / B)} a row (B {B}, '
    f'M {config.model.mem_len})',
    f'train step: about {_mib(step)} = parameters {_mib(gradients)}, '
    f'optimiser {_mib(nbytes(state.opt_state))}, '
    f'{f"average {_mib(average)}, " if average else ""}memory {_mib(memory)}, '
    f'gradients, and {_mib(saved)} kept for the backward pass',
    *(_on_a_mesh(state, placed, mesh) if mesh.size > 1 else []),
  ]


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
    lambda: train_state.create(
      model, optim.optimiser(config.optim), rows, jax.random.key(0)
    )
  )
  forward, backward, _ = _costs(model, state, rows, T)
  return (forward + backward) / (rows * T)


def _modules(params, placed):
  """The table of parameters: equal layers in one row, then the sums.

  Args:
    params: pytree of shapes.
    placed: pytree of their shardings, or None.
  """
  times, total, axes = collections.Counter(), collections.Counter(), {}
  flat = jax.tree_util.tree_leaves_with_path(params)
  specs = jax.tree.leaves(placed) if placed else [None] * len(flat)
  for (path, x), at in zip(flat, specs, strict=True):
    name = re.sub(r'_\d+', '_*', sharding.path_name(path))
    times[name, x.shape] += 1
    total[name.split('/')[0]] += math.prod(x.shape)
    axes[name, x.shape] = f'  {_divided(at.spec)}' if at else ''
  row = '{:<40} {:<24} {:>14}{}'.format
  heading = '  divided over' if placed else ''
  lines = [row('module', 'shape', 'parameters', heading)]
  for (name, shape), n in times.items():
    shown = f'{n} x {shape}' if n > 1 else str(shape)
    count = f'{n * math.prod(shape):,}'
    lines.append(row(name, shown, count, axes[name, shape]))
  for name, n in sorted(total.items()):
    lines.append(row(f'{name} (all)', '', f'{n:,}', ''))
  return lines


def _divided(spec):
  """A PartitionSpec as people read it: (fsdp, tensor x fsdp, -)."""
  name = lambda axes: axes if isinstance(axes, str) else ' x '.join(axes or '-')
  return f'({", ".join(map(name, spec))})' if any(spec) else '-'


def _on_a_mesh(state, placed, mesh):
  """What each device of a mesh holds between two steps."""
  on_one = lambda what: _mib(
    sharding.bytes_per_device(getattr(state, what), getattr(placed, what))
  )
  sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  average = f'average {on_one("average")}, ' if state.average else ''
  return [
    f'mesh: {sizes}: {mesh.size} devices',
    f'each device: parameters {on_one("params")}, gradients as much, '
    f'optimiser {on_one("opt_state")}, {average}memory {on_one("memory")}',
  ]


def nbytes(tree):
  """Bytes of the arrays of a pytree, or of their shapes."""
  return sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree)
  )


def _mib(n):
  return f'{n / 2**20:,.1f} MiB'


def _costs(model, state, B, T):
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
