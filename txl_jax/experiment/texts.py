"""Tokenises the texts of a call; error messages name the argument.

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
from txl_jax.program.errors import UserError, refuse

# A text, or its token ids, integers [n].
Text = str | bytes | Sequence[int] | np.ndarray


def to_bytes(name: str, text: str | bytes) -> bytes:
  """Encodes a str in UTF-8, keeps bytes; TypeError for anything else.

  UserError: a str has a lone surrogate.
  """
  if isinstance(text, bytes):
    return text
  if not isinstance(text, str):
    found = type(text).__name__
    raise TypeError(f'{name} is of type {found}; allowed: str or bytes')
  try:
    return text.encode()
  except UnicodeEncodeError as e:
    raise UserError(f'{name} is {text!r:.50}; allowed: text in UTF-8') from e


def plain(vocabulary: AnyVocabulary, text: bytes) -> bytes:
  """A text normalised by `plain_text`, unless the vocabulary is raw bytes."""
  return text if vocabulary.raw else plain_text.normal(text)


def of_file(
  vocabulary: AnyVocabulary, data: bytes, name: str, id_dtype: str
) -> tuple[bytes, np.ndarray | None]:
  """The text in the bytes of a file; UserError, with `name`, if not text.

  With a vocabulary of ids, a .npy file, or a .bin file of `id_dtype`, holds
  token ids: they are also returned, int32 [n].
  """
  if vocabulary.kind == 'ids' and name.lower().endswith(('.npy', '.bin')):
    from txl_jax.data.corpora import id_files

    token_ids = ids(vocabulary, name, id_files.array(data, name, id_dtype))
    return vocabulary.decode(token_ids), token_ids
  chunks = plain_text.chunks(io.BytesIO(data), name)
  return data if vocabulary.raw else b''.join(chunks), None


def is_ids(value: Any) -> bool:
  """Whether a value is the token ids of one text."""
  if hasattr(value, '__array__'):
    return np.ndim(value) == 1
  is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
  return is_list and bool(value) and isinstance(value[0], int | np.integer)


class UnknownWords(UserWarning):
  """A text has unknown words, or is normalised, see `Symbols.unknown`."""


def tokenise(
  vocabulary: AnyVocabulary, name: str, text: str | bytes, frames: int = 2
) -> tuple[np.ndarray, bytes]:
  """Token ids int32 [n] and the bytes they encode; warns of UnknownWords.

  `frames` is the number of stack frames between this one and the user's.
  UserError: the vocabulary has no token for a part of the text.
  """
  data = plain(vocabulary, to_bytes(name, text))
  tokens = vocabulary.encode(data, name).astype(np.int32)
  if line := vocabulary.unknown(data, name):
    warnings.warn(line, UnknownWords, stacklevel=frames + 2)
  return tokens, vocabulary.normal(data)


def like(text: str | bytes, pieces: Iterable[bytes]) -> Iterator[Any]:
  """Yields the non-empty pieces, decoded to str if `text` is a str."""
  if isinstance(text, str):
    return filter(None, codecs.iterdecode(pieces, 'utf-8', 'replace'))
  return filter(None, pieces)


class TokenisedText(NamedTuple):
  """The tokens of a text and their positions in it."""

  ids: np.ndarray  # int32 [n]
  offsets: np.ndarray  # int64 [n, 2], see `results.Tokens`
  ends: np.ndarray  # int64 [n], in bytes of the encoded text
  size: int  # of the encoded text, in bytes


def with_offsets(
  vocabulary: AnyVocabulary, name: str, text: Text, *, frames: int
) -> TokenisedText:
  """Tokenises a text, or decodes its token ids to find their positions.

  `frames`, this one included, and errors: see `tokenise`.
  """
  if not isinstance(text, (str, bytes)):
    token_ids = ids(vocabulary, name, text)
    decoder = vocabulary.decoder()
    ends = np.cumsum([0, *(len(decoder.push([int(i)])) for i in token_ids)])
    spans = np.stack([ends[:-1], ends[1:]], axis=1)
    return TokenisedText(token_ids, spans, ends[1:], size=int(ends[-1]))
  token_ids, data = tokenise(vocabulary, name, text, frames)
  spans = offsets.of_tokens(vocabulary, data, token_ids)
  whole = vocabulary.normal(to_bytes(name, text))
  positions = spans + len(whole) - len(data)  # after its byte-order mark
  if isinstance(text, str):
    positions = offsets.in_characters(positions, whole)
  return TokenisedText(token_ids, positions, spans[:, 1], size=len(data))


def ids(
  vocabulary: AnyVocabulary, name: str, values: Sequence[int] | np.ndarray
) -> np.ndarray:
  """Token ids int32 [n]; UserError unless they are integers in [0, V)."""
  try:
    array = np.asarray(values)
    V = len(vocabulary)
  except (TypeError, ValueError) as e:  # traced, or lists of several lengths
    raise UserError(f'{name} is neither text nor a list of integers') from e
  if not array.size:
    return array.astype(np.int32).reshape(-1)
  # To NumPy, [3, True] are integers, and timedelta64 is an integer type.
  types = {*map(type, values)} if isinstance(values, Sequence) else set()
  has_bool = bool in types or np.bool_ in types
  if array.ndim != 1 or array.dtype.kind not in 'iu' or has_bool:
    kind = f'{"bool" if has_bool else array.dtype} {list(array.shape)}'
    raise UserError(f'{name} is {kind}; allowed: a text, or integers [n]')
  outside = array[(array < 0) | (array >= V)]
  if len(outside):
    allowed = f'0 to {V - 1}, the tokens of the vocabulary'
    refuse(f'a token id of {name}', outside[0].item(), allowed)
  return array.astype(np.int32)
