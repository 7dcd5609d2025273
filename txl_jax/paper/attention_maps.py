"""--mode=attention_maps: attention of all heads, by distance.

Dai et al. (2019) show such maps in Appendix D. A[d] is the probability with
which a query attends to the token d positions before it: the softmax over d of
a score, the sum of the four terms of `models.inspection.score_terms`.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, P tokens of
  a passage, D ranges of distances.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from txl_jax import models
from txl_jax.evaluation import activations
from txl_jax.experiment import analysis
from txl_jax.experiment.job import Job
from txl_jax.models import base, inspection
from txl_jax.paper import pictures
from txl_jax.parallel import placement
from txl_jax.program import errors
from txl_jax.program.errors import UserError

_RANGES = 64  # maximum number of ranges of distances in the picture
_SHOWN = 3  # number of heads whose attention in the passage is drawn
_WORDS = 30  # maximum number of tokens that label the passage


class Maps(NamedTuple):
  """Attention probabilities and terms of the scores, by distance from 0.

  The probabilities are the softmax of the summed terms; a model in bfloat16
  rounds each score. The softmax ignores a constant, so each term is centred:
  its mean over the keys of a query is 0.
  """

  mean: np.ndarray  # float64 [N, H, S], probabilities, mean over n tokens
  passage: np.ndarray  # float32 [N, H, P, S], probabilities of P tokens
  # float64 [4, N, H, S], mean over queries with a key at this distance, or NaN.
  terms: np.ndarray
  # float64 [4, N, H]: deviation over the keys of a query, mean over queries.
  spread: np.ndarray


# The terms of a score, with their letters in Section 3.3 of the paper.
TERMS = {
  'a': 'query by key, q·k',
  'b': 'query by distance, q·r',
  'c': 'global content bias, u·k',
  'd': 'global position bias, v·r',
}


@jax.jit
def by_distance(terms: jax.Array) -> tuple[jax.Array, jax.Array]:
  """A [N, H, T, S] and the terms [N, 4, H, T, S], both indexed by distance.

  The argument is indexed by key, and NaN where query i (key M + i) does not see
  the key. At distances without a key, A is 0 and the terms NaN.
  """
  scores = jnp.sum(terms, axis=1)
  scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
  T, S = terms.shape[-2:]
  key = jnp.arange(T)[:, None] + S - T - jnp.arange(S)[None]  # at a distance

  def gather(x, absent):
    at = jnp.broadcast_to(key, x.shape)
    found = jnp.take_along_axis(x, jnp.maximum(at, 0), axis=-1)
    return jnp.where(at >= 0, found, absent)

  return gather(jax.nn.softmax(scores), 0.0), gather(terms, math.nan)


def measure(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  start: int,
  *,
  segment_len: int,
  context: int,
  passage: int,
  progress: Callable[[int], None] = lambda read: None,
) -> Maps:
  """Maps of the n tokens in tokens[start:], read as one row in segments of T.

  Before them, the model reads up to `context` tokens into its memory, in whole
  segments. P is `passage`. `progress` is called with the number of tokens
  averaged so far. UserError if the model has no attention.
  """
  if not model.ATTENDS:
    raise UserError(
      f'{type(model).__name__} has no attention; allowed: models with attention'
    )
  begin = start - min(context, start) // segment_len * segment_len
  segments = activations.segments(
    model, params, tokens[begin:], segment_len, inspection.TERMS
  )
  total = 0.0
  sums = 0.0
  counts = 0
  spread = 0.0
  first = []
  read = 0
  for at, length, terms in segments:
    if begin + at < start:
      continue
    arrays = map(placement.fetch, by_distance(terms[:, :, 0]))
    maps, terms = (x[..., :length, :] for x in arrays)
    total = total + maps.sum(axis=-2, dtype=np.float64)
    if read < passage:
      first.append(maps[:, :, : passage - read])
    terms = np.asarray(terms, np.float64)  # [N, 4, H, length, S]
    terms -= np.nanmean(terms, axis=-1, keepdims=True)
    spread = spread + np.sqrt(np.nanmean(terms**2, axis=-1)).sum(-1)
    sums = sums + np.nansum(terms, axis=-2)
    counts = counts + np.isfinite(terms).sum(axis=-2)
    read += length
    progress(read)
  mean_terms = np.full(np.shape(sums), math.nan)
  np.divide(sums, counts, out=mean_terms, where=np.asarray(counts) > 0)
  return Maps(
    mean=np.asarray(total) / read,
    passage=np.concatenate(first, axis=2),
    terms=np.moveaxis(mean_terms, 1, 0),
    spread=np.moveaxis(np.asarray(spread) / read, 1, 0),
  )


def edges(maps: np.ndarray, most: int) -> np.ndarray:
  """Edges of at most `most` equal ranges of the distances: int64 [D + 1].

  The last is after the last distance with attention in maps [..., S].
  """
  S = 1 + np.nonzero(maps)[-1].max()
  width = -(-S // most)
  return np.append(np.arange(0, S, width), S)


def in_ranges(maps: np.ndarray, borders: np.ndarray) -> np.ndarray:
  """Sums maps [..., S] over each range of distances: [..., D]."""
  return np.add.reduceat(maps[..., : borders[-1]], borders[:-1], axis=-1)


def run(job: Job) -> None:
  """Measures a text of the split; UserError if the passage ends beyond it."""
  config = job.config
  o = job.config.attention_maps
  subject = analysis.open_run(job)
  n = len(subject.tokens)
  if o.start + o.passage > n:
    allowed = f'at most {n - o.passage}, because eval.split has {n} tokens and '
    allowed += f'attention_maps.passage is {o.passage}'
    errors.refuse('attention_maps.start', o.start, allowed)
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  model = model.at_test_time(longest=0)  # keys in their order, not in a ring
  ev = config.eval
  T = ev.context + ev.segment_len
  context = 0
  if model.remembers():
    context = max(o.context, getattr(model.config, 'mem_len', 0))
    # Whole segments, as far as a short text has them before the passage.
    context = min(-(-context // T), (n - o.passage) // T) * T
  start = max(o.start, context)
  tokens = subject.tokens[: start + o.tokens]
  averaged = len(tokens) - start
  maps = measure(
    model, subject.restored.params, tokens, start,
    segment_len=T, context=context, passage=o.passage,
    progress=functools.partial(job.show_read, of=averaged),
  )  # fmt: skip
  # A model without relative positions has only the term (a).
  used = np.any(maps.spread, axis=(1, 2))
  names = [name for name, is_used in zip(TERMS, used) if is_used]
  S = maps.mean.shape[-1]
  borders = edges(maps.passage, _RANGES)
  ids = tokens[start : start + o.passage].tolist()
  decoded = map(subject.restored.vocabulary.decode, ([i] for i in ids))
  mean_distance = maps.mean @ np.arange(S)  # [N, H]
  passage = in_ranges(maps.passage, borders)
  record = analysis.conditions(job, subject, 'attention_maps') | {
    'start': start,
    'averaged_tokens': averaged,
    'segment_tokens': T,
    'keys': S,
    'mean_distance_tokens': mean_distance.round(4).tolist(),
    'beyond_segment': maps.mean[..., T:].sum(-1).round(6).tolist(),
    'mean_attention_by_distance': maps.mean.round(8).tolist(),
    'mean_score_by_distance': {
      # JSON has no NaN.
      name: np.where(np.isnan(x), np.array(None), x.round(6)).tolist()
      for name, x in zip(names, maps.terms[used])
    },
    'score_spread': dict(zip(names, maps.spread[used].round(6).tolist())),
    'distance_range_edges_tokens': borders.tolist(),
    'passage_text': [x.decode(errors='backslashreplace') for x in decoded],
    'passage_attention_by_distance_range': passage.round(5).tolist(),
  }
  pictures.report(job, record, table(record), plot, (12, 7.5))


def table(record: dict[str, Any]) -> list[str]:
  """The lines to print: a row for each layer, and one for each term."""
  rows, layers = [], ['standard deviation of scores over keys']
  columns = zip(record['mean_distance_tokens'], record['beyond_segment'])
  for i, (distances, beyond) in enumerate(columns, 1):
    farthest = f'{max(distances):.1f} (head {int(np.argmax(distances)) + 1})'
    share = f'{100 * np.mean(beyond):.1f}%'
    rows.append((i, f'{np.mean(distances):.1f}', farthest, share))
    layers.append(f'layer {i}')
  spread = [
    (TERMS[name], *(f'{np.mean(x):.3f}' for x in term))
    for name, term in record['score_spread'].items()
  ]
  beyond = f'{record["segment_tokens"]} tokens or farther'
  header = 'layer', 'mean distance', 'farthest head', beyond
  return [
    analysis.heading(record),
    f'attention of {record["averaged_tokens"]:,} tokens, from token '
    f'{record["start"]:,} on, to {record["keys"]:,} keys at most',
    *analysis.table(header, rows),
    '',
    *analysis.table(layers, spread),
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Draws attention by distance, the passage, and the terms of the scores.

  The first panel shows all heads; the passage is shown for the heads of the
  largest mean distance. Every panel has its own colour scale.
  """
  mean = np.array(record['mean_attention_by_distance'])
  N, H, _ = mean.shape
  borders = edges(mean, _RANGES)
  passage_borders = record['distance_range_edges_tokens']
  passage = np.array(record['passage_attention_by_distance_range'])
  mean_distance = np.array(record['mean_distance_tokens']).reshape(-1)
  farthest = np.argsort(-mean_distance, kind='stable')[:_SHOWN].tolist()
  top, bottom = figure.subfigures(2, 1)
  first, *others = top.subplots(1, 1 + len(farthest))
  unit = 'probability in a column'
  _heat(first, in_ranges(mean, borders).reshape(N * H, -1), borders, unit)
  _name_layers(first, N, H)
  first.set_title('attention by distance')
  stride = -(-len(record['passage_text']) // _WORDS)
  words = [_label(token) for token in record['passage_text'][::stride]]
  for i, (axes, k) in enumerate(zip(others, farthest)):
    _heat(axes, passage[k // H, k % H], passage_borders, unit)
    axes.set_title(f'passage, layer {k // H + 1}, head {k % H + 1}')
    at = stride * np.arange(len(words))
    axes.set_yticks(at, words if i == 0 else [''] * len(at))
    axes.tick_params(axis='y', labelsize=7, length=2)
  others[0].set_ylabel('token that attends')
  terms = record['mean_score_by_distance']
  panels = np.atleast_1d(bottom.subplots(1, len(terms)))
  for axes, (name, x) in zip(panels, terms.items()):
    scores = in_ranges(np.nan_to_num(np.array(x, float)), borders)
    scores = (scores / np.diff(borders)).reshape(N * H, -1)
    _heat(axes, scores, borders, 'mean score', centred=True)
    _name_layers(axes, N, H)
    axes.set_title(f'({name}) {TERMS[name]}')


def _heat(axes, rows, borders, unit, centred=False):
  """Draws probabilities on a log scale or, if centred, scores around zero."""
  from matplotlib import colors  # optional, but installed if a figure is drawn

  axes.grid(False)
  at = np.linspace(0, len(borders) - 1, 4).astype(int)
  axes.set_xticks(at - 0.5, [f'{borders[i]:,}' for i in at])
  axes.set_xlabel('distance, tokens')
  most = abs(rows).max() or 1.0
  ticks = most * np.array([-1, 0, 1] if centred else [0.001, 0.01, 0.1, 1])
  norm = colors.Normalize(-most, most)
  colours = 'RdBu'
  if not centred:
    norm = colors.LogNorm(ticks[0], most, clip=True)
    colours = 'Blues'
  image = axes.imshow(
    rows, aspect='auto', cmap=colours, norm=norm, interpolation='nearest'
  )
  bar = axes.figure.colorbar(image, ax=axes, location='bottom', aspect=30)
  bar.outline.set_visible(False)
  bar.minorticks_off()
  bar.set_ticks(ticks, labels=[f'{x:.2g}' for x in ticks])
  bar.set_label(unit)


def _name_layers(axes, N, H):
  """Labels at most 12 layers of H rows each and separates all layers."""
  labelled = np.arange(0, N, -(-N // 12))
  axes.set_yticks(H * labelled + (H - 1) / 2, labelled + 1)
  axes.set_ylabel('layer, a row for each head')
  for i in range(1, N):
    axes.axhline(H * i - 0.5, color=pictures.PALE, linewidth=0.6)


def _label(token: str) -> str:
  """A token as printable text of at most 13 characters, white space visible."""
  token = token.replace(' ', '\u2423').replace('\n', '\u21b5')
  label = ''.join(x if x.isprintable() else ascii(x)[1:-1] for x in token)
  return label if len(label) < 13 else f'{label[:12]}…'
