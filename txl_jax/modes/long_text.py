"""--mode=long_text: a text of thousands of tokens after a context."""

import re
from typing import Any

import numpy as np

from txl_jax.api import writing
from txl_jax.generation import decoding, repetition
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import pictures, settings

_TEXTS = 'written', 'real'
# Of n-grams, that occurred before; of tokens, in n-grams of the context.
_SHARES = 'repeated', 'copied'


def run(job: Job) -> None:
  """Writes the text; UserError if the split ends before what really follows."""
  config, o, g = job.config, job.config.long_text, job.config.generate
  subject = analysis.open_run(job)
  vocabulary, n = subject.found.vocabulary, len(subject.tokens)
  begin, end = o.start + o.context, o.start + o.context + o.tokens
  if end > n:
    name = 'the sum of long_text.start, context and tokens'
    settings.refuse(name, end, f'{n} at most, the tokens of eval.split')
  context = np.asarray(subject.tokens[o.start : begin], np.int64)
  real = np.asarray(subject.tokens[begin:end], np.int64)
  writer = writing.make(config, subject.found.params, vocabulary)
  more = dict(samples=1, segment_len=g.segment_len)
  decoding.check(writer.model, subject.found.params, **more)
  pieces, done, state = [], 0, writer.read([context])
  # To its full length.
  own: dict[str, Any] = dict(max_new_tokens=o.tokens, ends=(), keep=False)
  for piece, _ in writer.decode(state, **own):
    pieces.append(piece[0])
    done += len(piece[0])
    job.read(done, o.tokens)
  texts = dict(zip(_TEXTS, (np.concatenate(pieces).astype(np.int64), real)))
  rows = []
  for K in o.ngrams:
    row: dict[str, Any] = {'n': K}
    for name, x in texts.items():
      row[f'{name}_repeated'] = repetition.repeated(x, K)
      row[f'{name}_copied'] = repetition.copied(x, context, K)
    rows.append(row)
  record = analysis.conditions(job, subject, 'long_text') | {
    'generate': _sampling(config),
    'start': o.start,
    'context_tokens': len(context),
    'written_tokens': len(texts['written']),
    'context': _decode(vocabulary, context),
    **{f'{name}_text': _decode(vocabulary, x) for name, x in texts.items()},
    'ngrams': rows,
  }
  for name, x in texts.items():
    record[f'{name}_longest_repeat_tokens'] = repetition.longest(x)
  lines = table(record)
  page = '\n'.join(_page(record, lines))
  analysis.report(job, record, lines, plot, text=('md', page))


def _sampling(config):
  """How tokens are drawn, of the section `generate`."""
  names = 'temperature', 'top_k', 'top_p', 'repetition_penalty', 'forbid_unk'
  more = 'seed', 'segment_len', 'window', 'model'
  values = config.generate.to_dict()
  return {name: values[name] for name in (*names, *more)}


def _decode(vocabulary, ids):
  return vocabulary.decode(ids).decode(errors='replace')


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: n-grams, and the longest repeated stretch."""
  rows = [
    (r['n'], *(f'{100 * r[f"{x}_{y}"]:.1f}%' for y in _SHARES for x in _TEXTS))
    for r in record['ngrams']
  ]
  header = 'n', *(f'{y}, {x}' for y in _SHARES for x in _TEXTS)
  repeats = (f'{record[f"{x}_longest_repeat_tokens"]:,} {x}' for x in _TEXTS)
  return [
    analysis.heading(record),
    f'{record["written_tokens"]:,} tokens after {record["context_tokens"]:,}',
    *analysis.table(header, rows),
    f'longest stretch that occurs twice, in tokens: {", ".join(repeats)}',
  ]


def _page(record, lines):
  """The Markdown: what is measured, and the three texts."""
  yield f'# A text of {record["run"]}'
  yield from ('', _fenced('\n'.join(lines)))
  yield from ('', 'How tokens were drawn:', '')
  yield from (f'- {k}: {x}' for k, x in record['generate'].items())
  heads = {
    'context': 'Context',
    'written_text': 'What the model writes',
    'real_text': 'What really follows',
  }
  for name, head in heads.items():
    yield from ('', f'## {head}', '', _fenced(record[name]))
  yield ''


def _fenced(text):
  """A block of code whose fence the text does not have."""
  longest = max(map(len, re.findall('`+', text)), default=0)
  fence = '`' * max(3, longest + 1)
  return f'{fence}text\n{text}\n{fence}'


def plot(figure: Any, record: dict[str, Any]) -> None:
  """The share of repeated n-grams against their length."""
  axes, rows = figure.subplots(), sorted(record['ngrams'], key=lambda r: r['n'])
  n = [r['n'] for r in rows]
  written, real = ([100 * r[f'{x}_repeated'] for r in rows] for x in _TEXTS)
  names = 'written', 'what really follows'
  pictures.lines(axes, dict(zip(names, ((n, written), (n, real)))))
  pictures.lengths_axis(axes, n, 'n, tokens')
  axes.set_ylim(0)
  axes.set_ylabel('n-grams that occurred before, %')
  axes.set_title(f'{record["run"]}: {record["written_tokens"]:,} tokens')
