"""The training step, compiled for TPUs or GPUs that need not be there.

One reads whether it fits, what its kernels read and compute, what the devices
send to each other, and from their published speeds how long that must take and
how far it could scale.
"""

import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks import (
  collectives,
  kernels,
  results,
  roofline,
  topologies,
)
from benchmarks.results import Measured
from txl_jax import models
from txl_jax.corpora import preparation
from txl_jax.errors import UserError
from txl_jax.modes import sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import cost, profiling
from txl_jax.training import step as step_lib


def run(config: Any, topology: str, file: str = '', json: str = '') -> None:
  """Compiles a config for a topology, and prints what is to be seen.

  The text of the program is written to a file, and what is measured to another
  as `results.write` does, '' for none. UserError as from `topologies.describe`
  and `results.write`, or if the mesh does not fit the topology, or the program
  not into the memory, or if that exchanges memory states or gathers a whole
  table.
  """
  sections.check(config)
  devices, hardware = topologies.describe(topology)
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  step_lib.check_rows(config, mesh_lib.row_parts(mesh))
  vocab_size = preparation.vocab_size(config.data)
  kind = devices[0].device_kind
  axes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  print(f'{topology}: {mesh.size} devices of kind {kind}; mesh: {axes}')
  begin = time.monotonic()
  compiled, params = compile_step(config, vocab_size, mesh)
  seconds = time.monotonic() - begin
  print(f'compiled in {seconds:.0f} s', flush=True)
  if file:
    pathlib.Path(file).write_text(compiled.as_text())

  parts = memory(compiled)
  used, broken = sum(parts.values()), []
  told = ', '.join(f'{name} {_gib(n)}' for name, n in parts.items())
  print(f'each device: {_gib(used)} = {told}')
  if hardware:
    how = fits(used, hardware)
    print(f'of {_gib(hardware.memory)}: {how or "does not fit"}')
    if not how:
      broken.append(
        'it does not fit; model.dtype=bfloat16, train.accumulate, model.remat '
        'and more devices make it smaller'
      )
  model = models.build(config.model, vocab_size).config
  visible = visible_keys(model, config.train.segment_len)
  found = kernels.find(compiled.as_text(), visible)
  layers = getattr(model, 'n_layer', 0)
  measured = roofline.tell(found, layers, hardware, kind)
  exchanged = exchanges(compiled)
  broken += check(exchanged, tables(params))
  sent = _tell_exchanges(exchanged)
  flops = cost.flops_per_token(config, vocab_size) * _tokens(config) / mesh.size
  peak = profiling.peak(config.model.dtype, kind, 1)
  if hardware and peak:
    _tell_scaling(flops, peak, sent, hardware)
  if json:
    measured |= {x: Measured([n], 'bytes') for x, n in parts.items()}
    measured['sent'] = Measured([sent], 'bytes')
    measured['products of the model'] = Measured([flops], 'FLOP')
    measured['compilation'] = Measured([seconds], 's')
    sizes = dict(topology=topology, kind=kind, tokens=_tokens(config))
    results.write(json, 'hlo', sizes | dict(mesh.shape), measured)
  if broken:
    raise UserError(f'{topology}: {"; ".join(broken)}')
  print('no exchange of memory states, no gathering of a whole table')


def memory(compiled: Any) -> dict[str, int]:
  """{name: bytes} of what a device holds in a compiled step."""
  m = compiled.memory_analysis()
  return {
    'state and batch': m.argument_size_in_bytes,
    # The new state takes the place of the old.
    'results besides': m.output_size_in_bytes - m.alias_size_in_bytes,
    'temporaries': m.temp_size_in_bytes,
    'program': m.generated_code_size_in_bytes,
  }


def _tokens(config):
  """Tokens of a call, over all devices."""
  c = config.train
  return c.batch_size * c.segment_len * c.steps_per_dispatch


def _tell_exchanges(found):
  """Prints the collectives; bytes that a device sends in all of them."""
  row = '{:<19} {:>5} {:>6} {:>12}  {}'.format
  print(row('collective', 'times', 'group', 'MB sent', 'operands; from'))
  for c in found:
    text = f'{_shapes(c.shapes)}; {roofline.tail(c.source)}'
    print(row(c.kind, c.times, c.group, f'{c.sent * c.times / 1e6:,.3f}', text))
  sent = sum(c.sent * c.times for c in found)
  print(row('all, a call', '', '', f'{sent / 1e6:,.3f}', 'by each device'))
  return sent


