"""FLOPs of the products in an instruction of a compiled program.

Multiplications and additions, as `training.cost` counts them: of dots,
convolutions (what TPUs make of most products), cuBLAS and cuDNN. What Pallas
kernels do is not in the text; those for attention are known by name.
"""

import functools
import math
import re
from typing import NamedTuple

from benchmarks.program import Computation, Instruction, Shapes

# Our kernels for attention, as `pallas_call` names them: how many products of
# K numbers they make for each query and key they visit. See `kernels.triton`,
# whose dkv multiplies two chunks of r for a tile, and `kernels.tpu`.
ATTENTION = {
  'txl_forward': 3,
  'txl_dq': 5,
  'txl_dkv': 6,
  'relative_attention': 3,
  'relative_attention_gradient': 8,
}


class Products(NamedTuple):
  """What an instruction multiplies."""

  flops: int = 0
  dtype: str = ''  # of the factors, the widest one; '' where there are none
  estimated: int = 0  # how many of the FLOPs are those of attention kernels
  unknown: bool = False  # a call of what may or may not multiply


def of(
  x: Instruction,
  lines: Computation,
  computations: dict[str, Computation],
  visible: float = 1.0,
) -> Products:
  """The products of an instruction of `lines` and of all that it calls.

  `visible` is the share of keys that queries see; kernels for attention leave
  the others out.
  """
  if x.opcode == 'dot':
    return _of_dot(x, lines, r'lhs_contracting_dims=\{([\d,]*)\}')
  if x.opcode == 'convolution':
    lhs, rhs = (lines[o].shapes[0] for o in x.operands)
    return _of_convolution(x, lhs, rhs, x.shapes[0])
  if x.opcode == 'custom-call':
    return _of_call(x, lines, visible)
  if not x.opcode.startswith(('fusion', 'call')):
    return Products()
  inside = computations[x.called[0]]
  each = [of(y, inside, computations, visible) for y in inside.values()]
  dtypes = {p.dtype for p in each if p.flops}
  return Products(
    sum(p.flops for p in each),
    'f32' if 'f32' in dtypes else min(dtypes, default=''),
    sum(p.estimated for p in each),
    any(p.unknown for p in each),
  )


def target(x: Instruction) -> str:
  """What a custom call calls, '' for other instructions."""
  found = re.search(r'custom_call_target="([^"]*)"', x.attributes)
  return found[1] if found else ''


def _of_call(x, lines, visible):
  called = target(x)
  if called.startswith('__cublas'):
    return _of_dot(x, lines, r'"lhs_contracting_dimensions":\[([^\]]*)\]')
  given = tuple(s for o in x.operands for s in lines[o].shapes)
  if called.startswith('__cudnn$fmha'):
    # It multiplies with hidden keys too: they are told by a bias.
    products, visible = (5 if 'Backward' in called else 2), 1.0
    return _of_attention(given, products, visible, keys=1)
  if called.startswith('__cudnn$conv'):
    # The gradients are described by the convolution that they are of.
    image, kernel, out = given[0], given[1], x.shapes[0]
    if 'BackwardInput' in called:
      image, out = out, image
    if 'BackwardFilter' in called:
      kernel, out = out, kernel
    return _of_convolution(x, image, kernel, out)
  kernel = re.search(r'(\w+)/pallas_call', x.source)
  if kernel and kernel[1] in ATTENTION:
    keys = 2 if called == 'tpu_custom_call' else 1
    if kernel[1] == 'txl_dq':
      # A call for dq has a group of the queries, which its results show.
      dtype, (H, B, group, _) = x.shapes[-1]
      (_, k) = [s for s in given if len(s[1]) == 4][1]
      given = (dtype, (B, group, H, k[3])), (dtype, k)
    return _of_attention(given, ATTENTION[kernel[1]], visible, keys)
  # Not where it only makes room, or finds places.
  return Products(unknown=any('f' in dtype for dtype, _ in given))


def _of_dot(x, lines, contracted):
  dtype, dims = lines[x.operands[0]].shapes[0]
  found = re.search(contracted, x.attributes)
  summed = re.findall(r'\d+', found[1]) if found else []
  size = math.prod(dims[int(i)] for i in summed)
  return Products(2 * math.prod(x.shapes[0][1]) * size, dtype)


def _of_attention(given: Shapes, products: int, visible: float, keys: int):
  """q [B, T, H, K] or [B, H, T, K] comes first, then k; `keys` is the axis S.

  2 x products x B H T S K of the keys that are visible.
  """
  (dtype, q), (_, k) = [s for s in given if len(s[1]) == 4][:2]
  flops = round(2 * products * math.prod(q) * k[keys] * visible)
  return Products(flops, dtype, flops)


def _of_convolution(x, lhs, rhs, out):
  """2 x the products with numbers that are there: no padding, no holes.

  lhs, rhs and out are (dtype, dims). Products with a batch are such
  convolutions on TPUs, padded to its size.
  """
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', x.attributes)
  assert labels
  window = re.search(r'window=\{([^}]*)\}', x.attributes)
  fields = dict(re.findall(r'(\w+)=(\S+)', window[1] if window else ''))
  axes = sorted(c for c in labels[1] if c.isdecimal())
  dtype, image = lhs
  total = 2 * image[labels[1].index('f')] * image[labels[1].index('b')]
  total *= rhs[1][labels[2].index('o')]
  for n in re.findall(r'(?:feature|batch)_group_count=(\d+)', x.attributes):
    total //= int(n)
  names = 'stride', 'lhs_dilate', 'rhs_dilate', 'pad'
  for i, axis in enumerate(axes):
    given = [fields[n].split('x')[i] if n in fields else '' for n in names]
    *steps, pad = given
    total *= _overlaps(
      image[labels[1].index(axis)],
      rhs[1][labels[2].index(axis)],
      out[1][labels[3].index(axis)],
      *(int(step or 1) for step in steps),
      int(pad.split('_')[0] or 0),
    )
  return Products(total, dtype)


@functools.cache
def _overlaps(size, kernel, out, stride, lhs_dilate, rhs_dilate, pad):
  """How many pairs of output and kernel element meet a number of the input."""
  places = (
    o * stride - pad + k * rhs_dilate for o in range(out) for k in range(kernel)
  )
  last = (size - 1) * lhs_dilate
  return sum(0 <= p <= last and p % lhs_dilate == 0 for p in places)
