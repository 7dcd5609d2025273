"""--mode=attention_length: perplexity against what a token sees."""

from typing import Any

from txl_jax import models, pictures
from txl_jax.api import asked
from txl_jax.evaluation import attention_length, figures
from txl_jax.modes import analysis
from txl_jax.modes.job import Job

_INIT = (
  'attention length of training: the tokens that the last one of a segment '
  'saw, segment_len + mem_len'
)


def run(job: Job) -> None:
  """Scores the split at the lengths of the section `attention_length`.

  Lengths that the model does not reach are left out. UserError: see
  `analysis.open_run` and `attention_length.sweep`.
  """
  config, o = job.config, job.config.attention_length
  subject = analysis.open_run(job, o.tokens)
  then = subject.found.config
  init = then['train.segment_len'] + then.get('model.mem_len', 0)

  model = models.at_test_time(config, subject.vocab_size, 'eval')
  lengths = [length for length in o.lengths if length <= model.reach()]
  if len(lengths) < len(o.lengths):
    which = f'attention_length.lengths above {model.reach()} are left out'
    job.console.say(f'{which}: the model reads no more tokens')

  def progress(length, scored):
    of = f'{scored:,} of {len(subject.tokens) - 1:,} tokens'
    job.console.progress(f'length {length:,}: {of}', pause=5.0)

  scores = attention_length.sweep(
    model,
    subject.found.params,
    subject.tokens,
    (*lengths, init),
    **asked.cut(config),
    mesh=subject.mesh,
    progress=progress,
  )
  rows = [
    {
      'attention_length_tokens': length,
      **figures.figures(score.nats, subject.unit),
      'scored_tokens': score.scored,
      'seconds': score.seconds,
    }
    for length, score in scores.items()
  ]
  record = analysis.conditions(job, subject, 'attention_length') | {
    'init_is': _INIT,
    'init': next(r for r in rows if r['attention_length_tokens'] == init),
    'best': min(rows, key=lambda r: r['nats']),
    'lengths': rows,
  }
  analysis.report(job, record, table(record), lambda f: plot(f, record))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  unit, marks = record['unit'], ('init', 'best')
  rows = [
    (
      f'{r["attention_length_tokens"]:,}',
      f'{r[unit]:.4f}',
      f'{r["nats"]:.5f}',
      f'{r["seconds"]:.1f}',
      ' '.join(mark for mark in marks if record[mark] == r),
    )
    for r in record['lengths']
  ]
  header = 'attention length', unit, 'nats', 'seconds', ''
  return [
    analysis.heading(record),
    *analysis.table(header, rows),
    f'init: {record["init_is"]}',
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """The figure against the length."""
  axes, unit, rows = figure.subplots(), record['unit'], record['lengths']
  lengths = [r['attention_length_tokens'] for r in rows]
  axes.plot(lengths, [r[unit] for r in rows], 'o-', color=pictures.COLOURS[0])
  low, high = axes.get_ylim()
  axes.set_ylim(low - 0.12 * (high - low), high)
  for mark, above in ('init', 1), ('best', -1):
    r = record[mark]
    axes.annotate(
      f'{mark} {r[unit]:.4g}',
      (r['attention_length_tokens'], r[unit]),
      (0, 14 * above),
      textcoords='offset points',
      ha='center',
      va='center',
      color=pictures.COLOURS[1] if mark == 'best' else pictures.INK,
    )
  pictures.lengths_axis(axes, lengths, 'attention length, tokens')
  axes.set_ylabel(figures.NAMES[unit])
  axes.set_title(f'{record["run"]}, {record["corpus"]} {record["split"]}')
