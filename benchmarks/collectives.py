"""The collectives of a compiled program, read from its HLO text."""

import collections
import math
import re
from typing import NamedTuple

from benchmarks import program
from benchmarks.program import Shapes

_KINDS = {
  *('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all'),
  *('ragged-all-to-all', 'collective-permute', 'collective-broadcast'),
}

# Operations that show a part of their operands, or move it: what comes out of
# them holds numbers of these, unchanged but for their dtype. TPUs concatenate
# by the maximum of padded parts.
_MOVES = {
  *('bitcast', 'broadcast', 'concatenate', 'convert', 'copy', 'gather', 'pad'),
  *('dynamic-slice', 'dynamic-update-slice', 'maximum', 'optimization-barrier'),
  *('reshape', 'reverse', 'scatter', 'select', 'slice', 'transpose'),
}


class Collective(NamedTuple):
  """An exchange between devices."""

  kind: str  # opcode, as 'all-reduce'
  shapes: Shapes  # of the operands
  results: Shapes
  group: int  # devices that exchange with each other
  times: int  # in a call of the program; 1 for loops of unknown length
  source: str  # where in the Python program it comes from, or ''
  moved: bool  # whether it moves numbers of the arguments that are watched

  @property
  def sent(self) -> int:
    """Bytes that a device sends in one of them.

    Each link carries every number once: n - 1 of n parts of what is gathered,
    reduced or exchanged, twice that of an all-reduce.
    """
    if self.kind == 'collective-permute':
      return program.nbytes(self.shapes)
    whole = self.results if self.kind == 'all-gather' else self.shapes
    twice = 2 if self.kind == 'all-reduce' else 1
    return program.nbytes(whole) * (self.group - 1) // self.group * twice


def find(text: str, watched: str | tuple[()] = ()) -> list[Collective]:
  """The collectives of a compiled module; equal ones are one, times added.

  The numbers of those arguments are followed whose source begins with
  `watched`, such as 'state.memory'; () is no argument.
  """
  computations, entry = program.parse(text)
  total = collections.Counter()

  # For every value a list of bools: which elements of the tuple, or of the one
  # that it is, hold watched numbers. What is not known is False.

  def run(name, given, times):
    """The list of a computation's result, from those given as its arguments.

    Its collectives are counted, for it runs so many times.
    """
    lines, held = computations[name], {}
    for x in lines.values():
      operands = [held[o] for o in x.operands if o in held]
      out = result(x, name, given, operands, times)
      held[x.name] = [*out, *[False] * len(x.shapes)][: len(x.shapes)]
      if x.opcode.removesuffix('-start') in _KINDS and times:
        shapes = tuple(s for o in x.operands for s in lines[o].shapes)
        c = _collective(x, name, shapes, moved=any(map(any, operands)))
        total[c] += times
    return held[program.root(lines).name]

  def result(x, name, given, operands, times):
    """The list of the result of an instruction, as long as it is known."""
    if x.opcode == 'parameter' and name == entry:
      return [x.source.startswith(watched)] * len(x.shapes)
    if x.opcode == 'parameter':
      return next(iter(given[int(x.operands[0]) :]), [])
    if x.opcode == 'while':
      (out,), (body,) = operands, x.called
      while any(more := [b > a for a, b in zip(out, run(body, [out], 0))]):
        out = [a or b for a, b in zip(out, more)]
      trips = program.trips(x, computations)
      run(body, [out], times * (1 if trips is None else trips))
      return out
    if x.opcode == 'conditional':
      branches = zip(x.called, operands[1:])
      results = [run(c, [held], times) for c, held in branches]
      return [any(held) for held in zip(*results)]
    if x.opcode in ('fusion', 'call', 'async-start'):
      return run(x.called[0], operands, times)
    for called in x.called:
      run(called, [], times)
    if x.opcode == 'tuple':
      return [e for held in operands for e in held]
    if x.opcode == 'get-tuple-element':
      (index,) = re.findall(r'index=(\d+)', x.attributes)
      return operands[0][int(index) :][:1]
    if x.opcode in _MOVES or x.opcode.endswith(('-start', '-done')):
      return [any(map(any, operands))] * len(x.shapes)
    return []

  run(entry, [], 1)
  return [c._replace(times=n) for c, n in total.items()]


def _collective(x, computation, shapes, moved):
  kind = x.opcode.removesuffix('-start')
  # A start yields its operands too.
  start = x.opcode != kind != 'all-reduce'
  results = x.shapes[len(shapes) : 2 * len(shapes)] if start else x.shapes
  # How TPUs are told to keep a part of what they sum.
  if computation.startswith('all-reduce-scatter') and kind == 'all-reduce':
    kind = 'reduce-scatter'
  group = 2 if kind == 'collective-permute' else _group(x.attributes)
  return Collective(kind, shapes, results, group, 0, x.source, moved)


def _group(attributes):
  """How many devices are in a group.

  Written as [4,8]<=…, 4 groups of 8; as {{0,1},{2,3}}; or as the axes of a
  mesh, mesh['a'=4,'b'=2] {'a':(1)2,'b'}, where :(1)2 is a part of 2 of an axis.
  """
  groups = attributes.partition('replica_groups=')[2]
  if iota := re.match(r'\[\d+,(\d+)\]', groups):
    return int(iota[1])
  if listed := re.match(r'\{\{([\d,]*)\}', groups):
    return listed[1].count(',') + 1
  if axes := re.match(r'mesh\[(.*?)\][^{]*\{(.*?)\}', groups):
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", axes[1]))
    used = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes[2])
    return math.prod(int(part or sizes[name]) for name, part in used)
  raise ValueError(f'groups of a collective: {attributes[:200]}')
