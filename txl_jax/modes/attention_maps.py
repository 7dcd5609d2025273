"""--mode=attention_maps: where the heads of every layer look."""

from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.evaluation import attention_maps, heatmap
from txl_jax.modes import analysis
from txl_jax.modes.job import Job
from txl_jax.program.errors import UserError

_RANGES = 64  # of distances, in what is written of the passage
_SHOWN = 3  # heads of which the passage is drawn


def run(job: Job) -> None:
  """Measures the text of the section `attention_maps`.

  UserError: see `analysis.open_run` and `attention_maps.measure`; or the text
  begins too far behind.
  """
  config, o = job.config, job.config.attention_maps
  subject = analysis.open_run(job)
  n, end = len(subject.tokens), o.start + o.tokens
  if o.start + o.passage > n:
    raise UserError(
      f'attention_maps.start is {o.start}, and eval.split has {n} tokens; '
      f'allowed: attention_maps.passage, {o.passage}, before its end'
    )

  def progress(read):
    of = min(o.tokens, n - o.start)
    job.console.progress(f'{read:,} of {of:,} tokens', pause=5.0)

  model = models.at_test_time(config, subject.vocab_size, 'eval')
  model = model.at_test_time(longest=0)  # keys in their order, not in a ring
  text = model, subject.found.params, subject.tokens[:end], o.start
  read: Any = dict(
    segment_len=config.eval.segment_len, context=o.context, mesh=subject.mesh
  )
  found = attention_maps.measure(
    *text, **read, passage=o.passage, progress=progress
  )
  terms = attention_maps.terms(*text, **read)
  used = np.asarray(terms.spread.any((1, 2)))  # without distances only (a)
  names = [name for name, x in zip(attention_maps.TERMS, used) if x]
  S = found.mean.shape[-1]
  borders = attention_maps.edges(S, _RANGES)
  ids = subject.tokens[o.start : o.start + o.passage].tolist()
  far = found.mean @ np.arange(S)  # [N, H]
  passage = attention_maps.in_ranges(found.passage, borders)
  record = analysis.conditions(job, subject, 'attention_maps') | {
    'start': o.start,
    'averaged_tokens': min(end, n) - o.start,
    'segment_tokens': config.eval.segment_len,
    'keys': S,
    'mean_distance_tokens': far.round(4).tolist(),
    'beyond_segment': found.mean[..., config.eval.segment_len :]
    .sum(-1)
    .round(6)
    .tolist(),
    'mean_attention_by_distance': found.mean.round(8).tolist(),
    'mean_score_by_distance': {
      name: _listed(term) for name, term in zip(names, terms.mean[used])
    },
    'score_spread': dict(zip(names, terms.spread[used].round(6).tolist())),
    'distance_range_edges_tokens': borders.tolist(),
    'passage_text': heatmap.shown(subject.found.vocabulary, ids),
    'passage_attention_by_distance_range': passage.round(5).tolist(),
  }
  analysis.report(
    job, record, table(record), lambda f: plot(f, record), size=(7.5, 7)
  )


