"""--mode=attention_maps: where the heads of every layer look."""

from typing import Any

import numpy as np

from txl_jax import models
from txl_jax.errors import UserError
from txl_jax.evaluation import attention_maps, heatmap
from txl_jax.modes import analysis
from txl_jax.modes.job import Job

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
  found = attention_maps.measure(
    model.at_test_time(longest=0),  # keys in their order, not in a ring
    subject.found.params,
    subject.tokens[:end],
    o.start,
    segment_len=config.eval.segment_len,
    context=o.context,
    passage=o.passage,
    mesh=subject.mesh,
    progress=progress,
  )
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
    'distance_range_edges_tokens': borders.tolist(),
    'passage_text': heatmap.shown(subject.found.vocabulary, ids),
    'passage_attention_by_distance_range': passage.round(5).tolist(),
  }
  analysis.report(
    job, record, table(record), lambda f: plot(f, record), size=(7.5, 5)
  )


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
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """All heads by distance, and the passage of those that look farthest."""
  borders = np.array(record['distance_range_edges_tokens'])
  mean = np.array(record['mean_attention_by_distance'])
  N, H, _ = mean.shape
  rows = attention_maps.in_ranges(mean, borders).reshape(N * H, -1)
  passage = np.array(record['passage_attention_by_distance_range'])
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


def _heat(axes, rows, borders):
  from matplotlib import colors  # where there is a figure, it is there

  axes.grid(False)
  ticks = np.linspace(0, len(borders) - 1, 5).astype(int)
  axes.set_xticks(ticks - 0.5, [f'{borders[i]:,}' for i in ticks])
  norm = colors.LogNorm(1e-3, 1, clip=True)
  return axes.imshow(
    rows, aspect='auto', cmap='Blues', norm=norm, interpolation='nearest'
  )
