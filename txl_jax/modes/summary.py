"""What a config would be: parameters, arithmetic, memory; nothing allocated.

Shapes: B batch, T segment, M memory, N layers.
"""

import collections
import math
import re

import jax

from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import cost
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib


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
  built = step_lib.build(config, vocab_size, None)
  model, state = built.model, built.abstract
  size = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
  mesh = mesh_lib.abstract_mesh(config.mesh)
  placed = state_lib.shardings(state, mesh)
  lines = _modules(state.params, placed.params if mesh.size > 1 else None)
  rows = B // train.accumulate
  forward, backward, saved = cost.of_rows(model, state, rows, T)
  tokens = rows * T
  # How many of its chunks a tail visits depends on the text.
  tails = ', one chunk of tokens in each tail' if config.model.cutoffs else ''
  memory = cost.nbytes(state.memory)
  gradients = cost.nbytes(state.params)
  step = (
    cost.nbytes(state) + gradients * (1 if train.accumulate == 1 else 2) + saved
  )
  average = cost.nbytes(state.average)
  return [
    *lines,
    f'parameters: {size(state.params)}',
    f'FLOPs per token: {forward / tokens / 1e6:,.1f} M scored, '
    f'{(forward + backward) / tokens / 1e6:,.1f} M trained '
    f'(matrix products, T {T}, M {config.model.mem_len}{tails})',
    f'memory state: {_mib(memory)}, {_mib(memory / B)} a row (B {B}, '
    f'M {config.model.mem_len})',
    f'train step: about {_mib(step)} = parameters {_mib(gradients)}, '
    f'optimiser {_mib(cost.nbytes(state.opt_state))}, '
    f'{f"average {_mib(average)}, " if average else ""}memory {_mib(memory)}, '
    f'gradients, and {_mib(saved)} kept for the backward pass',
    *(_on_a_mesh(state, placed, mesh) if mesh.size > 1 else []),
  ]


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
    name = re.sub(r'_\d+', '_*', mesh_lib.path_name(path))
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
    mesh_lib.bytes_per_device(getattr(state, what), getattr(placed, what))
  )
  sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  average = f'average {on_one("average")}, ' if state.average else ''
  return [
    f'mesh: {sizes}: {mesh.size} devices',
    f'each device: parameters {on_one("params")}, gradients as much, '
    f'optimiser {on_one("opt_state")}, {average}memory {on_one("memory")}',
  ]


def _mib(n):
  return f'{n / 2**20:,.1f} MiB'
