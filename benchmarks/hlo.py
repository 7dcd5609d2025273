"""What a compiled program exchanges, moves and keeps, read from its HLO text.

XLA prints a module as computations, each a list of instructions

  %name = type opcode(%operand, …), attribute=…, …

of which the one marked ENTRY runs, and calls others; the operations are those
of https://openxla.org/xla/operation_semantics. JAX offers no more than a text:
`cost_analysis` counts a loop once, no collectives and nothing on a GPU, and
`memory_analysis` names no buffer.
"""

import collections
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# Operations that show a part of their operands, or move it: what comes out of
# them holds numbers of these, unchanged but for their dtype. TPUs concatenate
# by the maximum of padded parts.
_MOVES = {
  *('bitcast', 'broadcast', 'concatenate', 'convert', 'copy', 'gather', 'pad'),
  *('dynamic-slice', 'dynamic-update-slice', 'maximum', 'opt-barrier'),
  *('reshape', 'reverse', 'scatter', 'select', 'slice', 'transpose'),
}
_EXCHANGES = 'all-', 'collective-', 'ragged-all-to-all', 'reduce-scatter'
# They move nothing, or what they run is counted.
_FREE = {
  *('parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'call'),
  *('add-dependency', 'opt-barrier', 'while', 'conditional'),
  *('async-update', 'async-done'),
}
_FREE_CALLS = 'target="(AllocateBuffer|ConcatBitcast)"'
# Of what is sliced afterwards, they read the slice.
_ELEMENT_BY_ELEMENT = {'bitcast', 'convert', 'select'}
_SLICES = {'slice', 'dynamic-slice', 'gather'}
# Which operand is the update of what is written in place.
_UPDATES = {'dynamic-update-slice': 1, 'scatter': 2}


class Array(NamedTuple):
  """What an instruction yields, or an element of the tuple that it yields."""

  dtype: str  # as 'bf16'
  dims: tuple[int, ...]
  space: int = 0  # the memory that it is in; 0 is the main one

  def __str__(self):
    return f'{self.dtype}[{",".join(map(str, self.dims))}]'

  @property
  def nbytes(self) -> int:
    """Its size in bytes."""
    bits = re.search(r'\d+', 'u8' if self.dtype == 'pred' else self.dtype)
    return math.prod(self.dims, start=int(bits[0]) if bits else 0) // 8


class Instruction(NamedTuple):
  """A line of a computation."""

  name: str  # unique in the module
  arrays: list[Array]  # that it yields; nested tuples are flattened
  opcode: str
  operands: list[str]  # names; number of a parameter, value of a constant
  attributes: str  # the rest of the line, without metadata
  called: list[str]  # the computations that it runs
  source: str  # where in the Python program it comes from (`op_name`), or ''
  root: bool  # whether the computation returns it

  @property
  def element(self) -> int:
    """Which one of a tuple a get-tuple-element yields."""
    return int(re.findall(r'index=(\d+)', self.attributes)[0])


Computation = dict[str, Instruction]  # by name, in the order of execution


class Module(NamedTuple):
  """A compiled program."""

  computations: dict[str, Computation]
  entry: str  # the name of the one that runs

  def root(self, name: str) -> Instruction:
    """What a computation returns."""
    return next(x for x in self.computations[name].values() if x.root)

  def trips(self, loop: Instruction) -> int:
    """How often a while loop runs; 0 if that is not known before it does.

    Some compilers tell. Else it is n of a condition i < n: all loops that
    count do so from 0 in steps of 1.
    """
    told = re.findall(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
    (condition,) = re.findall(r'condition=%?([\w.\-]+)', loop.attributes)
    test = self.root(condition)
    last = self.computations[condition].get(test.operands[-1])
    if 'direction=LT' in test.attributes and last and last.opcode == 'constant':
      told += last.operands
    return int(told[0]) if told else 0

  def walk(
    self, name: str, times: int = 1
  ) -> Iterator[tuple[Instruction, Computation, int]]:
    """(instruction, its computation, how often it runs) of a computation.

    And of the loops, conditions and calls in it. Loops of unknown length count
    once, and so does every branch of a condition.
    """
    for x in self.computations[name].values():
      yield x, self.computations[name], times
      if x.opcode in ('while', 'conditional', 'call', 'async-start'):
        n = self.trips(x) if x.opcode == 'while' else 1
        for inside in x.called:
          yield from self.walk(inside, times * (n or 1))


def parse(text: str) -> Module:
  """The module that a text is of."""
  computations, entry, lines = {}, '', {}
  for line in text.splitlines():
    if head := re.match(r'(ENTRY )?%?([\w.\-]+) .*\{\s*$', line):
      lines = computations[head[2]] = {}
      entry = head[2] if head[1] else entry
    elif line[:1] == ' ' and ' = ' in line:
      x = _instruction(line)
      lines[x.name] = x
  return Module(computations, entry)


def _instruction(line):
  line = re.sub(r'/\*.*?\*/', '', line)
  found = re.match(r' +(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)', line)
  assert found
  root, name, kind, opcode, rest = found.groups()
  arrays = []
  # A layout such as {1,0:T(8,128)S(1)} names the memory where it is not 0.
  array = r'([a-z]\w*)\[([\d,<=]*)\](?:\{[^}]*?(?:S\((\d+)\)[^}]*)?\})?'
  for dtype, dims, space in re.findall(array, kind):
    sizes = tuple(map(int, re.findall(r'\d+', dims)))
    arrays.append(Array(dtype, sizes, int(space or 0)))
  inside, rest = re.split(r'\)(?:, |$)', rest, maxsplit=1)
  value = opcode in ('parameter', 'constant')
  operands = [inside] if value else re.findall(r'%([\w.\-]+)', inside)
  source = re.search(r'op_name="((?:[^"\\]|\\.)*)"', rest)
  attributes = re.sub(r'metadata=\{(?:[^{}"]|"[^"]*")*\}', '', rest)
  runs = r'(?:calls|body|to_apply|\w+_computations?)=(\{.*?\}|%?[\w.\-]+)'
  called = re.findall(r'[\w.\-]+', ' '.join(re.findall(runs, attributes)))
  more = attributes, called, source[1] if source else ''
  return Instruction(name, arrays, opcode, operands, *more, bool(root))


class Collective(NamedTuple):
  """An exchange between devices."""

  kind: str  # opcode, as 'all-reduce'
  operands: tuple[Array, ...]
  results: tuple[Array, ...]
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
    whole = self.results if self.kind == 'all-gather' else self.operands
    nbytes = sum(a.nbytes for a in whole)
    if self.kind == 'collective-permute':
      return nbytes
    twice = 2 if self.kind == 'all-reduce' else 1
    return nbytes * (self.group - 1) // self.group * twice


def exchanges(module: Module, watched: str) -> list[Collective]:
  """The collectives of a module, largest first; equal ones are one.

  The numbers of those arguments are followed whose source begins with
  `watched`, such as 'state.memory'.
  """
  total = collections.Counter()

  def run(name, given, times):
    """Which elements of a result are watched numbers, as far as is known.

    Given the same of each argument of a computation, which runs so many times
    and whose collectives are counted. An array is its own element 0.
    """
    lines, held = module.computations[name], {}
    for x in lines.values():
      operands = [held.get(o, set()) for o in x.operands]
      held[x.name] = result(x, name, given, operands, times)
      exchange = x.opcode.startswith(_EXCHANGES) and times
      if exchange and not x.opcode.endswith('-done'):
        arrays = [a for o in x.operands for a in lines[o].arrays]
        total[_collective(x, name, arrays, any(operands))] += times
    return held[module.root(name).name]

  def result(x, name, given, operands, times):
    """The same of an instruction."""
    everything = {*range(len(x.arrays))}
    if x.opcode == 'parameter' and name == module.entry:
      return everything if x.source.startswith(watched) else set()
    if x.opcode == 'parameter':
      return given[int(x.operands[0])] if given else set()
    if x.opcode == 'while':
      (out,), (body,) = operands, x.called
      while more := run(body, [out], 0) - out:
        out = out | more
      run(body, [out], times * (module.trips(x) or 1))
      return out
    if x.opcode == 'conditional':
      each = [run(c, [o], times) for c, o in zip(x.called, operands[1:])]
      return set().union(*each)
    if x.opcode in ('fusion', 'call', 'async-start'):
      return run(x.called[0], operands, times)
    for called in x.called:
      run(called, [], times)
    if x.opcode == 'tuple':
      return {i for i, held in enumerate(operands) if held}
    if x.opcode == 'get-tuple-element':
      return {0} if x.element in operands[0] else set()
    moves = x.opcode in _MOVES or x.opcode.endswith(('-start', '-done'))
    return everything if moves and any(operands) else set()

  run(module.entry, [], 1)
  found = [c._replace(times=n) for c, n in total.items()]
  return sorted(found, key=lambda c: -c.sent * c.times)


def _collective(x, computation, operands, moved):
  kind = x.opcode.removesuffix('-start')
  # A start yields its operands too.
  start, n = x.opcode != kind != 'all-reduce', len(operands)
  results = x.arrays[n : 2 * n] if start else x.arrays
  # How TPUs are told to keep a part of what they sum.
  if computation.startswith('all-reduce-scatter') and kind == 'all-reduce':
    kind = 'reduce-scatter'
  group = 2 if kind == 'collective-permute' else _group(x.attributes)
  # Wherever it keeps them.
  given, made = (tuple(Array(*a[:2]) for a in y) for y in (operands, results))
  return Collective(kind, given, made, group, 0, x.source, moved)


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


class Traffic(NamedTuple):
  """What a call of a program reads and writes, and its buffers."""

  nbytes: int
  # How many (array, source) have room of their own, without what the program
  # returns and the room that libraries work in; not all are there at once.
  buffers: collections.Counter[tuple[Array, str]]
  endless: int  # loops of unknown length, counted as if they ran once
  launches: int  # of kernels and calls of libraries
  loops: int


def traffic(module: Module) -> Traffic:
  """The Traffic of a module.

  An instruction that runs by itself (a fusion, a product, a copy, a call of a
  library) reads its operands and writes its results, each once, in the main
  memory of the device: of what is sliced the slice, of what is updated in place
  the update, nothing of what TPUs keep in VMEM.
  """
  computations, entry = module
  end, lines = module.root(entry), computations[entry]
  returned = {_made(end.name, i, lines) for i in range(len(end.arrays))}
  total, buffers, endless = 0, collections.Counter(), 0
  launches = loops = 0
  for x, lines, times in module.walk(entry):
    loops += x.opcode == 'while'
    endless += x.opcode == 'while' and not module.trips(x)
    if x.opcode in _FREE or x.opcode.endswith('-start'):
      continue
    if x.opcode.endswith('-done'):
      start, opcode = lines[x.operands[0]], x.opcode.removesuffix('-done')
      x = start._replace(name=x.name, arrays=x.arrays, opcode=opcode)
    written = _written(x, lines, module)
    if re.search('target="__cu(blas|dnn)', x.attributes) and written[1:]:
      written[-1] = 0  # the room that it works in
    # What is written in part, or over an operand, has room already.
    aliased = x.attributes.partition('output_to_operand_aliasing=')[2]
    taken = re.findall(r'\{(\d*)\}: \(\d+, \{\}', aliased)
    taken = {int(i or 0) for i in taken}
    moved = 0
    for i, (array, n) in enumerate(zip(x.arrays, written)):
      if not array.space:
        moved += n
        own = i not in taken and (x.name, i) not in returned
        buffers[array, x.source] += own and 0 < n == array.nbytes
    for o in {*x.operands}:
      whole = sum(a.nbytes for a in lines[o].arrays if not a.space)
      moved += _read(x, o, whole, module)
    if not re.search(_FREE_CALLS, x.attributes):
      total += times * moved
      launches += times
  return Traffic(total, +buffers, endless, launches, loops)


def _read(x, name, whole, module):
  """Bytes that an instruction reads of an operand, at most the whole of it."""
  first = name not in x.operands[1:]
  if x.opcode == 'fusion':
    total, same, end = 0, set(), module.root(x.called[0])
    for y in module.computations[x.called[0]].values():
      if y.opcode == 'parameter':
        same |= {y.name} if x.operands[int(y.operands[0])] == name else set()
      elif y.opcode in _ELEMENT_BY_ELEMENT and y.name != end.name:
        same |= {y.name} if same.intersection(y.operands) else set()
      elif y.opcode != 'tuple':
        each = same.intersection(y.operands)
        total += sum(_read(y, o, whole, module) for o in each)
    return min(whole, total)
  if x.opcode in _SLICES and first:
    return min(whole, sum(a.nbytes for a in x.arrays))
  return 0 if x.opcode in _UPDATES and first else whole


def _written(x, lines, module):
  """Bytes that an instruction writes of each of its results."""
  if x.opcode == 'fusion':
    inside, end = module.computations[x.called[0]], module.root(x.called[0])
    ends = [inside[n] for n in end.operands] if end.opcode == 'tuple' else [end]
    return [n for y in ends for n in _written(y, inside, module)]
  if x.opcode == 'bitcast':
    return _written(lines[x.operands[0]], lines, module)
  if x.opcode in _UPDATES:
    x = lines[x.operands[_UPDATES[x.opcode]]]
  return [a.nbytes for a in x.arrays]


def _made(name, index, lines):
  """The instruction that made the room of a value, and its index there."""
  x = lines[name]
  if x.opcode == 'tuple':
    return _made(x.operands[index], 0, lines)
  if x.opcode == 'get-tuple-element':
    return _made(x.operands[0], x.element, lines)
  same = x.opcode in ('bitcast', 'while')
  return _made(x.operands[0], index, lines) if same else (name, index)


class Cycles(NamedTuple):
  """The time of a program for a TPU, as its compiler estimates it."""

  by_part: collections.Counter[str]  # cycles; the parts are those of `_PARTS`
  # Calls of each kernel of Pallas, and their cycles at most; 0 if not known.
  kernels: dict[str, tuple[int, int]]
  unknown: collections.Counter[str]  # instructions without either figure
  bundles: int  # of all instructions: the cycles if nothing waits


# Where the source of an instruction matches, it is of that part of the model;
# the first match counts.
_PARTS = {
  'attention, its shift': r'attention\.attend\S*/(reshape|pad|slice)$',
  'attention': r'attention\.attend',
  'projections': r'/attention[./]|/(Product|o)/',
  'feed-forward layers': r'/ff/',
  'norms': r'/norm\d?/|/norm\d?$',
  'softmax and embedding': r'vocabulary|embed|WordDropout',
  'stacks of the layer loop': r'dynamic_(update_)?(slice|index)|/while$|'
  r'broadcast_in_dim$|/squeeze$',
  'the rest of the model': r'jvp\(|WithRing',
  'optimiser and sums': r'^jit\(step\)',
  'the rest': r'',
}
# The compiler's own instructions, by opcode; most of them change a layout.
_RELAYOUTS = {'copy', 'transpose', 'reshape', 'bitcast', 'fusion'}


def cycles(module: Module, bundles: Mapping[str, int]) -> Cycles:
  """The Cycles of a module; loops of unknown length count once.

  XLA writes on an instruction for how many cycles it holds the core, as it
  expects from its operations and from what it copies between memories; it
  schedules by these figures. For the others, such as kernels of Pallas, their
  `bundles` count. Exchanges, and copies beside the core, are in neither.
  """
  parts, unknown = collections.Counter(), collections.Counter()
  kernels: dict[str, tuple[int, int]] = {}
  total = 0
  # Of equal instructions one is dumped.
  alike = {
    _code(x, lines): bundles[x.name]
    for lines in module.computations.values()
    for x in lines.values()
    if x.name in bundles
  }
  for x, lines, times in module.walk(module.entry):
    if (
      x.opcode in _FREE
      or x.opcode.endswith(('-start', '-done'))
      or re.search(_FREE_CALLS, x.attributes)
    ):
      continue
    n = times * alike.get(_code(x, lines), 0)
    total += n
    if 'target="tpu_custom_call"' in x.attributes:
      name = re.sub(r'[.\d]+$', '', x.name)
      calls, at_most = kernels.get(name, (0, 0))
      kernels[name] = calls + times, at_most + n
    elif found := re.search(r'"estimated_cycles":"(\d+)"', x.attributes):
      parts[_part(x)] += times * int(found[1])
    elif n:
      parts[_part(x)] += n
    else:
      unknown[x.opcode] += times
  return Cycles(parts, kernels, unknown, total)


def _code(x, lines):
  """Equal for instructions that are compiled once for all of them."""
  shapes = [tuple(lines[o].arrays) for o in x.operands if o in lines]
  return re.sub(r'[.\d]+$', '', x.name), tuple(x.arrays), tuple(shapes)


def bundles(folder: str) -> dict[str, int]:
  """{instruction: bundles that it runs} of the files that the compiler dumped.

  A TPU runs a bundle of operations in a cycle, if it waits for nothing. Every
  branch counts as taken; a loop, such as the grid of a kernel, as often as its
  exit test says, once if that compares with no constant.
  """
  return {
    path.name.split('-', 1)[1].rsplit('-', 2)[0]: _bundles(path.read_text())
    for path in sorted(pathlib.Path(folder).glob('*-final_bundles.txt'))
  }


def _bundles(text):
  """The bundles of a file, each a line such as '0x1b LB: >> { operations }'.

  It has a > for each loop around it, unless it is empty. A loop begins at LB,
  counts from 0 and has the number of its iterations in its exit test.
  """
  counts, trips, depth = [0], [1], 0  # of the whole, and of loops around a line
  for line in text.splitlines():
    if bundle := re.match(r' *0[x\da-f]* +(LB)?[A-Z]*: *(>*) *\{(})?', line):
      begins, around, empty = bundle.groups()
      depth = depth if empty else len(around)
      while len(counts) > max(depth + (not begins), 1):
        ended = counts.pop() * trips.pop()
        counts[-1] += ended
      if begins:
        counts.append(0)
        trips.append(1)
      counts[-1] += 1
    if test := re.search(r' (\d+) /\* loop exit test', line):
      trips[-1] = int(test[1])
  return sum(math.prod(trips[: i + 1]) * n for i, n in enumerate(counts))


def _part(x):
  if not x.source:
    return 'relayouts' if x.opcode in _RELAYOUTS else 'the rest'
  matches = (part for part, p in _PARTS.items() if re.search(p, x.source))
  return next(matches)
