"""The kernels of a compiled program: their products, bytes and buffers.

An instruction that runs by itself (a fusion, a product, a copy, a call of a
library) is a kernel; what it calls is part of it. In a while loop it runs as
often as the loop does, in a conditional if it is in the branch that moves the
most bytes.

Bytes are operands and results, each read or written once, in the main memory
of the device: of what is sliced the slice, of what is updated in place the
update, nothing of what TPUs keep in VMEM.
"""

import re
from typing import NamedTuple

from benchmarks import products, program
from benchmarks.program import Computation, Instruction, Shapes

# They move nothing, or run instructions that are counted themselves.
_FREE = {
  *('parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast'),
  *('after-all', 'add-dependency', 'opt-barrier', 'optimization-barrier'),
  *('domain', 'partition-id', 'replica-id', 'async-done', 'async-update'),
}
_FREE_CALLS = {'AllocateBuffer', 'ConcatBitcast', 'Sharding'}
_SLICES = {'slice', 'dynamic-slice', 'gather'}
# Which operand is the update of what is written in place.
_UPDATES = {'dynamic-update-slice': 1, 'scatter': 2}


class Kernel(NamedTuple):
  """An instruction that runs on the device."""

  name: str  # of the instruction
  times: int  # how often it runs in a call of the program; 0 is room for others
  products: products.Products  # of one run
  nbytes: int  # read and written, one run
  buffers: Shapes  # what it writes to room of its own, results of all left out
  source: str  # where in the Python program it comes from, or ''


class Found(NamedTuple):
  """What is in a program."""

  kernels: list[Kernel]
  endless: int  # loops of unknown length, counted as if they ran once


def find(text: str, visible: float = 1.0) -> Found:
  """The kernels of a compiled module, in the order in which they run.

  `visible` is the share of keys that a query sees, see `products.of`.
  """
  computations, entry = program.parse(text)
  returned, endless = _returned(computations[entry]), 0

  def run(name, times):
    nonlocal endless
    lines, found = computations[name], []
    for x in lines.values():
      if x.opcode == 'while':
        trips = program.trips(x, computations)
        endless += trips is None
        (body,) = x.called
        inside = run(body, times * (1 if trips is None else trips))
        found += [k._replace(source=k.source or x.source) for k in inside]
      elif x.opcode == 'conditional':
        found += max((run(c, times) for c in x.called), key=_moved)
      elif x.opcode in ('call', 'async-start'):
        found += run(x.called[0], times)
      elif products.target(x) in _FREE_CALLS:
        room = _in_main_memory(x)
        nothing = products.Products()
        found.append(Kernel(x.name, 0, nothing, 0, room, x.source))
      elif not _is_free(x, lines):
        kept = returned if name == entry else set()
        kernel = _kernel(x, lines, computations, kept, visible)
        found.append(kernel._replace(times=times))
    return found

  return Found(run(entry, 1), endless)


def _moved(kernels):
  return sum(k.nbytes * k.times for k in kernels)


def _is_free(x, lines):
  # What begins is counted where it is done.
  if x.opcode in _FREE or x.opcode.endswith('-start'):
    return True
  # TPUs have a core for sums of single numbers.
  alone = not x.called and x.opcode not in ('copy', 'custom-call')
  arrays = [x, *(lines[o] for o in x.operands)]
  return alone and not any(dims for y in arrays for _, dims in y.shapes)


def _in_main_memory(x):
  return tuple(s for s, space in zip(x.shapes, x.spaces) if not space)


def _kernel(x, lines, computations, returned, visible):
  """The Kernel of an instruction that runs once."""
  begun = lines[x.operands[0]] if x.opcode.endswith('-done') else x
  found = products.of(begun, lines, computations, visible)
  read = sum(
    _read(begun, i, x.shapes, lines, computations)
    for i, o in enumerate(begun.operands)
    if o not in begun.operands[:i]
  )
  written = _written(begun, x.shapes, lines, computations)
  main = [i for i, space in enumerate(x.spaces) if not space]
  nbytes = read + sum(written[i] for i in main)
  # What is written in part, or over an operand, has room already.
  taken = {i for y, i in returned if y == x.name} | _aliased(begun)
  whole = [program.nbytes((s,)) for s in x.shapes]
  own = [i for i in main if written[i] == whole[i] and i not in taken]
  buffers = tuple(x.shapes[i] for i in own)
  source = x.source or begun.source or _source(begun, computations)
  return Kernel(x.name, 1, found, nbytes, buffers, source)


