"""The texts given to a call, as token ids; errors name the argument.

Shapes: n tokens, V vocabulary.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from txl_jax.data.vocabularies import offsets
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.program.errors import UserError

# A text, or its token ids, integers [n].
Text = str | bytes | Sequence[int] | np.ndarray

# NumPy or a loop would take these, but they are not lists of texts or ids.
_NO_LISTS = str, bytes, bytearray, memoryview, Mapping, Set


def _other_kind(name, found, allowed):
  return TypeError(f'{name} is a {type(found).__name__}; allowed: {allowed}')


def encoded(name: str, text: str | bytes) -> bytes:
  """A str in UTF-8, or bytes as they are; ValueError and TypeError name it."""
  if isinstance(text, bytes):
    return text
  if not isinstance(text, str):
    raise _other_kind(name, text, 'str or bytes')
  try:
    return text.encode()
  except UnicodeEncodeError as e:
    raise ValueError(f'{name} is {text!r:.80}; allowed: UTF-8') from e


def several(name: str, given: Any) -> list[Any]:
  """One text or several, as a list; TypeError if it is neither."""
  if isinstance(given, (str, bytes)):
    return [given]
  if isinstance(given, _NO_LISTS) or not isinstance(given, Iterable):
    raise _other_kind(name, given, 'str, bytes, or a list of them')
  return [*given]


class UnknownWords(UserWarning):
  """Some words of a text are <unk> to the model, see `data.unknown`."""


def warn(vocabulary: AnyVocabulary, name: str, text: bytes) -> None:
  """Warns, in one line, of the words of a text that become <unk>."""
  if line := vocabulary.unknown(text, name):
    warnings.warn(line, UnknownWords, stacklevel=4)


def tokens(
  vocabulary: AnyVocabulary, name: str, text: Text
) -> tuple[np.ndarray, np.ndarray, int]:
  """Token ids int32 [n], the byte span of each int64 [n, 2], and total bytes.

  ValueError: the vocabulary has no token for a part of the text, or see `ids`.
  """
  if not isinstance(text, (str, bytes)):
    found = ids(vocabulary, name, text, 'str, bytes, or integers [n]')
    decoder = vocabulary.decoder()
    ends = np.cumsum([0, *(len(decoder.push([int(i)])) for i in found)])
    return found, np.stack([ends[:-1], ends[1:]], axis=1), int(ends[-1])
  data = encoded(name, text)
  try:
    found = vocabulary.encode(data, name).astype(np.int32)
  except UserError as e:
    raise ValueError(f'{e}') from e
  warn(vocabulary, name, data)
  return found, offsets.of_tokens(vocabulary, data, found), len(data)


def ids(
  vocabulary: AnyVocabulary,
  name: str,
  given: Sequence[int] | np.ndarray,
  allowed: str = 'integers [n]',
) -> np.ndarray:
  """Token ids, int32 [n].

  ValueError unless they are integers in [0, V), TypeError if not a list.
  """
  if isinstance(given, _NO_LISTS) or not hasattr(given, '__len__'):
    raise _other_kind(name, given, allowed)
  try:
    found, V = np.asarray(given), len(vocabulary)
  except ValueError as e:  # lists of different lengths
    raise _other_kind(name, given, allowed) from e
  if not found.size:
    return found.astype(np.int32).reshape(-1)
  if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
    kind = f'{found.dtype} {list(found.shape)}'
    raise ValueError(f'{name} is {kind}; allowed: {allowed}')
  for wrong in (found.min(), found.max()):
    if not 0 <= wrong < V:
      allowed = f'0 to {V - 1}, the tokens of the vocabulary'
      raise ValueError(f'{name} has the token id {wrong}; allowed: {allowed}')
  return found.astype(np.int32)


def places(spans: np.ndarray, text: Text) -> np.ndarray:
  """Byte spans [n, 2] as places in the given text: characters for a str."""
  if not isinstance(text, str):
    return spans
  return offsets.in_characters(spans, text.encode())
