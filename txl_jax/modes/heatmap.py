"""--mode=heatmap: the tokens of a text coloured by their nll, in one HTML file.

Shapes: n tokens.
"""

import codecs
import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_jax.api import call_options
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.evaluation import perplexity
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import buckets, settings

_MOST = 10  # tokens in the table
_BEFORE = 40  # characters shown before each, at most
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


def shown(vocabulary: AnyVocabulary, ids: Sequence[int]) -> list[str]:
  """The text shown for each token id, always visible; str [n].

  If several tokens are one character, the last one shows it.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('backslashreplace')
  found = []
  for at, i in enumerate(ids, 1):
    if i == vocabulary.document_end:
      text = '<eos>\n'
    elif isinstance(vocabulary, Words):
      end = '\n' if i == vocabulary.line_end else ' '
      text = _visible(vocabulary.symbols[i]) + end
    else:
      text = decoder.decode(vocabulary.decode([i]), final=at == len(ids))
      # A thin space is where a character has only begun.
      text = '↵\n' if text == '\n' else _visible(text) or '\u2009'
    found.append(text)
  return found


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
  top = float(np.quantile(known, 0.98)) if known.any() else 1.0
  top = top or 1.0  # most are 0
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
    tip = html.escape(tip)
    spans.append(f'<span class="{_class(level)}" title="{tip}">{text}</span>')
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


def run(job: Job) -> None:
  """Writes the page; UserError if the text begins behind the split."""
  config, o = job.config, job.config.heatmap
  subject = analysis.open_run(job)
  n = len(subject.tokens)
  if o.start > n - 2:
    allowed = f'0 to {n - 2}, for eval.split has {n} tokens'
    settings.refuse('heatmap.start', o.start, allowed)
  first, end = max(0, o.start - o.context), min(o.start + o.tokens, n)
  read, ids = subject.tokens[first:end], subject.tokens[o.start : end].tolist()

  def score(own, found):
    """Nll float [n] of the text; nan for a token that nothing is before."""
    model = call_options.scorer(own, subject.vocab_size)
    options = call_options.cut(own) | {'batch_size': 1, 'mesh': found.mesh}
    perplexity.check(model, found.params, read, **options)
    nll = perplexity.of_each(model, found.params, read, **options)
    return np.concatenate([[np.nan], nll.astype(np.float64)])[-len(ids) :]

  nll, other, against = score(config, subject.found), None, None
  if o.against:
    folder = buckets.place(o.against, 'heatmap.against')
    own, found = analysis.open_other(job, subject, folder)
    other, against = score(own, found), analysis.model_of(folder, found)
  texts = shown(subject.found.vocabulary, ids)
  none = [None] * len(ids)
  columns = texts, ids, _json(nll), none if other is None else _json(other)
  names = 'text', 'id', 'nll_nats', 'other_nll_nats'
  record = analysis.conditions(job, subject, 'heatmap') | {
    'start': o.start,
    'context_tokens': o.start - first,
    'against': against,
    'mean_nats': float(np.nanmean(nll)),
    'other_mean_nats': None if other is None else float(np.nanmean(other)),
    'text': [dict(zip(names, row)) for row in zip(*columns)],
  }
  lines = table(record)
  whole = page(record['run'], '; '.join(lines[:2]), texts, nll, other)
  analysis.report(job, record, lines, text=('html', whole))


def _json(values):
  return [None if np.isnan(x) else float(x) for x in values]


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  text, against = record['text'], record['against']
  mean = f'mean nll {record["mean_nats"]:.4f} nats'
  if against:
    mean += f', {record["other_mean_nats"]:.4f} of {against["run"]}'

  def surprise(i):
    return text[i]['nll_nats'] - (text[i]['other_nll_nats'] or 0)

  def passage(i):
    *before, last = (r['text'] for r in text[max(i - 16, 0) : i + 1])
    before = ''.join(before)[-_BEFORE:]
    return f'{before}[{last.strip() or last}]'.replace('\n', ' ')

  there = [i for i, r in enumerate(text) if r['nll_nats'] is not None]
  rows = []
  for i in sorted(there, key=surprise, reverse=True)[:_MOST]:
    nll, other = text[i]['nll_nats'], text[i]['other_nll_nats']
    row = [passage(i), record['start'] + i, f'{nll:.3f}', f'{np.exp(-nll):.2g}']
    rows.append([*row, f'{other:.3f}'] if against else row)
  header = ['most surprising', 'place', 'nats', 'p']
  if against:
    header = ['most surprising beside the other', *header[1:], against['run']]
  return [analysis.heading(record), mean, *analysis.table(header, rows)]
