"""A program of `programs`, compiled for TPUs or GPUs that need not be there.

One reads whether it fits, its largest buffers, what the devices send to each
other, and from their published speeds how long a call must take at least.
"""

import pathlib
import tempfile
import time
from typing import Any

from benchmarks import hlo, programs, results, topologies
from benchmarks.results import Measured
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.parallel import hardware
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program.errors import UserError

_BUFFERS = 8  # how many are printed


def run(
  values: Any,
  topology: str,
  file: str = '',
  json: str = '',
  program: str = 'train',
) -> None:
  """Compiles a program of a config for a topology, and prints its figures.

  The text of the program is written to a file, and what is measured to another
  as `results.write` does, '' for none. UserError as from that and
  `topologies.describe`, or if the mesh does not fit the topology or the program
  the memory, or if that exchanges memory states or gathers a whole table.
  """
  with tempfile.TemporaryDirectory() as dump:
    _run(values, topology, file, json, program, dump)


def _run(values, topology, file, json, program, dump):
  config = sections.read(values)
  devices, chip = topologies.describe(topology, dump)
  mesh = mesh_lib.make_mesh(config.mesh, devices)
  vocab_size = preparation.vocab_size(config.data)
  kind = devices[0].device_kind
  axes = ', '.join(f'{axis} {n}' for axis, n in mesh.shape.items())
  print(f'{topology}: {mesh.size} devices of kind {kind}; mesh: {axes}')
  call = programs.PROGRAMS[program](config, vocab_size, mesh)
  print(f'{program}: {call.shown}')
  begin = time.monotonic()
  compiled = call.lower().compile()
  seconds = time.monotonic() - begin
  print(f'compiled in {seconds:.0f} s', flush=True)
  text = compiled.as_text()
  if file:
    pathlib.Path(file).write_text(text)

  parts = memory(compiled)
  used, broken = sum(parts.values()), []
  told = ', '.join(f'{name} {_gib(n)}' for name, n in parts.items())
  print(f'each device: {_gib(used)} = {told}')
  if chip:
    how = fits(used, chip)
    print(f'of {_gib(chip.memory)}: {how or "does not fit"}')
    if not how:
      broken.append(
        'it does not fit; model.dtype=bfloat16, train.accumulate, model.remat '
        'and more devices make it smaller'
      )
  module = hlo.parse(text)
  traffic, exchanged = hlo.traffic(module), hlo.exchanges(module, call.memory)
  broken += check(exchanged, tables(call.params))
  _tell_buffers(traffic)
  estimated = 0
  if devices[0].platform == 'tpu':  # it runs the program by itself
    estimated = _tell_cycles(hlo.cycles(module, hlo.bundles(dump)))
    counted = {'estimated': Measured([estimated], 'cycles')}
  else:
    loops = f'{traffic.loops} loops' if traffic.loops else 'no loop'
    print(f'launches: {traffic.launches:,}, {loops}')
    counted = {'launches': Measured([traffic.launches], '')}
  moved, sent = traffic.nbytes, _tell_exchanges(exchanged)
  flops = call.flops / mesh.size
  parts |= {'read and written': moved, 'sent': sent}
  measured = {name: Measured([n], 'bytes') for name, n in parts.items()}
  measured['arithmetic'] = Measured([flops], 'FLOP')
  measured['compilation'] = Measured([seconds], 's')
  measured |= counted
  works = dict(arithmetic=('GFLOP', flops), memory=('GB', moved))
  works['exchange'] = 'GB', sent
  peak, limits, ms = hardware.peak(config.model.dtype, kind, 1), (0, 0, 0), []
  if chip and peak:
    limits = peak, chip.bandwidth, chip.speed / chip.cores
  for (name, (unit, n)), limit in zip(works.items(), limits):
    ms += [1e3 * n / limit] if limit else []
    at = f', {ms[-1]:.2f} ms at {limit / 1e9:,.0f} {unit}/s' if limit else ''
    print(f'{name}: {n / 1e9:,.3f} {unit} a device{at}')
  if ms:
    measured['at least'] = Measured([max(ms)], 'ms')
    share = f', {ms[0] / max(ms):.0%} of the peak' if limits[0] else ''
    print(f'at least {max(ms):.2f} ms, the longest of these{share}')
  if estimated and chip and chip.clock and peak:
    took = estimated / chip.clock
    print(
      f'estimated cycles: {1e3 * took:.2f} ms at {chip.clock / 1e9:g} GHz, '
      f'{flops / took / peak:.0%} of the peak, without exchange'
    )
  if json:
    sizes = dict(topology=topology, kind=kind, tokens=call.tokens)
    sizes |= dict(program=program)
    results.write(json, 'hlo', sizes | dict(mesh.shape), measured)
  if broken:
    raise UserError(f'{topology}: {"; ".join(broken)}')
  print('no exchange of memory states, no gathering of a sharded table')


