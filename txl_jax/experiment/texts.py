"""The texts given to a call, as token ids; errors name the argument.

Shapes: n tokens, V vocabulary.
"""

import codecs
import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from txl_jax.data import plain_text
from txl_jax.data.vocabularies import AnyVocabulary, offsets
from txl_jax.program import errors
from txl_jax.program.errors import UserError

# A text, or its token ids, integers [n].
Text = str | bytes | Sequence[int] | np.ndarray


def encoded(name: str, text: str | bytes) -> bytes:
  """A str in UTF-8, or bytes as they are; TypeError for anything else.

  UserError: a str has a lone surrogate.
  """
  if isinstance(text, bytes):
    return text
  if not isinstance(text, str):
    found = type(text).__name__
    raise TypeError(f'{name} is a {found}; allowed: str or bytes')
  try:
    return text.encode()
  except UnicodeEncodeError as e:
    raise UserError(f'{name} is {text!r:.50}; allowed: text in UTF-8') from e


def plain(vocabulary: AnyVocabulary, text: bytes) -> bytes:
  """A text as `plain_text` has it, unless the vocabulary is of raw bytes."""
  return text if vocabulary.raw else plain_text.normal(text)


def of_file(
  vocabulary: AnyVocabulary, data: bytes, name: str, id_dtype: str
) -> bytes | np.ndarray:
  """The text of a file's bytes; UserError, which calls it `name`, if none.

  Of a vocabulary of token ids, a .npy, or a .bin of a dtype, holds int32 [n].
  """
  if vocabulary.kind == 'ids' and name.lower().endswith(('.npy', '.bin')):
    from txl_jax.data.corpora import id_files

    return ids(vocabulary, name, id_files.array(data, name, id_dtype))
  found = plain_text.chunks(io.BytesIO(data), name)
  return data if vocabulary.raw else b''.join(found)


def is_ids(given: Any) -> bool:
  """Whether these are token ids, of one text."""
  if hasattr(given, '__array__'):
    return np.ndim(given) == 1
  is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
  return is_list and bool(given) and isinstance(given[0], int | np.integer)


class UnknownWords(UserWarning):
  """Some words of a text are <unk> to the model, see `Words.unknown`."""


def encode(
  vocabulary: AnyVocabulary, name: str, text: str | bytes, frames: int = 2
) -> tuple[np.ndarray, bytes]:
  """Token ids int32 [n] and the bytes of a text; warns of UnknownWords.

  So many frames are between this one and the line of the user. UserError: the
  vocabulary has no token for a part of the text.
  """
  data = plain(vocabulary, encoded(name, text))
  found = vocabulary.encode(data, name).astype(np.int32)
  if line := vocabulary.unknown(data, name):
    warnings.warn(line, UnknownWords, stacklevel=frames + 2)
  return found, data


def like(text: str | bytes, pieces: Iterable[bytes]) -> Iterator[Any]:
  """The pieces, none of them empty, in the type of a text."""
  if isinstance(text, str):
    return filter(None, codecs.iterdecode(pieces, 'utf-8', 'replace'))
  return filter(None, pieces)


class Encoded(NamedTuple):
  """A text as tokens, and where they are in it."""

  ids: np.ndarray  # int32 [n]
  offsets: np.ndarray  # int64 [n, 2], see `results.Tokens`
  ends: np.ndarray  # int64 [n], in bytes of the text that was encoded
  size: int  # of that text, in bytes


def tokens(
  vocabulary: AnyVocabulary, name: str, text: Text, frames: int = 1
) -> Encoded:
  """Encodes a text, or decodes its token ids to find where they are.

  Frames and errors are as for `encode`.
  """
  if not isinstance(text, (str, bytes)):
    found = ids(vocabulary, name, text)
    decoder = vocabulary.decoder()
    ends = np.cumsum([0, *(len(decoder.push([int(i)])) for i in found)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    return Encoded(found, spans, ends[1:], int(ends[-1]))
  found, data = encode(vocabulary, name, text, frames + 1)
  spans = offsets.of_tokens(vocabulary, data, found)
  whole = encoded(name, text)
  places = spans + len(whole) - len(data)  # after its byte-order mark
  if isinstance(text, str):
    places = offsets.in_characters(places, whole)
  return Encoded(found, places, spans[:, 1], len(data))


def ids(
  vocabulary: AnyVocabulary, name: str, given: Sequence[int] | np.ndarray
) -> np.ndarray:
  """Token ids int32 [n]; UserError unless they are integers in [0, V)."""
  try:
    found, V = np.asarray(given), len(vocabulary)
  except ValueError as e:  # lists of several lengths
    raise UserError(f'{name} is no text and no list of integers') from e
  if not found.size:
    return found.astype(np.int32).reshape(-1)
  if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
    kind = f'{found.dtype} {list(found.shape)}'
    raise UserError(f'{name} is {kind}; allowed: a text, or integers [n]')
  outside = found[(found < 0) | (found >= V)]
  if len(outside):
    allowed = f'0 to {V - 1}, the tokens of the vocabulary'
    errors.refuse(f'a token id of {name}', outside[0].item(), allowed)
  return found.astype(np.int32)
