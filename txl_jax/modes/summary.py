"""--mode=summary: size and cost of a config, computed from shapes alone.

Shapes: B batch, E context, T segment.
"""

import collections
import math
import re
from typing import Any

import jax
from jax.sharding import AbstractMesh, PartitionSpec

from txl_jax.data import streams
from txl_jax.data.corpora import preparation
from txl_jax.experiment.job import Job
from txl_jax.experiment.sections import Config
from txl_jax.ops import kernels
from txl_jax.ops.kernels import proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.program import target_device
from txl_jax.program.errors import UserError
from txl_jax.training import cost
from txl_jax.training import plan as plan_lib
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib

# {field of the train state: its name in the line on device memory}.
_HELD = {
  'params': 'parameters',
  'opt_state': 'optimiser',
  'average': 'average',
  'memory': 'memory',
}
# {generation of TPUs: its name as a device}.
_TPUS = {
  'v3': 'TPU v3',
  'v4': 'TPU v4',
  'v5e': 'TPU v5 lite',
  'v5p': 'TPU v5',
  'v6e': 'TPU v6 lite',
}


def run(job: Job) -> None:
  """Prints the summary. UserError: see `table`."""
  config = job.config
  if config.train.init_from:
    from txl_jax.convert import pretrained

    vocab_size = len(pretrained.find(config).vocabulary)
  else:
    vocab_size = preparation.vocab_size(config.data)
  lines = table(config, vocab_size)
  if config.train.epochs or config.optim.average_start_epoch:
    try:
      text = plan_lib.make_streams(config, job.corpus())
      lines += plan_lib.summary_lines(config, text)
    except UserError as e:
      lines.append(f'the number of steps per epoch is unknown: {e}')
  processes.print_on_main(*lines)


def table(config: Config, vocab_size: int) -> list[str]:
  """The lines of the summary, among them 'parameters: N'.

  The FLOPs count one chunk for each tail of an adaptive softmax; the real
  number depends on the text. UserError if the mesh does not divide the batch.
  """
  train = config.train
  B, T, E = train.batch_size, train.segment_len, train.context
  mesh = mesh_lib.abstract_mesh(config.mesh)
  plan_lib.check_rows(config, placement.row_parts(mesh))
  built = step_lib.build(config, vocab_size, None)
  model, state = built.model, built.abstract
  placed = state_lib.shardings(state, mesh, model)
  several = mesh.size > 1
  lines = _modules(state.params, placed.params if several else None)
  leaves = jax.tree.leaves
  inference_params = model.inference_params
  total = sum(x.size for x in leaves(state.params))
  inference = sum(x.size for x in leaves(inference_params(state.params)))
  lines.append(f'parameters: {total}')
  if inference != total:
    lines.append(f'parameters at inference: {inference}')
  width = streams.widest(T, train.varlen_limit) if train.varlen else T
  rows = B // train.accumulate
  forward, backward = cost.of_rows(model, rows, T, E)
  scored, trained = (
    n / rows / T / 10**6 for n in (forward, forward + backward)
  )
  memory = sum(x.size * x.dtype.itemsize for x in leaves(state.memory))
  lines += [
    f'FLOPs per token: {scored:,.1f} M scored, {trained:,.1f} M trained '
    f'(matmuls and convolutions, T {T}{f", context {E}" if E else ""})',
    *_matmuls(model.config, mesh),
    *_attention(model.config, E + width),
    f'memory state: {_size(memory)}, {_size(memory / B)} a row (B {B})',
  ]
  if several:
    sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
    lines.append(f'mesh: {sizes}: {mesh.size} devices')
  state = placement.with_shardings(state, placed)
  held = {k: _device_bytes(getattr(state, k)) for k in _HELD}
  parts = ', '.join(f'{_HELD[k]} {_size(n)}' for k, n in held.items() if n)
  device = 'each device' if several else 'the device'
  return [*lines, f'between steps {device} holds {parts}']


def _matmuls(model_config: Any, mesh: AbstractMesh) -> list[str]:
  """A line on the dtype of matmuls, if model.dtype is bfloat16."""
  if model_config.dtype != 'bfloat16':
    return []
  with jax.sharding.use_abstract_mesh(mesh):
    operands = model_config.operand_dtype
  if operands == 'bfloat16':
    return ['matmuls: bfloat16, summed in float32']
  return ['matmuls: float32, which is faster than bfloat16 here']


def _attention(model_config: Any, T: int) -> list[str]:
  """Lines on the implementation of attention in training, if there is any."""
  if not hasattr(model_config, 'attention'):
    return []
  if model_config.attention != 'auto':
    return [f'attention: {model_config.attention} (set by model.attention)']
  case = proof.case(model_config, T)
  name, reason = kernels.choose(case)
  lines = [f'attention: {name} ({reason})']
  if case.device.platform == 'tpu':
    return lines
  chosen = collections.defaultdict(list)
  for generation, kind in _TPUS.items():
    device = target_device.Device('tpu', kind)
    chosen[kernels.choose(case._replace(device=device))[0]].append(generation)
  told = (f'{name} on {", ".join(where)}' for name, where in chosen.items())
  return [*lines, f'attention of TPUs: {"; ".join(told)}']


def _modules(params: Any, shardings: Any) -> list[str]:
  """The table of parameters: equal layers share a row; sums follow.

  `shardings` is a pytree like `params`, or None for no column of axes.
  """
  times = collections.Counter()
  total = collections.Counter()
  axes = {}
  flat = jax.tree_util.tree_leaves_with_path(params)
  places = jax.tree.leaves(shardings) if shardings else [None] * len(flat)
  for (path, x), sharding in zip(flat, places, strict=True):
    name = re.sub(r'_\d+', '_*', placement.path_name(path))
    times[name, x.shape] += 1
    total[name.split('/')[0]] += x.size
    axes[name, x.shape] = f'  {_axes(sharding.spec)}' if sharding else ''
  row = '{:<40} {:<24} {:>14}{}'.format
  over = '  sharded over'
  lines = [row('module', 'shape', 'parameters', over if shardings else '')]
  for (name, shape), n in times.items():
    shapes = f'{n} x {shape}' if n > 1 else str(shape)
    count = f'{n * math.prod(shape):,}'
    lines.append(row(name, shapes, count, axes[name, shape]))
  for name, n in sorted(total.items()):
    lines.append(row(f'{name} (all)', '', f'{n:,}', ''))
  return lines


def _axes(spec: PartitionSpec) -> str:
  """The mesh axes of a PartitionSpec as text, such as (fsdp, tensor, -)."""

  def name(axes):
    return axes if isinstance(axes, str) else ' x '.join(axes or '-')

  return f'({", ".join(map(name, spec))})' if any(spec) else '-'


def _device_bytes(tree: Any) -> int:
  """Bytes on one device of a pytree of shapes with shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


def _size(n: float) -> str:
  """A number of bytes as text; 1 GB is 10**9."""
  if n < 10**8:
    return f'{n / 10**6:,.2f} MB'
  return f'{n / 10**9:,.2f} GB'
