"""Stand-ins for the classes and functions that a pickle names.

Nothing is looked up, called or made: a name is just two strings.
"""

import dataclasses
import re
from typing import Any, NamedTuple

# What published files name, as regular expressions over 'module name'.
ALLOWED = re.compile(
  '|'.join(
    [
      r'(__builtin__|builtins) (object|list|dict|tuple|set|frozenset|bytearray|'
      r'int|float|complex|slice)',
      r'(copy_reg|copyreg) _reconstructor',
      r'_codecs encode',
      r'collections (OrderedDict|Counter|defaultdict)',
      r'argparse Namespace',
      r'pathlib (PurePosixPath|PosixPath)',
      # Arrays and numbers of numpy: nothing that is read is one.
      r'numpy (ndarray|dtype|str_|bool_|u?int\d+|float\d+)',
      r'numpy\._?core\.(multiarray|numeric) '
      r'(_reconstruct|scalar|_frombuffer)',
      r'numpy\.dtypes \w+DType',
      # Tensors, their storages, and the classes of modules.
      r'torch(\.cuda)? (\w+Storage|Size|device|\w*int\d+|b?float\d+|bool)',
      r'torch\.storage (TypedStorage|UntypedStorage|_UntypedStorage)',
      r'torch\._utils _rebuild_\w+',
      r'torch\.(nn\.parameter Parameter|_tensor Tensor|serialization _get_'
      r'layout)',
      r'torch\.nn\.modules\.\w+ \w+',
      r'torch\.nn\.parallel\.(data_parallel|distributed) \w+',
      r'torch\.nn\.backends\.thnn _get_thnn_function_backend',
      r'torch\.optim\.\w+ \w+',
      # The classes of the published code bases.
      r'(utils\.)?(mem_transformer|proj_adaptive_softmax|adaptive_softmax|'
      r'log_uniform_sampler|data_parallel|fp16_opt) \w+',
      r'(utils\.)?(vocabulary|data_utils) (Vocab|OpenAIVocab|Corpus)',
      r'transformers(\.models|\.deprecated)*(\.transfo_xl)?\.'
      r'(tokenization|configuration)_transfo_xl \w+',
      r'(pytorch_transformers|pytorch_pretrained_bert|transformers)'
      r'\.tokenization_transfo_xl \w+',
      r'transformers\.tokenization_utils(_base)? (AddedToken|Trie)',
      r'tokenizers AddedToken',
      r'sacremoses\.\w+ \w+',  # in what the tokenizer saves of itself
      r're _compile',
    ]
  )
)


class Name(NamedTuple):
  """A class or function that a pickle names; nothing is looked up."""

  module: str
  name: str

  def __str__(self) -> str:
    return f'{self.module}.{self.name}'


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Object:
  """What calling a `Name` would have made: its arguments and its state."""

  kind: Name
  args: tuple
  state: Any = None

  @property
  def fields(self) -> dict[str, Any]:
    """The attributes the state gives; empty if it gives none."""
    state = self.state
    if isinstance(state, tuple) and len(state) == 2:  # with __slots__
      state = state[0]
    return state if isinstance(state, dict) else {}


class Refused(ValueError):
  """Why a pickle is not read, in one line."""
