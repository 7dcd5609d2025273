"""--mode=attention_length: perplexity against what a token sees."""

from typing import Any

from txl_jax import models
from txl_jax.api import call_options
from txl_jax.evaluation import attention_length, figures
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program import pictures

_INIT = (
  'attention length of training: model.mem_len, or train.segment_len without '
  'memory'
)


def run(job: Job) -> None:
  """Scores the split at the lengths of the section `attention_length`.

  Lengths that the model does not reach are left out. UserError: see
  `analysis.open_run` and `attention_length.sweep`.
  """
  config, o = job.config, job.config.attention_length
  subject = analysis.open_run(job, o.tokens)
  then = subject.found.config
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  cut, lengths = call_options.cut(config), [*o.lengths]
  trained = init = then['train.segment_len']
  reach, remembers = model.reach(trained), model.remembers()
  if remembers:
    init = then.get('model.mem_len', 0) or trained
    if reach < cut['segment_len']:
      cut['segment_len'] = int(reach)
      which = f'segments of {reach} tokens, not eval.segment_len'
      job.console.say(f'{which}: the model has no other positions')
  elif reach < max(lengths):
    lengths = [length for length in lengths if length <= reach]
    which = f'attention_length.lengths above {reach} are left out'
    job.console.say(f'{which}: the model reads no more tokens')

  def progress(length, scored):
    of = f'{scored:,} of {len(subject.tokens) - 1:,} tokens'
    job.console.progress(f'length {length:,}: {of}', pause=5.0)

  scores = attention_length.sweep(
    model,
    subject.found.params,
    subject.tokens,
    (*lengths, init),
    **cut,
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
  figures_of = [r[subject.unit] for r in rows]
  k = attention_length.effective(figures_of, o.threshold)
  record = analysis.conditions(job, subject, 'attention_length') | {
    'init_is': _INIT,
    'init': next(r for r in rows if r['attention_length_tokens'] == init),
    'best': min(rows, key=lambda r: r['nats']),
    'threshold': o.threshold,
    'effective': rows[k],
    'effective_at_end': k == len(rows) - 1,
    'segment_len': cut['segment_len'] if remembers else None,
    'same_length': not remembers or hasattr(model.config, 'same_length'),
    'lengths': rows,
  }
  analysis.report(job, record, table(record), lambda f: plot(f, record))


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
  unit, marks = record['unit'], ['init', 'best']
  if not record['effective_at_end']:
    marks.append('effective')
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
  share = f'{100 * record["threshold"]:g} %'
  effective = f'the next length tried improves it by less than {share}'
  if record['effective_at_end']:
    effective = f'longer than all tried, each of which improves it by {share}'
  lines = [
    analysis.heading(record),
    *analysis.table(header, rows),
    f'init: {record["init_is"]}',
    'best: the lowest figure of the lengths tried',
    f'effective: {effective}',
  ]
  if not record['same_length']:
    lines.append(
      'the length is that of the memory: a token sees its own segment, of '
      f'{record["segment_len"]}, besides'
    )
  return lines


def plot(figure: Any, record: dict[str, Any]) -> None:
  """The figure against the length."""
  axes, unit, rows = figure.subplots(), record['unit'], record['lengths']
  lengths = [r['attention_length_tokens'] for r in rows]
  axes.plot(lengths, [r[unit] for r in rows], 'o-', color=pictures.COLOURS[0])
  axes.margins(y=0.15)
  x = record['effective']['attention_length_tokens']
  end = '>= ' if record['effective_at_end'] else ''
  axes.axvline(x, color=pictures.PALE, linestyle='--', linewidth=1)
  axes.annotate(
    f'effective {end}{x:,}', (x, 1), (4, -8), textcoords='offset points',
    xycoords=('data', 'axes fraction'),
  )  # fmt: skip
  # The line falls: above it there is room to the right, below to the left.
  for mark, way, side in ('init', 1, 'left'), ('best', -1, 'right'):
    r = record[mark]
    axes.annotate(
      f'{mark} {r[unit]:.4g}',
      (r['attention_length_tokens'], r[unit]),
      (5 * way, 9 * way),
      textcoords='offset points',
      ha=side,
      va='center',
      color=pictures.COLOURS[1] if mark == 'best' else pictures.INK,
    )
  pictures.lengths_axis(axes, lengths, 'attention length, tokens')
  axes.set_ylabel(figures.NAMES[unit])
  axes.set_title(f'{record["run"]}, {record["corpus"]} {record["split"]}')
