"""Texts that calls are given, as token ids; what is wrong is told by name.

Shapes: n tokens, V vocabulary.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from txl_jax.data import offsets, unknown
from txl_jax.data.vocabulary import AnyVocabulary
from txl_jax.errors import UserError

# A text, or its token ids, integers [n].
Text = str | bytes | Sequence[int] | np.ndarray


def encoded(name: str, text: str | bytes) -> bytes:
  """A text in UTF-8, or bytes as they are; ValueError, TypeError name it."""
  if isinstance(text, bytes):
    return text
  if not isinstance(text, str):
    kind = type(text).__name__
    raise TypeError(f'{name} is a {kind}; allowed: str or bytes')
  try:
    return text.encode()
  except UnicodeEncodeError as e:
    raise ValueError(f'{name} is {text!r:.80}; allowed: UTF-8') from e


class UnknownWords(UserWarning):
  """Words of a text are <unk> to the model, see `data.unknown`."""


def warn(vocabulary: AnyVocabulary, name: str, text: bytes) -> None:
  """Warns of the words of a text that become <unk>, in one line."""
  if line := unknown.told(vocabulary, text, name):
    warnings.warn(line, UnknownWords, stacklevel=4)


def tokens(
  vocabulary: AnyVocabulary, name: str, text: Text
) -> tuple[np.ndarray, np.ndarray, int]:
  """Token ids int32 [n], the bytes int64 [n, 2] of each, and of all of them.

  ValueError: the vocabulary has no token for a part of the text, or see `ids`.
  """
  if not isinstance(text, (str, bytes)):
    found, decoder = ids(vocabulary, name, text), vocabulary.decoder()
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
  vocabulary: AnyVocabulary, name: str, given: Sequence[int] | np.ndarray
) -> np.ndarray:
  """Token ids, int32 [n]; ValueError unless they are integers in [0, V)."""
  found, V = np.asarray(given), len(vocabulary)
  if not found.size:
    return found.astype(np.int32).reshape(-1)
  if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
    raise ValueError(
      f'{name} is {found.dtype} {list(found.shape)}; allowed: a str, bytes, '
      'or integers [n]'
    )
  for wrong in (found.min(), found.max()):
    if not 0 <= wrong < V:
      allowed = f'0 to {V - 1}, the tokens of the vocabulary'
      raise ValueError(f'{name} has the token id {wrong}; allowed: {allowed}')
  return found.astype(np.int32)


def places(spans: np.ndarray, text: Text) -> np.ndarray:
  """Bytes [n, 2] as places in what was given: in characters of a str."""
  if not isinstance(text, str):
    return spans
  return offsets.in_characters(spans, text.encode())
