"""How many bytes a training step needs at once, estimated from its jaxpr.

The equations are visited in order: an array exists from the one that makes it
to the last that reads it. What compilers fuse into its reader, such as a sum
into a product, never exists; what it is made from is kept instead. A loop needs
what its body needs, plus what it carries and collects.

The figure is for a device that runs this jaxpr as it is: nothing is divided.

`memory_analysis` of a compiled program needs the compiler of the device: for
the step of enwik8_24l a CPU's said 158.4 GB after 94 s, where 157.9 are found
here in 10 s, and 83.4 for an H100 (2 busy CPU cores, jax 0.10.2).
"""

import collections
import math
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from jax.extend import core

from txl_jax.parallel import capacity

# Calls whose equations are treated like those around them.
_CALLS = {
  'closed_call', 'core_call', 'custom_jvp_call', 'custom_vjp_call',
  'custom_vjp_call_jaxpr', 'jit', 'pjit',
}  # fmt: skip
# The same numbers under another name, or in another order.
_VIEWS = {
  'bitcast_convert_type', 'copy', 'expand_dims', 'optimization_barrier',
  'reshape', 'sharding_constraint', 'squeeze', 'stop_gradient', 'transpose',
}  # fmt: skip
_FUSED = _VIEWS | {
  'abs', 'add', 'add_any', 'and', 'broadcast_in_dim', 'clamp', 'concatenate',
  'convert_element_type', 'div', 'eq', 'erf', 'exp', 'exp2', 'expm1', 'floor',
  'ge', 'gt', 'integer_pow', 'iota', 'is_finite', 'le', 'log', 'log1p',
  'logistic', 'lt', 'max', 'min', 'mul', 'ne', 'neg', 'not', 'or', 'pad',
  'pow', 'rem', 'rev', 'rsqrt', 'select_n', 'shift_left',
  'shift_right_arithmetic', 'shift_right_logical', 'sign', 'slice', 'sqrt',
  'square', 'sub', 'tanh', 'xor',
}  # fmt: skip
# They read what is fused into them, but produce arrays.
_REDUCTIONS = {
  'argmax', 'reduce_and', 'reduce_max', 'reduce_min', 'reduce_or', 'reduce_sum',
}  # fmt: skip
_SMALL = 64  # bytes
_READ = 4  # most arrays that a fusion reads, before it becomes an array


class _Line(NamedTuple):
  """An equation. Names identify arrays; arguments have none."""

  primitive: str
  inputs: list[Hashable]
  outputs: dict[Hashable, int]  # {name: bytes}
  inside: list[Any]  # jaxprs


def peak(jaxpr: Any, results: bool = True) -> int:
  """Bytes at the peak, not counting the arguments of a jaxpr.

  Without `results` what it returns is not counted either: it takes the place of
  the arguments.
  """
  lines, returned = _flat(jaxpr)
  sizes, last = _arrays(lines, returned)
  free = returned if not results else set()
  ends = collections.defaultdict(list)
  for name, i in last.items():
    ends[i].append(name)
  now = most = 0
  for i, line in enumerate(lines):
    new = [x for x in line.outputs if x in sizes and x not in free]
    now += sum(sizes[x] for x in new)
    inside = max(map(peak, line.inside), default=0)
    most = max(most, now + inside)
    now -= sum(sizes[x] for x in new if x not in last)
    now -= sum(sizes[x] for x in ends[i] if x not in free)
  return most


def _arrays(lines, returned):
  """{name: bytes} of names that are arrays, and {name: its last reader}."""
  made = {name: line for line in lines for name in line.outputs}
  needed = _needed(lines, made)
  sizes, last, of = {}, {}, {}  # of: the arrays that a name is computed from
  for i, line in enumerate(lines):
    read = frozenset().union(*(of.get(x, ()) for x in line.inputs))
    for name, size in line.outputs.items():
      fused = line.primitive in _FUSED and name not in needed
      if fused and len(read) <= _READ:
        of[name] = read
      else:
        # Scalars, such as the norm of all gradients, do not prevent fusion.
        of[name] = frozenset([name] if size > _SMALL else [])
        sizes[name] = size
    last |= dict.fromkeys(read, i)
  for name in returned & of.keys():
    last |= dict.fromkeys(of[name], len(lines))
  return sizes, last


def _needed(lines: Iterable[_Line], made) -> set[Hashable]:
  """Names read as arrays: by products, loops, gathers and kernels."""
  needed = set()
  for line in lines:
    for name in line.inputs:
      if line.primitive in _FUSED | _REDUCTIONS:
        continue
      while name in made and made[name].primitive in _VIEWS:
        name = made[name].inputs[0] if made[name].inputs else None
      needed.add(name)
  return needed & made.keys()


def _flat(jaxpr):
  """The lines of a jaxpr with calls inlined, and the set of what it returns."""
  lines: list[_Line] = []
  names = _open(jaxpr, dict.fromkeys(_arguments(jaxpr)), lines)
  returned = {names(x) for x in jaxpr.outvars} - {None}
  return lines, returned


def _arguments(jaxpr):
  return *jaxpr.invars, *jaxpr.constvars


def _open(jaxpr, known, lines):
  """Adds the lines of a jaxpr; returns a function from variables to names."""

  def name(x):
    return None if isinstance(x, core.Literal) else known[x]

  for eqn in jaxpr.eqns:
    inputs = [name(x) for x in eqn.invars]
    inside = [*capacity.inside(eqn)]
    if eqn.primitive.name in _CALLS and inside:
      called, given = inside[0], dict.fromkeys(_arguments(inside[0]))
      behind = len(inputs) - len(called.invars)
      given |= dict(zip(called.invars, inputs[max(behind, 0) :]))
      there = _open(called, given, lines)
      known |= {x: there(y) for x, y in zip(eqn.outvars, called.outvars)}
      continue
    own = {x: (len(lines), i) for i, x in enumerate(eqn.outvars)}
    known |= own
    sizes: dict[Hashable, int] = {own[x]: _nbytes(x.aval) for x in eqn.outvars}
    kernel = eqn.primitive.name == 'pallas_call'  # works in fast memory
    read = [x for x in inputs if x is not None]
    line = eqn.primitive.name, read, sizes, [] if kernel else inside
    lines.append(_Line(*line))
  return name


def _nbytes(aval):
  dtype = getattr(aval, 'dtype', None)
  return math.prod(aval.shape) * dtype.itemsize if dtype else 0
