"""Pickles of other programs, read without running what is in them.

A pickle may import and call whatever it names. Here a name is looked up in the
list of those that published files have, and stands for a `Stub`, which only
keeps what it would have been made of; any other name is refused.

The reading is done by `pickle._Unpickler`, Python's unpickler in its form in
Python. The one in C takes memory for as many bytes as a file claims to have,
copies the tokens of a corpus, and its steps cannot be counted.
"""

import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

from txl_jax.program import files
from txl_jax.program.errors import UserError

_LARGE = 1 << 16  # bytes that are left where they are, as tokens of a corpus
_STEPS = 40_000_000  # opcodes; a container counts as eight, a memo as four
_CONTAINERS = b'(]}ldt\x85\x86\x87\x8f\x91Rio\x81\x92'  # opcodes that make one
_MEMO = b'pqr\x94'
_TUPLES = b't\x85\x86\x87'
_LINE = 1000  # bytes of one, as of a name

# What published files name, module.name: plain values, arrays of numpy (none
# of which is read), modules of torch, and classes of the published code bases.
_ALLOWED = re.compile(
  r"""
  (__builtin__|builtins)\.(object|list|dict|tuple|set|frozenset|bytearray|int
    |float|complex|slice)
  |(copy_reg|copyreg)\._reconstructor|_codecs\.encode|re\._compile
  |argparse\.Namespace|pathlib\.(PurePosixPath|PosixPath)
  |numpy\.(ndarray|dtype|str_|bool_|u?int\d+|float\d+|dtypes\.\w+DType)
  |numpy\._?core\.(multiarray|numeric)\.(_reconstruct|scalar|_frombuffer)
  |torch\.(Size|device|serialization\._get_layout|optim\.\w+\.\w+)
  |torch\.nn\.(modules|parallel)\.\w+\.\w+
  |torch\.nn\.backends\.thnn\._get_thnn_function_backend
  |(utils\.)?(mem_transformer|proj_adaptive_softmax|adaptive_softmax
    |log_uniform_sampler|data_parallel|fp16_opt)\.\w+
  |(utils\.)?(vocabulary|data_utils)\.(Vocab|OpenAIVocab|Corpus)
  |(transformers|pytorch_transformers|pytorch_pretrained_bert
    |pytorch_lightning|lightning|lightning_fabric)(\.\w+)+
  |tokenizers\.AddedToken|sacremoses\.\w+\.\w+
  """,
  re.VERBOSE,
)
# Types of numbers, which stand for themselves: they are never called.
_TYPES = re.compile(
  r'torch(\.cuda|\.storage)?\.(\w+Storage|\w*int\d+|b?float\d+|bool)'
)


class Stub(dict):
  """What calling a name would have made: arguments, items and state."""

  __slots__ = 'args', 'state'
  args: tuple
  state: Any

  def __new__(cls, *args):
    """Keeps the arguments."""
    made = super().__new__(cls)
    made.args, made.state = args, None
    return made

  def __init__(self, *_):
    pass  # a dict would be filled with the arguments

  def __setstate__(self, state: Any) -> None:
    self.state = state


class Tensor(Stub):
  """A tensor: its storage, offset, shape, strides and more are the args."""


class _Dict(Stub):
  """A dict of collections."""


class _Parameter(Stub):
  def __new__(cls, tensor, *_):
    return tensor


_KINDS = {
  'collections.OrderedDict': _Dict,
  'collections.Counter': _Dict,
  'collections.defaultdict': _Dict,
  'torch._utils._rebuild_tensor': Tensor,
  'torch._utils._rebuild_tensor_v2': Tensor,
  'torch._utils._rebuild_parameter': _Parameter,
  'torch._utils._rebuild_parameter_with_state': _Parameter,
  'torch.nn.parameter.Parameter': _Parameter,
}


def fields(value: Any) -> dict[Any, Any]:
  """The items of a dict, or the attributes of an object; empty for all else."""
  if isinstance(value, _Dict) and not value and value.args:
    # A Counter is made of a dict; in Python 2, an OrderedDict of a list.
    value = value.args[0]
    value = dict(value) if isinstance(value, list) else value
  elif isinstance(value, Stub) and not isinstance(value, _Dict):
    value = value.state
  return value if isinstance(value, dict) else {}


def loads(
  data: memoryview | bytes,
  name: str,
  persistent: Callable[[Any], Any] = lambda identity: None,
  start: int = 0,
) -> tuple[Any, int]:
  """The object of a pickle that starts in the data, and where it ends.

  Strings of Python 2 are text (UTF-8, surrogateescape); large bytes are a view
  of the data. `persistent` takes a persistent id and gives what stands for it.
  UserError, which calls the file `name`: it is damaged or too large, or names
  what is not allowed.
  """
  stream = _Stream(memoryview(data), start)
  try:
    return _Unpickler(stream, name, persistent).load(), stream.at
  except (pickle.UnpicklingError, EOFError, struct.error, *files.ODD) as e:
    reason = ' '.join(f'{e}'.split())[:80] or type(e).__name__
    raise UserError(f'{name} is no whole pickle: {reason}') from None


class _Stream:
  """Data as a file; what is large is not copied."""

  def __init__(self, data, at):
    self.data, self.at = data, at

  def read(self, size):
    found = self.data[self.at : self.at + size]
    self.at += len(found)
    if len(found) < size:
      raise EOFError('it ends too early')
    return found if size > _LARGE else bytes(found)

  def readline(self):
    some = bytes(self.data[self.at : self.at + _LINE])
    return self.read(some.index(b'\n') + 1)


class _Tuple(tuple):
  """A tuple that is no key: its hash would take as long as it has leaves."""

  __slots__ = ()
  __hash__ = None  # pyright: ignore


def _bounded(code, operation):
  """An operation of the unpickler that is counted."""
  cost = 8 if code in _CONTAINERS else 4 if code in _MEMO else 1

  def run(self):
    self.steps += cost
    if self.steps > _STEPS:
      raise pickle.UnpicklingError(f'it takes more than {_STEPS:,} steps')
    operation(self)
    if code in _TUPLES:
      self.stack[-1] = _Tuple(self.stack[-1])

  return run


class _Unpickler(pickle._Unpickler):
  """With stubs for names, and bounds."""

  dispatch = {
    code: _bounded(code, operation)
    for code, operation in pickle._Unpickler.dispatch.items()
    if code != pickle.BYTEARRAY8[0]  # which takes the memory that it claims
  }

  def __init__(self, stream, name, persistent):
    super().__init__(stream)
    self.name, self.persistent, self.steps = name, persistent, 0

  def persistent_load(self, pid):
    return self.persistent(pid)

  def find_class(self, module, name):
    path = f'{module}.{name}'
    if _TYPES.fullmatch(path):
      return name
    if path in _KINDS or _ALLOWED.fullmatch(path):
      return _KINDS.get(path, Stub)
    raise UserError(
      f'{self.name} is refused: it names {ascii(path[:200])[1:-1]}, which is '
      'not needed for weights or words'
    )

  def _decode_string(self, value):
    if isinstance(value, memoryview):
      return value
    return str(value, 'utf-8', 'surrogateescape')
