"""--mode=summary: what a config would be; nothing is allocated.

Shapes: B batch, E context, T segment.
"""

import collections
import math
import re

import jax

from txl_jax.data.corpora import preparation
from txl_jax.experiment.job import Job
from txl_jax.experiment.sections import Config
from txl_jax.ops import kernels
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.program import target_device
from txl_jax.program.errors import UserError
from txl_jax.training import cost
from txl_jax.training import plan as plan_lib
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

# What a device holds between two steps: fields of the state.
_HELD = {
  'params': 'parameters',
  'opt_state': 'optimiser',
  'average': 'average',
  'memory': 'memory',
}


def run(job: Job) -> None:
  """Prints the table of the config."""
  config = job.config
  if config.train.init_from:
    vocab_size = len(job.pretrained().vocabulary)
  else:
    vocab_size = preparation.vocab_size(config.data)
  lines = table(config, vocab_size)
  if config.train.epochs or config.optim.average_start_epoch:
    try:
      text = plan_lib.make_streams(config, job.corpus())
      lines += plan_lib.summary_lines(config, text)
    except UserError as e:
      lines.append(f'epochs are not known in steps: {e}')
  processes.print_on_main(*lines)


def table(config: Config, vocab_size: int) -> list[str]:
  """The lines of the summary, among them 'parameters: N'.

  How many of its chunks a tail of an adaptive softmax visits depends on the
  text: one of each counts here. UserError if the batch cannot be divided over
  the mesh.
  """
  train = config.train
  B, T, E = train.batch_size, train.segment_len, train.context
  mesh = mesh_lib.abstract_mesh(config.mesh)
  step_lib.check_rows(config, placement.row_parts(mesh))
  built = step_lib.build(config, vocab_size, None)
  model, state = built.model, built.abstract
  placed = state_lib.shardings(state, mesh, model)
  lines = _modules(state.params, placed.params if mesh.size > 1 else None)
  leaves, inference = jax.tree.leaves, model.inference_params(state.params)
  every = sum(x.size for x in leaves(state.params))
  used = sum(x.size for x in leaves(inference))
  lines.append(f'parameters: {every}')
  if used != every:
    lines.append(f'parameters at inference: {used}')
  rows = B // train.accumulate
  forward, backward = cost.of_rows(model, rows, T, E)
  scored, trained = (n / rows / T / 1e6 for n in (forward, forward + backward))
  memory = sum(x.size * x.dtype.itemsize for x in leaves(state.memory))
  lines += [
    f'FLOPs per token: {scored:,.1f} M scored, {trained:,.1f} M trained '
    f'(products, T {T}{f", context {E}" if E else ""})',
    *_products(model.config, mesh),
    *_attention(model.config, E + T),
    f'memory state: {_size(memory)}, {_size(memory / B)} a row (B {B})',
  ]
  if mesh.size > 1:
    sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
    lines.append(f'mesh: {sizes}: {mesh.size} devices')
  state = placement.with_shardings(state, placed)
  held = {
    name: _on_a_device(getattr(state, part)) for part, name in _HELD.items()
  }
  parts = ', '.join(f'{name} {_size(n)}' for name, n in held.items() if n)
  of_each = 'each device' if mesh.size > 1 else 'the device'
  return [*lines, f'between steps {of_each} holds {parts}']


def _products(own, mesh):
  """The dtype of products where the compute dtype is bfloat16; [] elsewhere."""
  if own.dtype != 'bfloat16':
    return []
  with jax.sharding.use_abstract_mesh(mesh):
    narrow = own.operand_dtype == 'bfloat16'
  if narrow:
    return ['products: bfloat16, summed in float32']
  return ['products: float32, which is faster than bfloat16 here']


def _attention(own, T):
  """What computes attention in training here; [] of others."""
  if not hasattr(own, 'attention'):
    return []
  if own.attention != 'auto':
    return [f'attention: {own.attention}, as model.attention says']
  sizes = own.dtype, T, own.mem_len, own.d_head, own.dropatt
  name, why = kernels.choose(kernels.Case(target_device.device(), *sizes))
  return [f'attention: {name} ({why})']


def _modules(params, placed):
  """The table of parameters: equal layers in one row, then the sums.

  `placed` is a pytree of their shardings, or None.
  """
  times, total, axes = collections.Counter(), collections.Counter(), {}
  flat = jax.tree_util.tree_leaves_with_path(params)
  specs = jax.tree.leaves(placed) if placed else [None] * len(flat)
  for (path, x), at in zip(flat, specs, strict=True):
    name = re.sub(r'_\d+', '_*', placement.path_name(path))
    times[name, x.shape] += 1
    total[name.split('/')[0]] += x.size
    axes[name, x.shape] = f'  {_divided(at.spec)}' if at else ''
  row, over = '{:<40} {:<24} {:>14}{}'.format, '  divided over'
  lines = [row('module', 'shape', 'parameters', over if placed else '')]
  for (name, shape), n in times.items():
    shown = f'{n} x {shape}' if n > 1 else str(shape)
    count = f'{n * math.prod(shape):,}'
    lines.append(row(name, shown, count, axes[name, shape]))
  for name, n in sorted(total.items()):
    lines.append(row(f'{name} (all)', '', f'{n:,}', ''))
  return lines


def _divided(spec):
  """A PartitionSpec as people read it: (fsdp, tensor x fsdp, -)."""

  def name(axes):
    return axes if isinstance(axes, str) else ' x '.join(axes or '-')

  return f'({", ".join(map(name, spec))})' if any(spec) else '-'


def _on_a_device(tree):
  """Bytes of the shapes of arrays, which have shardings, on one device."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


def _size(n):
  """Bytes as people say them; 1 GB is 1e9."""
  return f'{n / 1e9:,.2f} GB' if n >= 1e8 else f'{n / 1e6:,.2f} MB'
