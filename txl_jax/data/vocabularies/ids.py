"""Vocabularies of corpora that are given as token ids.

A symbol is the name of a token, or its id in digits if it has no name. In texts
symbols are separated by white space, and ids may replace names. If any name has
white space, or all are single characters, symbols are not separated, and text
is tokenised by longest match. If documents end with <eos>, it is the last
symbol, which is empty.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping
from typing import Self

import numpy as np

from txl_jax.data.vocabularies.base import Decoder, Symbols
from txl_jax.program.errors import UserError, shown


@dataclasses.dataclass(frozen=True, repr=False)
class Ids(Symbols):
  """A vocabulary of named token ids; ValueError if two have the same name."""

  kind = 'ids'  # not a field
  unit = 'ppl'
  end = ''
  newline = ''  # not a field; newlines are not words
  symbols: tuple[str, ...]
  counts: tuple[int, ...] = ()

  @classmethod
  def of_names(cls, names: Mapping[int, str], size: int) -> Self:
    """A vocabulary of `size` token ids, some of which have names."""
    return cls(tuple(names.get(i, f'{i}') for i in range(size)))

  @property
  def raw(self) -> bool:  # pyright: ignore
    """Whether `plain_text.normal` could change texts of these symbols."""
    return not {'\r', '\ufeff'}.isdisjoint(''.join(self.symbols))

  @functools.cached_property
  def spaced(self) -> bool:
    """Whether the symbols of a text are separated by white space."""
    names = self.symbols[: self.eos_id]
    characters = {*map(len, names)} == {1} and not ''.join(names).isdecimal()
    return ' '.join(names).split() == [*names] and not characters

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    names = self.symbols[: self.eos_id]
    digits = {f'{i}': i for i in range(len(names))} if self.spaced else {}
    return digits | {name: i for i, name in enumerate(names)}

  @functools.cached_property
  def _name(self) -> re.Pattern:
    longest = sorted(self._ids, key=len, reverse=True)
    return re.compile('|'.join([*map(re.escape, longest), '.']), re.DOTALL)

  def encode(self, text: bytes, source: str) -> np.ndarray:
    """Token ids, int32 [n]; UserError for text that is not a token."""
    string = text.decode('utf-8', 'surrogateescape')
    words = string.split() if self.spaced else self._name.findall(string)
    each = map(self._ids.get, words, itertools.repeat(-1))
    ids = np.fromiter(each, np.int32, len(words))
    if (ids < 0).any():
      what = shown(words[int(np.argmax(ids < 0))])
      allowed = 'token names'
      if self.spaced:
        allowed = f'0 to {len(self.symbols[: self.eos_id]) - 1}, or names'
      raise UserError(f'{source}: {what} is not a token; allowed: {allowed}')
    return ids

  def decoder(self) -> Decoder:
    """A new decoder, which joins tokens with spaces if `spaced`."""
    space = itertools.repeat(' ' if self.spaced else '')
    before = itertools.chain([''], space)
    return Decoder(self.symbols, lambda x: (x and next(before) + x).encode())

  @functools.cached_property
  def sizes(self) -> np.ndarray | None:
    """See `Symbols`; None if symbols are separated by white space."""
    if self.spaced:
      return None
    return np.array([len(name.encode()) for name in self.symbols], np.int64)

  @property
  def line_end(self) -> int | None:
    """Token id of the token whose name is a newline, or None."""
    return self._ids.get('\n')
