"""Pickles, read without importing, calling or looking up anything they name.

A pickle is a program for a small stack machine that may import and call
whatever it names. This is such a machine for protocols 2 to 5 without either
ability: what a pickle names becomes a `Name`, what it calls or makes an
`Object` that only keeps the arguments and the state. A name that is not among
`ALLOWED` is refused, though nothing would have come of it: a file that has one
is either hostile or not what it is taken for.

Lengths and counts are held to the data before anything is made of them. Text
and bytes of more than 64 KiB, such as the tokens of a corpus, are not copied:
they stay views of the data. Nothing here recurses.
"""

import struct
from collections.abc import Callable
from typing import Any

from txl_jax import files
from txl_jax.convert.inert import ALLOWED, Name, Object, Refused
from txl_jax.errors import UserError

_LARGE = 1 << 16  # bytes of text or bytes that are left where they are
_STEPS = 40_000_000  # opcodes; a container counts as eight, a memo as four
_NAME = 200  # characters of a name


class _Mark:
  """The place on the stack where the items of a container begin."""


_MARK = _Mark()
_SET = Name('builtins', 'set')
Persistent = Callable[[Any], Any]


def loads(
  data: memoryview | bytes,
  name: str,
  persistent: Persistent | None = None,
  start: int = 0,
) -> tuple[Any, int]:
  """The object of a pickle that starts in the data, and where it ends.

  OrderedDict, Counter and defaultdict are dicts, whose keys are numbers and
  text; strings of Python 2 are text (UTF-8, surrogateescape). `persistent`
  takes a persistent id and gives what stands for it. UserError, which calls
  the file `name`: it is damaged or too large, or names what is not allowed.
  """
  try:
    return _Machine(memoryview(data), persistent, start).run()
  except Refused as e:
    raise UserError(f'{name} is refused: {e}') from None
  except (struct.error, *files.ODD) as e:
    reason = ' '.join(f'{e}'.split())[:80] or type(e).__name__
    raise UserError(f'{name} is no whole pickle: {reason}') from None


class _Machine:
  """The stack machine; what is wrong raises a ValueError or its like."""

  def __init__(self, data, persistent, start):
    self.data, self.at, self.persistent = data, start, persistent
    self.stack, self.memo, self.steps = [], {}, 0

  def run(self):
    """The object that STOP leaves, and the place after it."""
    data, operations, end = self.data, _OPERATIONS, len(self.data)
    while True:
      if self.at >= end:
        raise ValueError('it ends too early')
      code = data[self.at]
      self.at += 1
      self.steps += 1
      if code == 0x2E:  # STOP
        return self.stack.pop(), self.at
      operation = operations.get(code)
      if operation is None:
        raise ValueError(f'opcode {code:#04x} is none of protocols 2 to 5')
      operation(self)
      if self.steps > _STEPS:
        raise Refused(f'it takes more than {_STEPS:,} steps')

  def number(self, form, size):
    """A number of a struct's form, which the next bytes hold."""
    (found,) = struct.unpack_from(form, self.data, self.at)
    self.at += size
    return found

  def take(self, size):
    """The next bytes."""
    if not 0 <= size <= len(self.data) - self.at:
      raise ValueError('it ends too early')
    found = self.data[self.at : self.at + size]
    self.at += size
    return found

  def line(self):
    """Text up to the end of the line."""
    some = bytes(self.data[self.at : self.at + _NAME + 1])
    end = some.find(b'\n')
    if end < 0:
      raise ValueError('a name is too long')
    self.at += end + 1
    return some[:end].decode()

  def text(self, size):
    """Text of that many bytes, or a view of them if they are many."""
    found = self.take(size)
    if size > _LARGE:
      return found
    return str(found, 'utf-8', 'surrogateescape')

  def bytes(self, size):
    """That many bytes, or a view of them if they are many."""
    found = self.take(size)
    return found if size > _LARGE else bytes(found)

  def integer(self, size):
    """A whole number of that many bytes, at most 16."""
    if size > 16:
      raise ValueError('a number has more than 16 bytes')
    return int.from_bytes(self.take(size), 'little', signed=True)

  def container(self, value):
    """Pushes a container."""
    self.steps += 7
    self.stack.append(value)

  def items(self):
    """What is on the stack after the last mark, which are taken off it."""
    stack = self.stack
    place = len(stack) - 1
    while stack[place] is not _MARK:
      place -= 1
      if place < 0:
        raise ValueError('a mark is missing')
    found = stack[place + 1 :]
    del stack[place:]
    return found

  def set_items(self, pairs):
    """Fills the dict on top of the stack from [key, value, key, value…]."""
    target = self.stack[-1]
    if type(target) is not dict or len(pairs) % 2:
      raise ValueError('items are set in what is no dict')
    for key in pairs[::2]:
      _check_key(key)
    target.update(zip(pairs[::2], pairs[1::2]))

  def append(self, items):
    """Extends the list on top of the stack."""
    if type(self.stack[-1]) is not list:
      raise ValueError('items are appended to what is no list')
    self.stack[-1].extend(items)

  def find(self, module, name):
    """Pushes a name, if it is allowed."""
    if not isinstance(module, str) or not isinstance(name, str):
      raise ValueError('a name is no text')
    if not ALLOWED.fullmatch(f'{module} {name}'):
      said = ascii(f'{module}.{name}'[:_NAME])[1:-1]
      raise Refused(
        f'it names {said}, which is not needed for weights or words'
      )
    self.stack.append(Name(module, name))

  def call(self):
    """Replaces a name and its arguments by an object that keeps them."""
    args, kind = self.stack.pop(), self.stack.pop()
    if type(kind) is not Name or type(args) is not tuple:
      raise ValueError('what is called is no name, or has no arguments')
    self.container(self.called(kind, args))

  def called(self, kind, args):
    """A dict for the dicts of `collections`, an object for all else."""
    if kind.module != 'collections':
      if kind.name == '_reconstructor' and args and type(args[0]) is Name:
        kind, args = args[0], ()
      return Object(kind, args)
    found = {}
    pairs = args[-1] if args else ()
    if type(pairs) is dict:
      pairs = pairs.items()
    elif type(pairs) is not list:
      pairs = ()  # a defaultdict has the kind of its values
    self.steps += len(pairs)  # which could be the same ones again and again
    if self.steps > _STEPS:
      return found
    for key, value in pairs:  # of lists in Python 2
      _check_key(key)
      found[key] = value
    return found

  def build(self):
    """Gives an object its state."""
    state, target = self.stack.pop(), self.stack[-1]
    if type(target) is Object:
      target.state = state
    elif type(target) is not dict:  # _metadata of a state dict
      raise ValueError('a state is given to what has none')

  def identify(self):
    """Replaces a persistent id by what stands for it."""
    if self.persistent is None:
      raise ValueError('it refers to what is outside of it')
    self.stack.append(self.persistent(self.stack.pop()))

  def put(self, place):
    """Remembers what is on top of the stack."""
    self.steps += 3
    self.memo[place] = self.stack[-1]


