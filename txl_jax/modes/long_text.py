"""--mode=long_text: a text of thousands of tokens after a context."""

import re
from typing import Any

import numpy as np

from txl_jax.api import writing
from txl_jax.generation import decoding, repetition
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import pictures
from txl_jax.program.errors import UserError

_TEXTS = 'written', 'real'


def run(job: Job) -> None:
  """Writes the text of the section `long_text`.

  UserError: see `analysis.open_run` and `writing.make`; or the split ends
  before the context and as many tokens more.
  """
  config, o, g = job.config, job.config.long_text, job.config.generate
  subject = analysis.open_run(job)
  vocabulary, n = subject.found.vocabulary, len(subject.tokens)
  begin, end = o.start + o.context, o.start + o.context + o.tokens
  if end > n:
    raise UserError(
      f'long_text.start, context and tokens come to {end}, and eval.split has '
      f'{n} tokens; allowed: fewer'
    )
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
    job.console.progress(f'{done:,} of {o.tokens:,} tokens', pause=5.0)
  texts = dict(zip(_TEXTS, (np.concatenate(pieces).astype(np.int64), real)))
  record = analysis.conditions(job, subject, 'long_text') | {
    'generate': _sampling(config),
    'start': o.start,
    'context_tokens': len(context),
    'written_tokens': len(texts['written']),
    'context': _decode(vocabulary, context),
    **{f'{name}_text': _decode(vocabulary, x) for name, x in texts.items()},
    'ngrams': [
      {'n': K}
      | {f'{x}_repeated': repetition.repeated(y, K) for x, y in texts.items()}
      | {
        f'{x}_copied': repetition.copied(y, context, K)
        for x, y in texts.items()
      }
      for K in o.ngrams
    ],
    **{
      f'{name}_longest_repeat_tokens': repetition.longest(x)
      for name, x in texts.items()
    },
  }
  lines = table(record)
  page = '\n'.join(_page(record, lines))
  plot_it = lambda figure: plot(figure, record)
  analysis.report(job, record, lines, plot_it, text=('md', page))


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


# Of n-grams, that occurred before; of tokens, in n-grams of the context.
_SHARES = 'repeated', 'copied'


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
  names = {'written': 'written', 'real': 'what really follows'}
  series = {
    name: (n, [100 * r[f'{x}_repeated'] for r in rows])
    for x, name in names.items()
  }
  pictures.lines(axes, series)
  pictures.lengths_axis(axes, n, 'n, tokens')
  axes.set_ylim(0)
  axes.set_ylabel('n-grams that occurred before, %')
  axes.set_title(f'{record["run"]}: {record["written_tokens"]:,} tokens')
