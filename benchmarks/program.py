"""A compiled program, read from its HLO text.

XLA prints a module as computations, each a list of instructions

  %name = type opcode(%operand, …), attribute=…, …

of which the one marked ENTRY runs, and calls others; the operations are those
of https://openxla.org/xla/operation_semantics. JAX offers no more than a text:
`cost_analysis` counts a loop once, no collectives and nothing on a GPU, and the
HloModule of `runtime_executable` has neither shapes nor attributes.
"""

import math
import re
from typing import NamedTuple

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # ((dtype, dims), …)


class Instruction(NamedTuple):
  """A line of a computation."""

  name: str  # unique in the module
  shapes: Shapes  # several of a tuple, nested ones flattened
  spaces: tuple[int, ...]  # the memory that each is in; 0 is the main one
  opcode: str
  operands: list[str]  # names; number of a parameter, value of a constant
  attributes: str  # the rest of the line, without metadata
  called: list[str]  # the computations that it runs
  source: str  # where in the Python program it comes from (`op_name`), or ''
  root: bool  # whether the computation returns it


Computation = dict[str, Instruction]  # by name, in the order of execution


def parse(text: str) -> tuple[dict[str, Computation], str]:
  """All computations of a module by name, and the name of the entry."""
  computations, entry, lines = {}, '', {}
  for line in text.splitlines():
    if head := re.match(r'(ENTRY )?%?([\w.\-]+) .*\{\s*$', line):
      lines = computations[head[2]] = {}
      entry = head[2] if head[1] else entry
    elif line[:1] == ' ' and ' = ' in line:
      x = _instruction(line)
      lines[x.name] = x
  return computations, entry


def root(lines: Computation) -> Instruction:
  """What a computation returns."""
  return next(x for x in lines.values() if x.root)


def trips(
  loop: Instruction, computations: dict[str, Computation]
) -> int | None:
  """How often a while loop runs; None if that is not known before it does.

  Some compilers tell. Else it is n of a condition i < n: all loops that
  count do so from 0 in steps of 1.
  """
  if told := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes):
    return int(told[1])
  (condition,) = re.findall(r'condition=%?([\w.\-]+)', loop.attributes)
  inside = computations[condition]
  test = root(inside)
  if test.opcode == 'compare' and 'direction=LT' in test.attributes:
    last = inside[test.operands[1]]
    if last.opcode == 'constant':
      return int(last.operands[0])
  return None


def nbytes(shapes: Shapes) -> int:
  """Bytes of arrays."""
  total = 0
  for dtype, dims in shapes:
    bits = re.findall(r'\d+', 'u8' if dtype == 'pred' else dtype)
    total += math.prod(dims, start=int(bits[0] if bits else 0)) // 8
  return total


def _instruction(line):
  line = re.sub(r'/\*.*?\*/', '', line)
  found = re.match(r' +(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)', line)
  assert found
  root, name, kind, opcode, rest = found.groups()
  # A layout such as {1,0:T(8,128)S(1)} names the memory where it is not 0.
  arrays = re.findall(r'([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?', kind)
  shapes = tuple(
    (t, tuple(map(int, re.findall(r'\d+', dims)))) for t, dims, _ in arrays
  )
  memories = [re.search(r'S\((\d+)\)', layout) for *_, layout in arrays]
  spaces = tuple(int(m[1]) if m else 0 for m in memories)
  inside, rest = re.split(r'\)(?:, |$)', rest, maxsplit=1)
  value = opcode in ('parameter', 'constant')
  operands = [inside] if value else re.findall(r'%([\w.\-]+)', inside)
  source = re.search(r'op_name="((?:[^"\\]|\\.)*)"', rest)
  attributes = re.sub(r'metadata=\{(?:[^{}"]|"[^"]*")*\}', '', rest)
  runs = r'(?:calls|body|to_apply|\w+_computations?)=(\{.*?\}|%?[\w.\-]+)'
  called = re.findall(r'[\w.\-]+', ' '.join(re.findall(runs, attributes)))
  more = attributes, called, source[1] if source else ''
  return Instruction(name, shapes, spaces, opcode, operands, *more, bool(root))
