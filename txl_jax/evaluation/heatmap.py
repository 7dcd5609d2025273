"""The tokens of a text coloured by their nll: a single HTML file.

Shapes: n tokens.
"""

import dataclasses
import html
import math
from collections.abc import Sequence

import numpy as np

from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.program.settings import ON_RESUME, count, file_path, size

_LEVELS = 12  # colours on either side of white
_HIGH, _LOW = (213, 94, 0), (0, 114, 178)  # orange, blue
_DEEPEST = 0.75  # the most of these, so that black text stays legible

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.7 sans-serif; color: #222; background: #fff;
  max-width: 60em; margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.2em }}
.text {{ font-family: monospace; white-space: pre-wrap;
  overflow-wrap: anywhere }}
.key span {{ padding: 0.2em 0.5em; font-size: 0.8em }}
.none {{ color: #888 }}
{styles}
</style></head><body>
<h1>{title}</h1>
<p>{about}</p>
<p class="key">{key}</p>
<div class="text">{spans}</div>
</body></html>
"""


@dataclasses.dataclass(frozen=True)
class Heatmap:
  """The section `heatmap`."""

  MAY_CHANGE = ON_RESUME

  start: int = count(0, 'Where the text begins in the split.')
  tokens: int = size(1000, 'Length of the text in tokens.', at_most=10**6)
  context: int = count(
    1024, 'Tokens before the text that the model reads first.', at_most=10**6
  )
  against: str = file_path(
    '',
    'Folder of another run: colours show how much higher the nll of this run '
    'is than that of the other.',
    remote='gs://',
  )


def shown(vocabulary: AnyVocabulary, ids: Sequence[int]) -> list[str]:
  """The text shown for each token id, always visible; str [n].

  If each byte of a character is a token, the last one shows the character.
  """
  if (end := vocabulary.document_end) is not None and end in ids:
    at = [*ids].index(end)
    before, after = (shown(vocabulary, x) for x in (ids[:at], ids[at + 1 :]))
    return [*before, '<eos>\n', *after]
  if isinstance(vocabulary, Words):
    symbols = [vocabulary.symbols[i] for i in ids]
    line_end = vocabulary.line_end
    ends = ['\n' if i == line_end else ' ' for i in ids]
    return [_visible(s) + end for s, end in zip(symbols, ends)]
  if isinstance(vocabulary, Subwords):
    parts = (vocabulary.symbols[i] for i in ids)
    texts = (x.decode(errors='backslashreplace') for x in parts)
    return ['↵\n' if x == '\n' else _visible(x) for x in texts]
  data, found = bytes(vocabulary.symbols[i] for i in ids), []
  while (i := len(found)) < len(data):
    character = next(
      (c for k in range(1, 5) if (c := _decoded(data[i : i + k]))), None
    )
    if character is None:
      found.append(f'\\x{data[i]:02x}')
    else:
      found += ['\u2009'] * (len(character.encode()) - 1)  # a thin space
      found.append('↵\n' if character == '\n' else _visible(character))
  return found


def _decoded(data):
  """The character that the bytes encode, or None."""
  try:
    return data.decode()
  except UnicodeDecodeError:
    return None


def _visible(text):
  """A text with escapes for what has no glyph or changes text direction."""

  def one(c):
    if c.isprintable():
      return c
    escaped = c.encode('utf-8', 'surrogateescape')
    return ''.join(f'\\x{byte:02x}' for byte in escaped)

  return ''.join(map(one, text))


def page(
  title: str,
  about: str,
  tokens: Sequence[str],
  nll: np.ndarray,
  other: np.ndarray | None = None,
) -> str:
  """The HTML of tokens, str [n], and their nll, float [n]; nan means none.

  With the nll of another model, colours show the difference: orange where that
  of this one is higher.
  """
  value = nll if other is None else nll - other
  known = np.abs(value[np.isfinite(value)])
  top = float(np.quantile(known, 0.98)) if known.size else 0.0
  top = top or 1.0
  levels = range(0 if other is None else -_LEVELS, _LEVELS + 1)
  styles = '\n'.join(
    f'.{_class(k)} {{ background: {_colour(k)} }}' for k in levels
  )
  quarters = [k for k in levels if k % (_LEVELS // 4) == 0]
  key = ''.join(
    f'<span class="{_class(k)}">{top * k / _LEVELS:.1f}</span>'
    for k in quarters
  )
  what = 'nll' if other is None else 'nll of this run less that of the other'
  spans = []
  for i, token in enumerate(tokens):
    text = html.escape(token)
    if not math.isfinite(value[i]):
      spans.append(f'<span class="none">{text}</span>')
      continue
    level = round(_LEVELS * float(np.clip(value[i] / top, -1, 1)))
    tip = f'{token.strip() or token!r}: {nll[i]:.3f} nats, '
    tip += f'p = {math.exp(-nll[i]):.3g}'
    if other is not None:
      tip += f'; other {other[i]:.3f} nats, p = {math.exp(-other[i]):.3g}'
    title_of = html.escape(tip, quote=True)
    spans.append(
      f'<span class="{_class(level)}" title="{title_of}">{text}</span>'
    )
  return _PAGE.format(
    title=html.escape(title), about=html.escape(about), styles=styles,
    key=f'{what}, nats: {key}', spans=''.join(spans),
  )  # fmt: skip


def _class(level):
  return f'{"u" if level >= 0 else "d"}{abs(level)}'


def _colour(level):
  """White at level 0, orange above, blue below."""
  share = _DEEPEST * abs(level) / _LEVELS
  towards = _HIGH if level > 0 else _LOW
  mixed = (round(255 + share * (x - 255)) for x in towards)
  return '#' + ''.join(f'{x:02x}' for x in mixed)
