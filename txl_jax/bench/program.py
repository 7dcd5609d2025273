"""Reading compiled programs: the collectives of an HLO module's text.

XLA prints a module as computations, each a list of instructions

  %name = type opcode(%operand, …), attribute=…, …

of which the one marked ENTRY runs, and calls others. See
https://openxla.org/xla/operation_semantics for the operations.
"""

import dataclasses
import math
import re

_BYTES = {'pred': 1, 'u8': 1, 's8': 1, 'bf16': 2, 'f16': 2, 'u16': 2, 's16': 2}
_BYTES |= {'f32': 4, 's32': 4, 'u32': 4, 'f64': 8, 's64': 8, 'u64': 8}

KINDS = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
)

# Operations that show a part of their operand, or move it: what comes out of
# them holds numbers of it, unchanged but for their dtype.
_MOVES = {
  'bitcast',
  'broadcast',
  'concatenate',
  'convert',
  'copy',
  'copy-done',
  'copy-start',
  'dynamic-slice',
  'dynamic-update-slice',
  'gather',
  'get-tuple-element',
  'optimization-barrier',
  'pad',
  'reshape',
  'reverse',
  'scatter',
  'select',
  'slice',
  'transpose',
  'tuple',
}


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: unique in the module.
    shapes: ((dtype, dims), …), several of a tuple, nested ones flattened.
    opcode: as XLA prints it.
    operands: names; of a parameter its number, of a constant its value.
    attributes: the rest of the line, without metadata.
    source: where in the Python program it comes from (`op_name`), or ''.
    root: whether the computation returns it.
  """

  name: str
  shapes: tuple
  opcode: str
  operands: tuple
  attributes: str
  source: str
  root: bool

  def called(self):
    """Names of the computations that it runs."""
    found = re.findall(
      r'(?:calls|body|to_apply|true_computation|false_computation)='
      r'%?([\w.\-]+)',
      self.attributes,
    )
    for names in re.findall(
      r'(?:branch|called)_computations=\{([^}]*)\}', self.attributes
    ):
      found += re.findall(r'[\w.\-]+', names)
    return found


@dataclasses.dataclass(frozen=True)
class Collective:
  """An exchange between devices.

  Attributes:
    kind: one of KINDS.
    shapes: of the operands, as in `Instruction`.
    results: of what it yields.
    group: how many devices exchange with each other.
    times: how often it runs in a call of the program; of a loop whose length
      XLA does not know it is once.
    sent: bytes that a device sends in one of them, if each link carries every
      number once: n - 1 of n parts of what is gathered, reduced or exchanged,
      twice that of an all-reduce.
    source: as in `Instruction`.
    moved: labels of the arguments whose numbers it moves, see `collectives`.
  """

  kind: str
  shapes: tuple
  results: tuple
  group: int
  times: int
  sent: int
  source: str
  moved: frozenset


class Module:
  """A module, parsed."""

  def __init__(self, text):
    """Reads what `compiled.as_text()` gives."""
    self.computations, self.entry, lines = {}, '', []
    for line in text.splitlines():
      if line[:1] in ('%', 'E') and line.rstrip().endswith('{'):
        name = re.match(r'(ENTRY )?%?([\w.\-]+)', line)
        assert name
        lines = self.computations.setdefault(name[2], [])
        if name[1]:
          self.entry = name[2]
      elif line[:1] == ' ' and ' = ' in line:
        lines.append(_instruction(line))

  def times(self):
    """{computation: how often it runs in a call of the program}."""
    count = dict.fromkeys(self.computations, 0)

    def visit(name, times):
      count[name] += times
      for instruction in self.computations[name]:
        loop = instruction.opcode == 'while'
        more = self._trips(instruction) if loop else 1
        for called in instruction.called():
          visit(called, times * more)

    visit(self.entry, 1)
    return count

  def _trips(self, loop):
    """How often a loop runs; 1 if that is not known before it does.

    Some compilers tell. Else it is n of a condition i < n: all loops that
    count do so from 0 in steps of 1.
    """
    told = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes)
    if told:
      return int(told[1])
    condition = re.search(r'condition=%?([\w.\-]+)', loop.attributes)
    assert condition
    inside = {x.name: x for x in self.computations[condition[1]]}
    root = next(x for x in inside.values() if x.root)
    if root.opcode == 'compare' and 'direction=LT' in root.attributes:
      last = inside[root.operands[1]]
      if last.opcode == 'constant':
        return int(last.operands[0])
    return 1

  def origins(self, label):
    """Which numbers of the arguments each instruction moves on.

    Args:
      label: function of the source of an argument to a label, '' for none.

    Returns:
      {instruction: a frozenset of labels for each element of its result}.
    """
    found = {}

    def run(name, arguments):
      here = {}
      for x in self.computations[name]:
        given = [here[o] for o in x.operands if o in here]
        width = max(len(x.shapes), 1)
        if x.opcode == 'parameter':
          index = int(x.operands[0])
          out = arguments[index] if index < len(arguments) else ()
          out = tuple(out)
          if name == self.entry:
            own = label(x.source)
            out = (frozenset([own] if own else []),) * width
        elif x.opcode == 'while':
          out = given[0]
          body = x.called()[0]
          while True:
            after = _union(out, run(body, [out]))
            if after == out:
              break
            out = after
        elif x.opcode == 'tuple':
          out = tuple(s for g in given for s in g)
        elif x.opcode == 'get-tuple-element':
          out = _element(x, given[0])
        elif x.called() and x.opcode in ('fusion', 'call', 'async-start'):
          out = run(x.called()[0], given)
        elif x.opcode == 'conditional':
          out = ()
          for called, argument in zip(x.called(), given[1:]):
            out = _union(out, run(called, [argument]))
        elif x.opcode in _MOVES or x.opcode.endswith(('-start', '-done')):
          out = (frozenset().union(*(s for g in given for s in g)),) * width
        else:
          out = ()
        out = (*out, *[frozenset()] * (width - len(out)))[:width]
        here[x.name] = out
        found[x.name] = _union(found.get(x.name, ()), out)
      return next(here[x.name] for x in self.computations[name] if x.root)

    run(self.entry, [])
    return found


def collectives(text, label=lambda source: ''):
  """The collectives of a compiled program.

  Args:
    text: of the compiled module.
    label: function of the source of an argument, such as
      'state.memory.states', to a label, '' for none.

  Returns:
    A list of Collective; those that are equal are one, their times added.
  """
  module = Module(text)
  times, origins = module.times(), module.origins(label)
  total = {}
  for name, instructions in module.computations.items():
    shapes = {x.name: x.shapes for x in instructions}
    for x in instructions:
      kind = x.opcode.removesuffix('-start')
      if kind not in KINDS or not times[name]:
        continue
      # How TPUs are told to keep a part of what they sum.
      if name.startswith('all-reduce-scatter') and kind == 'all-reduce':
        kind = 'reduce-scatter'
      operands = tuple(s for o in x.operands for s in shapes.get(o, ()))
      moved = (s for o in x.operands for s in origins.get(o, ()))
      # A start yields its operands too.
      results = x.shapes
      if x.opcode.endswith('-start') and kind != 'all-reduce':
        results = x.shapes[len(operands) : 2 * len(operands)]
      pairs = kind == 'collective-permute'
      group = 2 if pairs else _group(x.attributes)
      found = Collective(
        kind,
        operands,
        results,
        group,
        0,
        _sent(kind, operands, results, group),
        x.source,
        frozenset().union(*moved),
      )
      total[found] = total.get(found, 0) + times[name]
  return [dataclasses.replace(c, times=n) for c, n in total.items()]


def _element(x, sets):
  """What get-tuple-element takes of the labels of its operand."""
  index = re.search(r'index=(\d+)', x.attributes)
  assert index
  return (sets[int(index[1])],) if int(index[1]) < len(sets) else ()


def _union(a, b):
  n = max(len(a), len(b))
  pad = lambda x: (*x, *[frozenset()] * (n - len(x)))
  return tuple(x | y for x, y in zip(pad(a), pad(b)))


def _sent(kind, operands, results, group):
  size = lambda shapes: sum(_BYTES.get(d, 0) * math.prod(n) for d, n in shapes)
  if kind == 'collective-permute':
    return size(operands)
  whole = size(results) if kind == 'all-gather' else size(operands)
  return whole * (group - 1) // group * (2 if kind == 'all-reduce' else 1)


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


def _closing(text):
  """Where the parenthesis that `text` starts with is closed."""
  depth = 0
  for at, letter in enumerate(text):
    depth += (letter == '(') - (letter == ')')
    if not depth:
      return at
  raise ValueError(f'no end of {text[:40]!r}')


def _instruction(line):
  line = re.sub(r'/\*.*?\*/', '', line.strip())
  name, _, rest = line.removeprefix('ROOT ').partition(' = ')
  end = _closing(rest) + 1 if rest[0] == '(' else rest.index(' ')
  kind = re.sub(r'\{[^}]*\}', '', rest[:end])  # without layouts
  opcode, _, rest = rest[end:].lstrip().partition('(')
  end = _closing('(' + rest)
  inside, rest = rest[: end - 1], rest[end:]
  source = re.search(r'op_name="((?:[^"\\]|\\.)*)"', rest)
  return Instruction(
    name=name.lstrip('%'),
    shapes=tuple(
      (dtype, tuple(int(n) for n in re.findall(r'\d+', dims)))
      for dtype, dims in re.findall(r'([a-z]+\d*)\[([\d,<=]*)\]', kind)
    ),
    opcode=opcode,
    operands=(inside,)
    if opcode in ('parameter', 'constant')
    else tuple(re.findall(r'%([\w.\-]+)', inside)),
    attributes=re.sub(r'metadata=\{(?:[^{}"]|"[^"]*")*\}', '', rest),
    source=source[1] if source else '',
    root=line.startswith('ROOT '),
  )