def _listed(term):
  """A term as lists; what no query sees is None, for JSON has no NaN."""
  values = term.round(6).astype(object)
  values[np.isnan(term)] = None
  return values.tolist()


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: a row for each layer."""
  rows = [
    (
      i,
      f'{np.mean(far):.1f}',
      f'{max(far):.1f} (head {int(np.argmax(far))})',
      f'{100 * np.mean(beyond):.1f}%',
    )
    for i, (far, beyond) in enumerate(
      zip(record['mean_distance_tokens'], record['beyond_segment'])
    )
  ]
  T = record['segment_tokens']
  header = 'layer', 'mean distance', 'farthest head', f'{T} tokens or farther'
  return [
    analysis.heading(record),
    f'attention of {record["averaged_tokens"]:,} tokens to {record["keys"]:,} '
    'keys at most',
    *analysis.table(header, rows),
    '',
    *analysis.table(
      ('deviation of the scores of a query', *(f'layer {i}' for i, *_ in rows)),
      [
        (attention_maps.TERMS[name], *(f'{np.mean(x):.3f}' for x in term))
        for name, term in record['score_spread'].items()
      ],
    ),
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """All heads by distance, and the passage of those that look farthest."""
  borders = np.array(record['distance_range_edges_tokens'])
  mean = np.array(record['mean_attention_by_distance'])
  N, H, _ = mean.shape
  rows = attention_maps.in_ranges(mean, borders).reshape(N * H, -1)
  passage = np.array(record['passage_attention_by_distance_range'])
  names = record['mean_score_by_distance']
  maps, scores = figure.subfigures(2, 1, height_ratios=(2, 1))
  _scores(scores, names, borders)
  figure = maps
  axes = figure.subplot_mosaic(
    [['all', f'head {k}'] for k in range(_SHOWN)], width_ratios=(1.2, 1)
  )
  top = axes['all']
  image = _heat(top, rows, borders)
  top.set_yticks([H * i - 0.5 for i in range(N)], [f'{i}' for i in range(N)])
  top.set_ylabel('layer, a row for each head')
  top.set_xlabel('distance, tokens')
  top.set_title('attention by distance')
  far = np.array(record['mean_distance_tokens']).reshape(-1)
  shown = min(_SHOWN, N * H)
  for k in range(_SHOWN):
    own = axes[f'head {k}']
    if k >= shown:
      own.set_axis_off()
      continue
    layer, head = divmod(int(np.argsort(-far, kind='stable')[k]), H)
    _heat(own, passage[layer, head], borders)
    own.set_title(f'passage, layer {layer}, head {head}')
    own.set_yticks([])
    own.set_ylabel('token')
    own.tick_params(labelbottom=k == shown - 1)
  axes[f'head {shown - 1}'].set_xlabel('distance, tokens')
  bar = figure.colorbar(image, ax=[*axes.values()], shrink=0.6, pad=0.02)
  bar.outline.set_visible(False)
  ticks = 0.001, 0.01, 0.1, 1
  bar.set_ticks(ticks, labels=[f'{x:g}' for x in ticks])
  bar.set_label('probability in a range of distances')


def _scores(figure, terms, borders):
  """All heads by distance, a panel for each term of the score."""
  widths = np.diff(borders)
  rows = {
    name: attention_maps.in_ranges(np.nan_to_num(np.array(x, float)), borders)
    for name, x in terms.items()
  }
  rows = {k: (x / widths).reshape(-1, len(widths)) for k, x in rows.items()}
  most = max(abs(x).max() for x in rows.values())
  panels = np.atleast_1d(figure.subplots(1, len(rows), sharey=True))
  for axes, (name, x) in zip(panels, rows.items()):
    image = _heat(axes, x, borders, most, ticks=3)
    axes.set_yticks([])
    axes.set_title(f'({name}) {attention_maps.TERMS[name].split(", ")[1]}')
    axes.set_xlabel('distance')
  panels[0].set_ylabel('all heads')
  bar = figure.colorbar(image, ax=[*panels], pad=0.02)
  bar.outline.set_visible(False)
  bar.set_label('mean score')


def _heat(axes, rows, borders, most=None, ticks=5):
  """Probabilities; or scores, from -most to most."""
  from matplotlib import colors  # where there is a figure, it is there

  axes.grid(False)
  at = np.linspace(0, len(borders) - 1, ticks).astype(int)
  axes.set_xticks(at - 0.5, [f'{borders[i]:,}' for i in at])
  norm, colours = colors.LogNorm(1e-3, 1, clip=True), 'Blues'
  if most:
    norm, colours = colors.Normalize(-most, most), 'RdBu'
  return axes.imshow(
    rows, aspect='auto', cmap=colours, norm=norm, interpolation='nearest'
  )
