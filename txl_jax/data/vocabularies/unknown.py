"""Words of a text that are not in a vocabulary."""

from txl_jax.data.vocabularies.words import Words

_SHOWN = 5


def told(vocabulary: object, text: bytes, name: str) -> str:
  """Which words of a text become <unk>, in one line; '' if none do."""
  if not isinstance(vocabulary, Words) or vocabulary.unk_id is None:
    return ''
  found = [*dict.fromkeys(vocabulary.outside(text))]
  if not found:
    return ''
  more = f' and {len(found) - _SHOWN:,} more' if len(found) > _SHOWN else ''
  shown = ', '.join(map(repr, found[:_SHOWN]))
  return (
    f'{name}: not in the vocabulary, read as {vocabulary.unk}: {shown}{more}'
  )