def _tell_scaling(flops, peak, sent, hardware):
  """Prints how long a device computes and sends at the published speeds."""
  sent, speed = sent * hardware.cores, hardware.speed
  compute, exchange = flops / peak, sent / speed
  print(
    f'arithmetic: {flops / 1e12:.3f} TFLOP a device, {compute * 1e3:.2f} ms '
    f'at {peak / 1e12:.1f} TFLOP/s\n'
    f'exchange: {sent / 1e6:,.1f} MB a chip, {exchange * 1e3:.2f} ms at '
    f'{speed / 1e9:.0f} GB/s'
  )
  for share in 1.0, 0.4:
    busy = compute / share
    apart, at_once = busy / (busy + exchange), busy / max(busy, exchange)
    print(
      f'at {share:.0%} of the peak: {apart:.1%} of the time is arithmetic if '
      f'nothing overlaps, {at_once:.1%} if all does'
    )


def visible_keys(model: Any, T: int) -> float:
  """The share of all keys that a query sees on average, the memory full.

  The model is its config, T the length of a segment; 1 if it has no attention.
  """
  if not hasattr(model, 'span'):
    return 1.0
  M, span = model.mem_len, model.span or model.mem_len + T
  return sum(min(i + M + 1, span) for i in range(T)) / (T * (M + T))


def compile_step(config: Any, vocab_size: int, mesh: Mesh) -> tuple[Any, Any]:
  """What one call of training runs, compiled, and the shapes of parameters."""
  built = step_lib.build(config, vocab_size, mesh)
  shape = [config.train.batch_size, config.train.segment_len]
  if config.train.steps_per_dispatch > 1:
    shape = [config.train.steps_per_dispatch, *shape]
  tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
  reset = jax.ShapeDtypeStruct(shape[:-1], jnp.bool_)
  batch = dict(inputs=tokens, targets=tokens, lengths=None, reset=reset)
  compiled = built.step.lower(built.abstract, batch).compile()
  return compiled, built.abstract.params


def fits(used: float, hardware: topologies.Hardware) -> str:
  """How so many bytes of a device fit, '' if they do not."""
  default, most = hardware.pools
  if used <= default * hardware.memory:
    return 'fits'
  more = f'fits with XLA_PYTHON_CLIENT_MEM_FRACTION={most}'
  return more if used <= most * hardware.memory else ''


def exchanges(compiled: Any) -> list[collectives.Collective]:
  """The collectives of a step, largest first; `moved` if of memory states."""
  # An argument is called as the path in the arguments of the step.
  found = collectives.find(compiled.as_text(), 'state.memory')
  return sorted(found, key=lambda c: -c.sent * c.times)


def tables(params: Any) -> dict[str, tuple[int, ...]]:
  """{name: shape} of the tables of the vocabulary, one for each bin."""
  found, kinds = params['vocabulary'].items(), ('table', 'output')
  return {name: x.shape for name, x in found if name.startswith(kinds)}


def check(
  found: list[collectives.Collective], tables: dict[str, tuple[int, ...]]
) -> list[str]:
  """What is wrong with `exchanges` where such `tables` are, a line for each."""
  wrong = []
  whole = {tuple(sorted(shape)): name for name, shape in tables.items()}
  for c in found:
    name = f'{c.kind} of {_shapes(c.shapes)}'
    if c.moved:
      wrong.append(f'{name} exchanges memory states')
    if c.kind == 'all-gather':
      gathered = {tuple(sorted(dims)) for _, dims in c.results} & whole.keys()
      wrong += [f'{name} yields the whole {whole[dims]}' for dims in gathered]
  return wrong


def _shapes(shapes):
  shown = [f'{d}[{",".join(map(str, dims))}]' for d, dims in shapes]
  more = f' and {len(shown) - 3} more' if len(shown) > 3 else ''
  return ' '.join(shown[:3]) + more


def _gib(n):
  return f'{n / 2**30:,.2f} GiB'
