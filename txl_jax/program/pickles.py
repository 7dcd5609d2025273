"""Reads pickles of other programs without running their code.

A pickle may import and call any name. Here, a name must be one that published
files use, and becomes a `Stub`, which only keeps the arguments and state of the
object; any other name is refused.

Pickles are read by `pickle._Unpickler`, the pure-Python unpickler. The one in C
allocates as many bytes as a file claims to have, copies the tokens of a corpus,
and cannot count its steps.
"""

import pickle
import re
import struct
from collections.abc import Callable
from typing import Any

from txl_jax.program import files
from txl_jax.program.errors import UserError, reason

_LARGE = 1 << 16  # longer bytes (tokens of a corpus) are not copied
_STEPS = 40_000_000  # maximum cost of all opcodes, see `_bounded`
_CONTAINERS = b'(]}ldt\x85\x86\x87\x8f\x91Rio\x81\x92'  # their opcodes
_MEMO = b'pqr\x94'
_TUPLES = b't\x85\x86\x87'
_LINE = 1000  # maximum bytes of a line, such as a name

# Names in published files, module.name: plain values, arrays of numpy (none of
# which is read), modules of torch, and classes of the published code bases.
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
# Number types, which are never called; each is represented by its name.
_TYPES = re.compile(
  r'torch(\.cuda|\.storage)?\.(\w+Storage|\w*int\d+|b?float\d+|bool)'
)


class Stub(dict):
  """Stands for an object: keeps its arguments, items and state."""

  __slots__ = 'args', 'state'
  args: tuple
  state: Any

  def __new__(cls, *args):
    """Keeps the arguments."""
    stub = super().__new__(cls)
    stub.args = args
    stub.state = None
    return stub

  def __init__(self, *_):
    pass  # a dict would be filled with the arguments

  def __setstate__(self, state: Any) -> None:
    self.state = state


class Tensor(Stub):
  """A tensor; args are its storage, offset, shape, strides and more."""


class _Dict(Stub):
  """A dict type of the module `collections`."""


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
  """The items of a dict, or the attributes of an object; or else empty."""
  if isinstance(value, _Dict) and not value and value.args:
    # A Counter is pickled with a dict, Python 2's OrderedDict with a list.
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
  """The object of the pickle at `start` in the data, and where it ends.

  Strings of Python 2 become str (UTF-8, surrogateescape); large bytes are views
  of the data. `persistent` maps a persistent id to its object. UserError, with
  the file's `name`: it is damaged or too large, or imports a refused name.
  """
  stream = _Stream(memoryview(data), start)
  try:
    return _Unpickler(stream, name, persistent).load(), stream.at
  except (pickle.UnpicklingError, EOFError, struct.error, *files.ODD) as e:
    raise UserError(f'{name} is not a valid pickle: {reason(e)}') from e


class _Stream:
  """Data as a file; large parts are not copied."""

  def __init__(self, data, at):
    self.data, self.at = data, at

  def read(self, size):
    part = self.data[self.at : self.at + size]
    self.at += len(part)
    if len(part) < size:
      raise EOFError('it ends too early')
    return part if size > _LARGE else bytes(part)

  def readline(self):
    part = bytes(self.data[self.at : self.at + _LINE])
    return self.read(part.index(b'\n') + 1)


class _Tuple(tuple):
  """An unhashable tuple: hashing a nested one visits every leaf."""

  __slots__ = ()
  __hash__ = None  # pyright: ignore


def _bounded(code, operation):
  """An operation of the unpickler that adds its cost to the steps."""
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
  """The unpickler with stubs for names and a bound on its steps."""

  dispatch = {
    code: _bounded(code, operation)
    for code, operation in pickle._Unpickler.dispatch.items()
    if code != pickle.BYTEARRAY8[0]  # it allocates the claimed size
  }

  def __init__(self, stream, name, persistent):
    super().__init__(stream)
    self.name = name
    self.persistent = persistent
    self.steps = 0

  def persistent_load(self, pid):
    return self.persistent(pid)

  def find_class(self, module, name):
    path = f'{module}.{name}'
    if _TYPES.fullmatch(path):
      return name
    if path in _KINDS or _ALLOWED.fullmatch(path):
      return _KINDS.get(path, Stub)
    raise UserError(
      f'{self.name} is refused: it names {ascii(path[:200])[1:-1]}, which '
      'no weights or vocabulary need'
    )

  def _decode_string(self, value):
    if isinstance(value, memoryview):
      return value
    return str(value, 'utf-8', 'surrogateescape')
