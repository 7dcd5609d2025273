"""Vocabularies of bytes, words, subwords and ids: encoding and decoding."""

from typing import Any

from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words

AnyVocabulary = Bytes | Words | Subwords | Ids


def from_json(fields: Any) -> AnyVocabulary:
  """A vocabulary of any kind, read by its `from_json`."""
  if not isinstance(fields, dict) or 'kind' not in fields:
    raise ValueError(f'the vocabulary is {fields!r:.80}')
  kinds = {kind.kind: kind for kind in (Words, Subwords, Ids)}
  return kinds.get(f'{fields["kind"]}', Bytes).from_json(fields)
