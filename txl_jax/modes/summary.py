"""--mode=summary: what a config would be; nothing is allocated.

Shapes: B batch, T segment.
"""

import collections
import math
import re

import jax

from txl_jax import kernels, target
from txl_jax.corpora import preparation
from txl_jax.modes import ancestor
from txl_jax.modes.job import Job
from txl_jax.modes.sections import Config
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.training import cost
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

# What else a config may run on.
_OTHERS = (
  target.Device('gpu', 'NVIDIA H100'),
  target.Device('gpu', 'NVIDIA A100'),
  target.Device('tpu', 'TPU v5e'),
)


def run(job: Job) -> None:
  """Prints the table of the config."""
  config, lines = job.config, []
  if config.train.init_from:
    other = ancestor.find(config)
    vocab_size, lines = len(other.vocabulary), other.summary(config)
  else:
    vocab_size = preparation.vocab_size(config.data)
  processes.print_on_main(*table(config, vocab_size), *lines)


def table(config: Config, vocab_size: int) -> list[str]:
  """The lines of the summary, among them 'parameters: N'.

  How many of its chunks a tail of an adaptive softmax visits depends on the
  text: one of each counts here. UserError if the batch cannot be divided over
  the mesh.
  """
  train = config.train
  B, T = train.batch_size, train.segment_len
  mesh = mesh_lib.abstract_mesh(config.mesh)
  step_lib.check_rows(config, mesh_lib.row_parts(mesh))
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
  forward, backward, kept = cost.of_rows(model, rows, T)
  scored, trained = (n / rows / T / 1e6 for n in (forward, forward + backward))
  memory, gradients = cost.nbytes(state.memory), cost.nbytes(state.params)
  sums = 1 if train.accumulate == 1 else 2  # of gradients
  step = cost.nbytes(state) + sums * gradients + kept
  average = f'average {_mib(cost.nbytes(state.average))}, '
  lines += [
    f'FLOPs per token: {scored:,.1f} M scored, {trained:,.1f} M trained '
    f'(products, T {T})',
    *_attention(model.config, T),
    f'memory state: {_mib(memory)}, {_mib(memory / B)} a row (B {B})',
    f'train step: about {_mib(step)} = parameters {_mib(gradients)}, '
    f'optimiser {_mib(cost.nbytes(state.opt_state))}, '
    f'{average if state.average else ""}memory {_mib(memory)}, '
    f'gradients, and {_mib(kept)} kept for the backward pass',
  ]
  return lines + (_on_a_mesh(state, placed, mesh) if mesh.size > 1 else [])


def _attention(own, T):
  """What computes attention in training here, and elsewhere; [] of others."""
  if not hasattr(own, 'attention'):
    return []
  sizes = own.dtype, T, own.mem_len, own.d_head, own.dropatt
  if own.attention != 'auto':
    return [f'attention: {own.attention}, as model.attention says']

  def choose(device):
    return kernels.choose(kernels.Case(device, *sizes))

  here = target.device()
  name, why = choose(here)
  others = [d for d in _OTHERS if d.platform != here.platform]
  told = ', '.join(f'{d.kind}: {choose(d)[0]}' for d in others)
  return [f'attention: {name} ({why}); elsewhere: {told}']


def _modules(params, placed):
  """The table of parameters: equal layers in one row, then the sums.

  `placed` is a pytree of their shardings, or None.
  """
  times, total, axes = collections.Counter(), collections.Counter(), {}
  flat = jax.tree_util.tree_leaves_with_path(params)
  specs = jax.tree.leaves(placed) if placed else [None] * len(flat)
  for (path, x), at in zip(flat, specs, strict=True):
    name = re.sub(r'_\d+', '_*', mesh_lib.path_name(path))
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


def _on_a_mesh(state, placed, mesh):
  """What each device of a mesh holds between two steps."""

  def on_one(what):
    part = getattr(state, what), getattr(placed, what)
    return _mib(mesh_lib.bytes_per_device(*part))

  sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  average = f'average {on_one("average")}, ' if state.average else ''
  return [
    f'mesh: {sizes}: {mesh.size} devices',
    f'each device: parameters {on_one("params")}, gradients as much, '
    f'optimiser {on_one("opt_state")}, {average}memory {on_one("memory")}',
  ]


def _mib(n):
  return f'{n / 2**20:,.1f} MiB'
