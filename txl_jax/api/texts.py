"""The texts given to a call, as token ids; errors name the argument.

Shapes: n tokens, V vocabulary.
"""

import codecs
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from txl_jax.api import call_options
from txl_jax.data.vocabularies import AnyVocabulary, offsets

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
  """A list of one text or several; TypeError if it is neither."""
  if isinstance(given, (str, bytes)):
    return [given]
  if isinstance(given, _NO_LISTS) or not isinstance(given, Iterable):
    raise _other_kind(name, given, 'str, bytes, or a list of them')
  return [*given]


class UnknownWords(UserWarning):
  """Some words of a text are <unk> to the model, see `Words.unknown`."""


def encode(
  vocabulary: AnyVocabulary, name: str, text: str | bytes
) -> tuple[np.ndarray, bytes]:
  """Token ids int32 [n] and the bytes of a text; warns of UnknownWords.

  ValueError: the vocabulary has no token for a part of the text.
  """
  data = encoded(name, text)
  with call_options.told():
    found = vocabulary.encode(data, name).astype(np.int32)
  if line := vocabulary.unknown(data, name):
    warnings.warn(line, UnknownWords, stacklevel=4)
  return found, data


def like(text: str | bytes, pieces: Iterable[bytes]) -> Iterator[Any]:
  """The pieces, none of them empty, in the type of a text."""
  if isinstance(text, str):
    return filter(None, codecs.iterdecode(pieces, 'utf-8', 'replace'))
  return filter(None, pieces)


def tokens(
  vocabulary: AnyVocabulary, name: str, text: Text
) -> tuple[np.ndarray, np.ndarray, int]:
  """Token ids int32 [n], byte spans int64 [n, 2], and total bytes of a text."""
  if not isinstance(text, (str, bytes)):
    found = ids(vocabulary, name, text, 'str, bytes, or integers [n]')
    decoder = vocabulary.decoder()
    ends = np.cumsum([0, *(len(decoder.push([int(i)])) for i in found)])
    return found, np.stack([ends[:-1], ends[1:]], axis=1), int(ends[-1])
  found, data = encode(vocabulary, name, text)
  return found, offsets.of_tokens(vocabulary, data, found), len(data)


def ids(
  vocabulary: AnyVocabulary,
  name: str,
  given: Sequence[int] | np.ndarray,
  allowed: str = 'integers [n]',
) -> np.ndarray:
  """Token ids int32 [n]; ValueError, or TypeError, unless all in [0, V)."""
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