def memory(compiled: Any) -> dict[str, int]:
  """{name: bytes} of what a device holds in a compiled program."""
  m = compiled.memory_analysis()
  return {
    'state and batch': m.argument_size_in_bytes,
    # The new state takes the place of the old.
    'results besides': m.output_size_in_bytes - m.alias_size_in_bytes,
    'temporaries': m.temp_size_in_bytes,
    'program': m.generated_code_size_in_bytes,
  }


def _tell_buffers(found):
  """Prints the largest buffers."""
  row = '{:>8} {:>6}  {}'.format
  print(row('MiB each', 'count', 'largest temporaries, not all at once; from'))
  largest = sorted(found.buffers.items(), key=lambda x: -x[0][0].nbytes)
  for (array, source), count in largest[:_BUFFERS]:
    text = f'{array}; {_tail(source)}'
    print(row(f'{array.nbytes / 2**20:,.1f}', count, text))
  if found.endless:
    print(f'loops of unknown length, counted once: {found.endless}')


def _tell_cycles(found):
  """Prints the parts of `hlo.Cycles`; the sum of its estimates."""
  total = sum(found.by_part.values())
  print(f'{total / 1e6:>9.2f} million cycles by the estimates of XLA, of them')
  for part, n in found.by_part.most_common():
    print(f'{n / 1e6:>9.2f} {part}')
  for name, (calls, n) in found.kernels.items():
    at_most = (
      f'{n / 1e6:>9.2f} at most' if n else f'{"":>9} without an estimate'
    )
    print(f'{at_most}, besides, {calls:,} calls of the kernel {name}')
    total += n
  print(f'{total / 1e6:>9.2f} million cycles in all')
  others = ', '.join(f'{k} {n:,}' for k, n in found.unknown.most_common(6))
  print(f'{found.unknown.total():>9,} others without an estimate: {others}')
  print(f'{found.bundles / 1e6:>9.2f} million bundles: cycles without waiting')
  return total


def _tell_exchanges(found):
  """Prints the collectives; bytes that a device sends in all of them."""
  row = '{:<19} {:>5} {:>6} {:>12}  {}'.format
  print(row('collective', 'times', 'group', 'MB sent', 'operands; from'))
  for c in found:
    text = f'{_shown(c.operands)}; {_tail(c.source)}'
    print(row(c.kind, c.times, c.group, f'{c.sent * c.times / 1e6:,.3f}', text))
  sent = sum(c.sent * c.times for c in found)
  print(row('all, a call', '', '', f'{sent / 1e6:,.3f}', 'by each device'))
  return sent


def fits(used: float, hardware: topologies.Hardware) -> str:
  """How so many bytes of a device fit, '' if they do not."""
  default, most = hardware.pools
  if used <= default * hardware.memory:
    return 'fits'
  more = f'fits with XLA_PYTHON_CLIENT_MEM_FRACTION={most}'
  return more if used <= most * hardware.memory else ''


def tables(params: Any) -> dict[str, tuple[int, ...]]:
  """{name: shape} of the sharded tables of the vocabulary; bins have one."""
  found, kinds = params['vocabulary'].items(), ('table', 'output')
  return {
    name: x.shape
    for name, x in found
    if name.startswith(kinds) and not x.sharding.is_fully_replicated
  }


def check(
  found: list[hlo.Collective], tables: dict[str, tuple[int, ...]]
) -> list[str]:
  """What is wrong with exchanges where such `tables` are, a line for each."""
  wrong = []
  whole = {tuple(sorted(shape)): name for name, shape in tables.items()}
  for c in found:
    name = f'{c.kind} of {_shown(c.operands)}'
    if c.moved:
      wrong.append(f'{name} exchanges memory states')
    if c.kind == 'all-gather':
      gathered = {tuple(sorted(a.dims)) for a in c.results} & whole.keys()
      wrong += [f'{name} yields the whole {whole[dims]}' for dims in gathered]
  return wrong


def _shown(arrays):
  more = f' and {len(arrays) - 3} more' if len(arrays) > 3 else ''
  return ' '.join(map(str, arrays[:3])) + more


def _tail(source):
  """The end of a source, which says which layer and operation it was."""
  return '/'.join(source.split('/')[-5:])


def _gib(n):
  return f'{n / 2**30:,.2f} GiB'
