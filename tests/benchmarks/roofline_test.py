"""What kernels must take at least, and what of them is printed."""

import pytest

from benchmarks import kernels, roofline, topologies
from benchmarks.kernels import Kernel
from benchmarks.products import Products

PEAKS = roofline.Peaks(bandwidth=100, bfloat16=1000, float32=500)
H100 = 'NVIDIA H100 80GB HBM3'
HARDWARE = topologies.Hardware(memory=80e9, speed=450e9, bandwidth=3350e9)
LAYER = 'jit(step)/jvp(Model)/Model._run/layers_0/'
BACK = 'jit(step)/transpose(jvp(Model))/Model._run/while/body/'


def kernel(flops=0, nbytes=0, times=1, source='', dtype='bf16', **more):
  made = Products(flops, dtype if flops else '', **more)
  return Kernel('it', times, made, nbytes, (), source)


def test_the_longer_of_two_times():
  cases = [
    (kernel(3000, 200), 3.0, 0.0),
    (kernel(3000, 400), 4.0, 4.0),
    (kernel(3000, 400, dtype='f32'), 6.0, 0.0),
    (kernel(nbytes=100, times=7), 7.0, 7.0),
    (kernel(nbytes=100, times=0), 0.0, 0.0),
  ]
  for one, seconds, bound in cases:
    found = roofline.total([one], PEAKS)
    assert (found.seconds, found.bound) == (seconds, bound)
  found = roofline.total([one for one, *_ in cases], PEAKS)
  assert found == roofline.Sum(10, 9000, 1700, 20.0, 11.0)
  assert roofline.total([kernel(3000, 200)], None).seconds == 0


def test_parts_of_a_step():
  found = kernels.Found(
    [
      kernel(4000, source=LAYER + 'ff/dot_general'),
      kernel(2000, source=LAYER + 'o/dot_general'),
      kernel(1000, times=6, source=BACK + 'layers_0/ff/dot_general'),
      kernel(nbytes=60, times=2, source=BACK + 'dynamic_update_slice'),
      kernel(nbytes=500, source='jit(step)/add'),
      kernel(nbytes=100),
    ],
    endless=0,
  )
  sums = roofline.parts(found, 2, PEAKS)
  assert sums == {
    'a layer, forward': roofline.Sum(1, 3000, 0, 3, 0),
    'a layer, backward': roofline.Sum(4, 3000, 60, 3.6, 0.6),
    'the rest': roofline.Sum(2, 0, 600, 6, 6),
    'all': roofline.Sum(12, 12000, 720, 19.2, 7.2),
  }
  assert list(roofline.parts(found, 0, PEAKS)) == ['all']


def test_peaks():
  assert roofline.peaks(HARDWARE, H100) == (3350e9, 989.5e12, 494.5e12)
  assert roofline.peaks(None, H100) is None
  assert roofline.peaks(HARDWARE, 'a card') is None


BUFFERS = ('f32', (1024, 1024)), ('bf16', (1024, 1024)), ('f32', ())


def test_what_is_printed(capsys):
  some = [
    Kernel(name, 1, Products(), 0, BUFFERS[i:], 'a/b/c/d/e/f')
    for i, name in enumerate(['first', 'second', 'third'])
  ]
  some += [kernel(989_500_000_000, source=LAYER + 'ff', estimated=10**9)]
  some += [Kernel('call', 1, Products(unknown=True), 3_350_000_000, (), '')]
  measured = roofline.tell(kernels.Found(some, 2), 4, HARDWARE, H100)
  lines = capsys.readouterr().out.splitlines()
  assert lines[:4] == [
    'MiB each  count  largest temporaries, not all at once; first; from',
    '     4.0      1  f32[1024,1024]; first; b/c/d/e/f',
    '     2.0      2  bf16[1024,1024]; first; b/c/d/e/f',
    '     0.0      3  f32[]; first; b/c/d/e/f',
  ]
  assert [line.split() for line in lines[4:9]] == [
    ['roofline', 'kernels', 'GFLOP', 'GB', 'ms', 'memory'],
    ['a', 'layer,', 'forward', '0.2', '247.4', '0.000', '0.250', '0%'],
    ['a', 'layer,', 'backward', '0.0', '0.0', '0.000', '0.000', '0%'],
    ['the', 'rest', '4.0', '0.0', '3.350', '1.000', '100%'],
    ['all', '5.0', '989.5', '3.350', '2.000', '50%'],
  ]
  assert lines[9].startswith(
    'each kernel at the longer of its FLOPs at 989.5 TFLOP/s (494.5 float32) '
    'and its bytes at 3,350 GB/s'
  )
  assert lines[10].startswith('estimated: 1.0 GFLOP of attention kernels')
  assert lines[11:] == [
    'loops of unknown length, counted once: 2',
    'calls whose FLOPs are unknown, counted as 0: 1, call',
  ]
  assert measured['kernels, all'] == ([5], 'kernels')
  assert measured['products, all'] == ([989_500_000_000], 'FLOP')
  assert measured['accessed, all'] == ([3_350_000_000], 'bytes')
  ((ms,), unit) = measured['roofline, all']
  assert (ms, unit) == (pytest.approx(2.0), 'ms')
  assert measured['bound by memory, all'][0] == [pytest.approx(0.5)]


def test_a_device_without_known_peaks(capsys):
  found = kernels.Found([kernel(10, 20, times=3)], 0)
  measured = roofline.tell(found, 0, None, 'cpu')
  (_, _, row) = capsys.readouterr().out.splitlines()
  assert row.split() == ['all', '3.0', '0.0', '0.000']
  assert not any('roofline' in name for name in measured)
