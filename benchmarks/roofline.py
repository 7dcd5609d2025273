"""What a compiled program reads, computes and keeps, and what that must take.

A kernel takes at least the time of its products at the peak of the device and
the time of its bytes at the bandwidth of the memory, whichever is longer. The
sum over kernels is no forecast: it leaves out what is not a product
(exponentials, hashes), what comes between two kernels, the links, and what
caches save.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks import program, topologies
from benchmarks.kernels import Found, Kernel
from benchmarks.results import Measured
from txl_jax.training import profiling

_BUFFERS = 8  # how many are printed
# The models call their layers so. Those of one loop have one name, and so have
# unrolled ones, which JAX traces once; `_run` is where they are looped over.
_LAYERS = r'\blayers_\d+|\._run/'


class Peaks(NamedTuple):
  """What a device can do at most in a second."""

  bandwidth: float  # bytes
  bfloat16: float  # FLOPs of products
  float32: float


class Sum(NamedTuple):
  """Of some kernels, each as often as it runs."""

  kernels: float
  flops: float
  nbytes: float
  seconds: float  # at least; 0 if the peaks are not known
  bound: float  # seconds of those kernels that wait for the memory

  def over(self, n: int) -> 'Sum':
    """A part of n."""
    return Sum(*(x / n for x in self))


def peaks(hardware: topologies.Hardware | None, kind: str) -> Peaks | None:
  """The Peaks of a device_kind, None where they are not known."""
  each = [profiling.peak(x, kind, 1) for x in ('bfloat16', 'float32')]
  if not hardware or None in each:
    return None
  return Peaks(hardware.bandwidth, *each)  # pyright: ignore


def total(kernels: Iterable[Kernel], peaks: Peaks | None) -> Sum:
  """The Sum of kernels."""
  count = flops = moved = seconds = bound = 0.0
  for k in kernels:
    count += k.times
    flops += k.times * k.products.flops
    moved += k.times * k.nbytes
    if peaks:
      wide = k.products.dtype in ('f32', 'f64')
      compute = k.products.flops / (peaks.float32 if wide else peaks.bfloat16)
      memory = k.nbytes / peaks.bandwidth
      seconds += k.times * max(compute, memory)
      bound += k.times * memory if memory > compute else 0.0
  return Sum(count, flops, moved, seconds, bound)


def parts(found: Found, layers: int, peaks: Peaks | None) -> dict[str, Sum]:
  """The Sum of a layer's passes, of the rest and of all.

  A layer is the mean of so many; with none there is only 'all'. What a layer
  computes again is part of its backward pass.
  """
  forward, backward, rest = [], [], []
  for k in found.kernels:
    of_layer = backward if 'transpose(' in k.source else forward
    (of_layer if re.search(_LAYERS, k.source) else rest).append(k)
  sums = {}
  if layers and forward:
    sums = {
      'a layer, forward': total(forward, peaks).over(layers),
      'a layer, backward': total(backward, peaks).over(layers),
      'the rest': total(rest, peaks),
    }
  return sums | {'all': total(found.kernels, peaks)}


def buffers(found: Found) -> list[tuple[program.Shapes, int, str, str]]:
  """The largest buffers of kernels: (shape,), how many, first name, source.

  Each is what an instruction writes to room of its own; results of the program
  and workspaces of libraries are left out. Not all are there at once.
  """
  seen = {}
  for k in found.kernels:
    for shape in k.buffers:
      seen.setdefault((shape, k.source), []).append(k.name)
  largest = sorted(seen.items(), key=lambda x: -program.nbytes((x[0][0],)))
  return [
    ((shape,), len(names), names[0], source)
    for (shape, source), names in largest[:_BUFFERS]
  ]


def tell(
  found: Found, layers: int, hardware: topologies.Hardware | None, kind: str
) -> dict[str, Measured]:
  """Prints parts and buffers; what the parts are, for a file."""
  row = '{:>8} {:>6}  {}'.format
  print(
    row(
      'MiB each', 'count', 'largest temporaries, not all at once; first; from'
    )
  )
  for shapes, count, name, source in buffers(found):
    ((dtype, dims),) = shapes
    text = f'{dtype}[{",".join(map(str, dims))}]; {name}; {tail(source)}'
    print(row(f'{program.nbytes(shapes) / 2**20:,.1f}', count, text))

  limits = peaks(hardware, kind)
  measured = {}
  row = '{:<18} {:>9} {:>10} {:>9} {:>9} {:>8}'.format
  print(row('roofline', 'kernels', 'GFLOP', 'GB', 'ms', 'memory'))
  for name, x in parts(found, layers, limits).items():
    figures = f'{x.kernels:,.1f}', f'{x.flops / 1e9:,.1f}'
    figures += (f'{x.nbytes / 1e9:,.3f}',)
    measured[f'kernels, {name}'] = Measured([x.kernels], 'kernels')
    measured[f'products, {name}'] = Measured([x.flops], 'FLOP')
    measured[f'accessed, {name}'] = Measured([x.nbytes], 'bytes')
    if limits:
      share = x.bound / x.seconds if x.seconds else 0.0
      figures += f'{x.seconds * 1e3:,.3f}', f'{share:.0%}'
      measured[f'roofline, {name}'] = Measured([x.seconds * 1e3], 'ms')
      measured[f'bound by memory, {name}'] = Measured([share], 'of the time')
    else:
      figures += '', ''
    print(row(name, *figures))
  if limits:
    print(
      'each kernel at the longer of its FLOPs at '
      f'{limits.bfloat16 / 1e12:.1f} TFLOP/s ({limits.float32 / 1e12:.1f} '
      f'float32) and its bytes at {limits.bandwidth / 1e9:,.0f} GB/s; memory: '
      'share of the ms in which it is the bytes'
    )
  for line in caveats(found):
    print(line)
  return measured


def caveats(found: Found) -> Iterable[str]:
  """What of the figures is estimated or missing, a line for each."""
  estimated = sum(k.times * k.products.estimated for k in found.kernels)
  if estimated:
    yield (
      f'estimated: {estimated / 1e9:,.1f} GFLOP of attention kernels, from '
      'their shapes and the keys that queries see'
    )
  if found.endless:
    yield f'loops of unknown length, counted once: {found.endless}'
  unknown = {k.name for k in found.kernels if k.products.unknown}
  if unknown:
    some = ', '.join(sorted(unknown)[:3])
    yield f'calls whose FLOPs are unknown, counted as 0: {len(unknown)}, {some}'


def tail(source: str) -> str:
  """The end of a source, which says which layer and operation it was."""
  return '/'.join(source.split('/')[-5:])
