"""The training step, compiled for TPUs that are not there.

The TPU compiler (package libtpu) needs no TPU. From what it makes of a config
one reads whether it fits, what the devices send to each other, and from their
published speeds how far it could scale.
"""

import importlib.util
import os
import pathlib
import time

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from txl_jax import settings
from txl_jax.bench import program
from txl_jax.corpora import preparation
from txl_jax.errors import UserError
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import cost, profiling
from txl_jax.training import step as step_lib

# By device_kind: bytes of memory of a device of JAX, bytes a second that a
# chip sends over all its links, and devices of a chip. The speed is half the
# 'bidirectional ICI bandwidth per chip' of cloud.google.com/tpu/docs/v5e, v5p
# and v6e, and for v3 and v4 the 'all-reduce bandwidth per Pod' of their pages
# divided by the chips of a pod, which on v5e and v6e is the same figure.
_HARDWARE = {
  'TPU v3': (16 * 2**30, 340e12 / 1024, 2),
  'TPU v4': (32 * 2**30, 1.1e15 / 4096, 1),
  'TPU v5 lite': (16e9, 200e9, 1),
  'TPU v5': (95e9, 600e9, 1),
  'TPU v5p': (95e9, 600e9, 1),
  'TPU v6 lite': (32e9, 400e9, 1),
}

_MEMORY = 'state.memory'


def run(config, topology, file=''):
  """Compiles a config for a topology, and prints what is to be seen.

  Args:
    config: ConfigDict.
    topology: as 'v3:4x4', see `jax.experimental.topologies`.
    file: where the text of the compiled program is written, '' for nowhere.

  Raises:
    UserError: libtpu is missing or does not know the topology, the mesh does
      not fit it; or the program breaks a rule: it does not fit into the
      memory, exchanges memory states, or gathers a whole embedding table.
  """
  settings.validate(config)
  mesh = mesh_lib.make_mesh(config.mesh, _devices(topology))
  settings.check_batch(config, mesh_lib.row_parts(mesh))
  vocab_size = preparation.vocab_size(config.data)
  kind = mesh.devices.flat[0].device_kind
  sizes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  print(f'{topology}: {mesh.size} devices of kind {kind}; mesh: {sizes}')
  begin = time.monotonic()
  compiled = compile_step(config, vocab_size, mesh)
  print(f'compiled in {time.monotonic() - begin:.0f} s', flush=True)
  if file:
    pathlib.Path(file).write_text(compiled.as_text())

  broken = []
  used = _used(compiled)
  parts = ', '.join(f'{name} {_gib(n)}' for name, n in used.items())
  print(f'each device: {_gib(sum(used.values()))} = {parts}')
  hardware = _HARDWARE.get(kind)
  if hardware:
    fits = sum(used.values()) <= hardware[0]
    print(f'of {_gib(hardware[0])}: {"fits" if fits else "does not fit"}')
    if not fits:
      broken.append('it does not fit')
  found = exchanges(compiled)
  broken += check(found, tables(config, vocab_size))
  print(*_listing(found), sep='\n')
  if hardware:
    print(*_estimate(config, vocab_size, mesh, found, hardware), sep='\n')
  if broken:
    raise UserError(f'{topology}: {"; ".join(broken)}')
  print('no exchange of memory states, no gathering of a whole table')


def _devices(topology):
  """Descriptions of the devices of a topology."""
  if not importlib.util.find_spec('libtpu'):
    raise UserError('libtpu is not installed; allowed: pip install libtpu')
  # There is no TPU to be asked who it is, or to be kept from others.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', topology.replace(':', '-'))
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  try:
    return topologies.get_topology_desc(topology, 'tpu').devices
  except (ValueError, RuntimeError) as e:
    raise UserError(f'--topology is {topology!r}: {e}') from e


def compile_step(config, vocab_size, mesh):
  """What one call of training runs, compiled for a mesh.

  Args:
    config: ConfigDict, validated.
    vocab_size: V.
    mesh: from `mesh.make_mesh`, of devices or of descriptions of them.
  """
  built = step_lib.build(config, vocab_size, mesh)
  B, T = config.train.batch_size, config.train.segment_len
  K = config.train.steps_per_dispatch
  lead = [] if K == 1 else [K]
  tokens = jax.ShapeDtypeStruct([*lead, B, T], jnp.int32)
  batch = dict(
    inputs=tokens,
    targets=tokens,
    lengths=None,
    reset=jax.ShapeDtypeStruct([*lead, B], jnp.bool_),
  )
  return built.step.lower(built.abstract, batch).compile()