def _check_key(key):
  """Refuses keys whose hash takes long, or is the same for many."""
  if type(key) is int and not -(1 << 63) <= key < 1 << 64:
    raise ValueError('a key is a number of more than 64 bits')
  if type(key) not in (str, int, float, bool, bytes, type(None)):
    raise ValueError(f'a key is a {type(key).__name__}')


def _protocol(m):
  if (found := m.number('<B', 1)) > 5:
    raise ValueError(f'its protocol is {found}')


def _tuple(n):
  def make(m):
    if len(m.stack) < n:
      raise ValueError('the stack has too little')
    items = tuple(m.stack[-n:])
    del m.stack[-n:]
    m.container(items)

  return make


def _new_with_names(m):
  names, args = m.stack.pop(), m.stack.pop()
  if names != {}:
    raise ValueError('an object has arguments with names')
  m.stack.append(args)
  m.call()


def _pop(m):
  m.stack.pop()


def _set_item(m):
  value, key = m.stack.pop(), m.stack.pop()
  m.set_items([key, value])


def _append_one(m):
  m.append([m.stack.pop()])


def _add_items(m):
  m.items()  # of a set: none that is read is one


def _sized(push, form, size):
  def operation(m):
    m.stack.append(push(m, m.number(form, size)))

  return operation


def _pushes(value):
  return lambda m: m.stack.append(value)


def _number(form, size):
  return lambda m: m.stack.append(m.number(form, size))


def _gets(form, size):
  return lambda m: m.stack.append(m.memo[m.number(form, size)])


def _puts(form, size):
  return lambda m: m.put(m.number(form, size))


_Text, _Bytes = _Machine.text, _Machine.bytes
_BY_NAME: dict[bytes, Callable[[_Machine], Any]] = {
  b'\x80': _protocol,
  b'\x95': lambda m: m.number('<Q', 8),  # FRAME
  b'(': _pushes(_MARK),
  b'0': _pop,
  b'1': lambda m: m.items(),  # POP_MARK
  b'2': lambda m: m.stack.append(m.stack[-1]),
  b'N': _pushes(None),
  b'\x88': _pushes(True),
  b'\x89': _pushes(False),
  b'J': _number('<i', 4),
  b'K': _number('<B', 1),
  b'M': _number('<H', 2),
  b'G': _number('>d', 8),
  b'\x8a': _sized(_Machine.integer, '<B', 1),
  b'\x8b': _sized(_Machine.integer, '<i', 4),
  b'T': _sized(_Text, '<i', 4),  # a string of Python 2
  b'U': _sized(_Text, '<B', 1),
  b'X': _sized(_Text, '<I', 4),
  b'\x8c': _sized(_Text, '<B', 1),
  b'\x8d': _sized(_Text, '<Q', 8),
  b'B': _sized(_Bytes, '<I', 4),
  b'C': _sized(_Bytes, '<B', 1),
  b'\x8e': _sized(_Bytes, '<Q', 8),
  b'\x96': _sized(_Bytes, '<Q', 8),
  b')': lambda m: m.container(()),
  b']': lambda m: m.container([]),
  b'}': lambda m: m.container({}),
  b'\x8f': lambda m: m.container(Object(_SET, ())),
  b't': lambda m: m.container(tuple(m.items())),
  b'l': lambda m: m.container(m.items()),
  b'\x85': _tuple(1),
  b'\x86': _tuple(2),
  b'\x87': _tuple(3),
  b'a': _append_one,
  b'e': lambda m: m.append(m.items()),
  b's': _set_item,
  b'u': lambda m: m.set_items(m.items()),
  b'\x90': _add_items,
  b'\x91': lambda m: m.container(Object(_SET, tuple(m.items()))),
  b'h': _gets('<B', 1),
  b'j': _gets('<I', 4),
  b'q': _puts('<B', 1),
  b'r': _puts('<I', 4),
  b'\x94': lambda m: m.put(len(m.memo)),
  b'c': lambda m: m.find(m.line(), m.line()),
  b'\x93': lambda m: m.find(*_tuple(2)(m) or m.stack.pop()),
  b'R': _Machine.call,
  b'\x81': _Machine.call,
  b'\x92': _new_with_names,
  b'b': _Machine.build,
  b'Q': _Machine.identify,
}
_OPERATIONS = {code[0]: operation for code, operation in _BY_NAME.items()}