def _aliased(x):
  """Which results take the place of an operand."""
  told = x.attributes.partition('output_to_operand_aliasing=')[2]
  return {int(i or 0) for i in re.findall(r'\{(\d*)\}: \(\d+, \{\}', told)}


def _source(x, computations):
  """Where the result comes from of what an instruction calls, or the rest."""
  for name in x.called:
    lines = computations[name]
    sources = [y.source for y in (program.root(lines), *lines.values())]
    if any(sources):
      return next(filter(None, sources))
  return ''


def _read(x, index, results, lines, computations):
  """Bytes that an instruction reads of an operand."""
  operand, opcode = lines[x.operands[index]], x.opcode.removesuffix('-start')
  whole = program.nbytes(_in_main_memory(operand))
  if opcode == 'fusion':
    part = _read_inside(x.called[0], index, computations)
    return whole if part is None else min(whole, part)
  if opcode in _SLICES and index == 0:
    return min(whole, program.nbytes(results))
  if opcode in _UPDATES and index == 0:
    return min(whole, _read_of_updated(x, lines))
  return whole


def _update(x, lines):
  return lines[x.operands[_UPDATES[x.opcode]]].shapes


def _read_of_updated(x, lines):
  # scatter may add to what is there.
  return program.nbytes(_update(x, lines)) if x.opcode == 'scatter' else 0


def _read_inside(name, index, computations):
  """Bytes that a computation reads of a parameter; None is all of it."""
  lines, total = computations[name], 0
  updates = {y.name for y in _results(lines) if y.opcode in _UPDATES}
  held = set()
  for x in lines.values():
    places = [i for i, o in enumerate(x.operands) if o in held]
    if x.opcode == 'parameter':
      held |= {x.name} if x.operands == [str(index)] else set()
    elif x.opcode in ('constant', 'tuple') or not places:
      continue
    elif _is_same(x):
      held.add(x.name)
    elif x.opcode in _SLICES and places == [0]:
      total += program.nbytes(x.shapes)
    elif x.name in updates and places == [0]:
      total += _read_of_updated(x, lines)
    elif x.opcode == 'fusion':
      parts = [_read_inside(x.called[0], i, computations) for i in places]
      if None in parts:
        return None
      total += sum(parts)
    else:
      return None
  return total


def _written(x, results, lines, computations):
  """Bytes that an instruction writes of each of its results."""
  whole = [program.nbytes((s,)) for s in results]
  if x.opcode.startswith('fusion'):
    return _written_inside(x.called[0], computations)
  if x.opcode in _UPDATES:
    return [program.nbytes(_update(x, lines))]
  library = products.target(x).startswith(('__cublas', '__cudnn'))
  if library and results[-1][0] in ('s8', 'u8'):
    whole[-1] = 0  # the room that it works in
  return whole


def _written_inside(name, computations):
  lines, written = computations[name], []
  for x in _results(lines):
    if x.opcode == 'fusion':
      written += _written_inside(x.called[0], computations)
      continue
    shapes = x.shapes
    if x.opcode in _UPDATES:
      into = _unchanged(lines[x.operands[0]], lines)
      new = products.target(into) == 'AllocateBuffer'
      if new or into.opcode == 'parameter':
        shapes = _update(x, lines)
    written += [program.nbytes((s,)) for s in shapes]
  return written


def _is_same(x):
  """Whether an instruction gives its operand another shape or layout alone."""
  return x.opcode == 'bitcast' or (x.opcode == 'fusion' and 0 in _aliased(x))


def _unchanged(x: Instruction, lines: Computation) -> Instruction:
  while _is_same(x):
    x = lines[x.operands[0]]
  return x


def _results(lines):
  """The instructions that make the results of a computation."""
  end = program.root(lines)
  names = end.operands if end.opcode == 'tuple' else [end.name]
  return [_unchanged(lines[n], lines) for n in names]


def _returned(lines):
  """{(instruction, index)} of what the entry returns."""
  end = program.root(lines)
  names = end.operands if end.opcode == 'tuple' else [end.name]
  return {_origin(n, 0, lines) for n in names}


def _origin(name, index, lines):
  """The instruction that made the room of a value, and its index there."""
  x = lines[name]
  if x.opcode == 'get-tuple-element':
    (index,) = map(int, re.findall(r'index=(\d+)', x.attributes))
    return _origin(x.operands[0], index, lines)
  if x.opcode in ('bitcast', 'while'):
    return _origin(x.operands[0], index, lines)
  if x.opcode == 'tuple':
    return _origin(x.operands[index], 0, lines)
  return name, index