def _used(compiled):
  """{what: bytes of a device}; the new state takes the place of the old."""
  m = compiled.memory_analysis()
  return {
    'state and batch': m.argument_size_in_bytes,
    'results besides': m.output_size_in_bytes - m.alias_size_in_bytes,
    'temporaries': m.temp_size_in_bytes,
    'program': m.generated_code_size_in_bytes,
  }


def exchanges(compiled):
  """The collectives of a compiled training step; memory states are labelled.

  Returns:
    A list of `program.Collective`, the largest first.
  """
  # An argument is called as the path in the arguments of the step.
  label = lambda source: _MEMORY if source.startswith(_MEMORY) else ''
  found = program.collectives(compiled.as_text(), label)
  return sorted(found, key=lambda c: -c.sent * c.times)


def tables(config, vocab_size):
  """{path: shape} of the tables of the vocabulary, one for each bin."""
  shapes = step_lib.build(config, vocab_size, None).abstract.params[
    'vocabulary'
  ]
  return {
    name: x.shape
    for name, x in shapes.items()
    if name.startswith(('table', 'output'))
  }


def check(found, tables):
  """What is wrong with some collectives, a list of lines.

  Args:
    found: from `exchanges`.
    tables: {name: shape}.
  """
  wrong = []
  whole = {tuple(sorted(shape)): name for name, shape in tables.items()}
  for c in found:
    name = f'{c.kind} of {_shapes(c.shapes)}'
    if _MEMORY in c.moved:
      wrong.append(f'{name} exchanges memory states')
    if c.kind == 'all-gather':
      gathered = {tuple(sorted(dims)) for _, dims in c.results} & whole.keys()
      wrong += [f'{name} yields the whole {whole[dims]}' for dims in gathered]
  return wrong


def _listing(found):
  """The table of collectives, of the steps that one call makes."""
  row = '{:<19} {:>5} {:>6} {:>12}  {}'.format
  yield row('collective', 'times', 'group', 'MB sent', 'operands; from')
  for c in found:
    megabytes = f'{c.sent * c.times / 1e6:,.3f}'
    text = f'{_shapes(c.shapes)}; {_source(c.source)}'
    yield row(c.kind, c.times, c.group, megabytes, text)
  total = sum(c.sent * c.times for c in found)
  yield row('all, a call', '', '', f'{total / 1e6:,.3f}', 'by each device')


def _estimate(config, vocab_size, mesh, found, hardware):
  """How much of its time a device would compute, from published speeds."""
  _, speed, cores = hardware
  kind = mesh.devices.flat[0].device_kind
  peak = profiling.peak(config.model.dtype, kind, 1)
  tokens = config.train.batch_size * config.train.segment_len
  tokens *= config.train.steps_per_dispatch
  flops = cost.flops_per_token(config, vocab_size) * tokens / mesh.size
  compute = flops / peak
  sent = sum(c.sent * c.times for c in found) * cores
  exchange = sent / speed
  yield (
    f'arithmetic: {flops / 1e12:.3f} TFLOP a device, {compute * 1e3:.2f} ms at '
    f'{peak / 1e12:.1f} TFLOP/s'
  )
  yield (
    f'exchange: {sent / 1e6:,.1f} MB a chip, {exchange * 1e3:.2f} ms at '
    f'{speed / 1e9:.0f} GB/s'
  )
  for share in 1.0, 0.4:
    time_ = compute / share
    yield (
      f'at {share:.0%} of the peak: {time_ / (time_ + exchange):.1%} of the '
      'time is arithmetic if nothing overlaps, '
      f'{min(time_ / exchange, 1.0) if exchange else 1.0:.1%} if all does'
    )


def _shapes(shapes):
  shown = [f'{d}[{",".join(map(str, dims))}]' for d, dims in shapes]
  more = f' and {len(shown) - 3} more' if len(shown) > 3 else ''
  return ' '.join(shown[:3]) + more


def _source(source):
  """The end of a source, which says which layer and operation it was."""
  return '/'.join(source.split('/')[-5:])


def _gib(n):
  return f'{n / 2**30:,.2f} GiB'
