"""--mode=attention_maps: where the heads of every layer look, by distance.

This is what Dai et al. (2019) show in Appendix D. A query attends to the token
`d` before it (0 is itself) with probability A[d]; over d they sum to 1. Behind
it is a score, the sum of the four terms of `models.inspection.score_terms`.

Shapes
  N layers, H heads, T segment, M memory, S = M + T keys, n tokens, P tokens of
  a passage, D distances or ranges of distances.
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
from txl_jax.models import base
from txl_jax.parallel import placement
from txl_jax.program import errors
from txl_jax.program.errors import UserError
from txl_jax.shell import pictures

_RANGES = 64  # of distances, in what is written of the passage
_SHOWN = 3  # heads of which the passage is drawn
_WORDS = 30  # tokens of the passage that are named in the picture


class Maps(NamedTuple):
  """Probabilities and the terms of the scores, by distance, from 0 on.

  The probabilities are those of the sum of the terms: in bfloat16 they are the
  model's but for the rounding of a score. A constant would change none, so the
  terms of each query are less their mean over its keys.
  """

  mean: np.ndarray  # float64 [N, H, S], probabilities over all n tokens
  passage: np.ndarray  # float32 [N, H, P, S], for the first P tokens
  # float64 [4, N, H, S], over the queries that see a key there; NaN without.
  terms: np.ndarray
  # float64 [4, N, H]: the root of the mean square over the keys of a query,
  # averaged over queries.
  spread: np.ndarray


# The terms of a score, as Section 3.3 of the paper names them.
TERMS = {
  'a': 'query by key, q·k',
  'b': 'query by distance, q·r',
  'c': 'any query by key, u·k',
  'd': 'any query by distance, v·r',
}


@jax.jit
def by_distance(terms: jax.Array) -> tuple[jax.Array, jax.Array]:
  """A[..., i, d] and the terms, from terms [N, 4, H, T, S], NaN where unseen.

  Query i is key M + i; there is no key before the first.
  """
  scores = jnp.sum(terms, axis=1)
  seen = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
  T, S = terms.shape[-2:]
  key = jnp.arange(T)[:, None] + S - T - jnp.arange(S)  # [T, S]

  def turned(x, absent):
    at = jnp.broadcast_to(jnp.maximum(key, 0), x.shape)
    return jnp.where(key >= 0, jnp.take_along_axis(x, at, axis=-1), absent)

  return turned(jax.nn.softmax(seen), 0.0), turned(terms, math.nan)


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
  """The attention of tokens[start:], read as one row in segments of T.

  The memory has read the `context` tokens before them, in whole segments.
  Progress is called with the number of tokens averaged so far. UserError: the
  model has no attention.
  """
  if not model.ATTENDS:
    raise UserError(
      f'{type(model).__name__} has no attention to show; allowed: models that '
      'attend'
    )
  begin = start - min(context, start) // segment_len * segment_len
  text = model, params, tokens[begin:], segment_len, 'attention_terms'
  total, sums, counts, spread, first, read = 0.0, 0.0, 0, 0.0, [], 0
  for at, real, shown in activations.segments(*text):
    if begin + at < start:
      continue
    both = map(placement.fetch, by_distance(shown[:, :, 0]))
    maps, terms = (x[..., :real, :] for x in both)
    total = total + maps.sum(axis=-2, dtype=np.float64)
    if read < passage:
      first.append(maps[:, :, : passage - read])
    terms = np.asarray(terms, np.float64)  # [N, 4, H, T, S]
    terms -= np.nanmean(terms, axis=-1, keepdims=True)
    spread = spread + np.sqrt(np.nanmean(terms**2, axis=-1)).sum(-1)
    sums = sums + np.nansum(terms, axis=-2)
    counts = counts + np.isfinite(terms).sum(axis=-2)
    read += real
    progress(read)
  mean = np.full(np.shape(sums), math.nan)
  np.divide(sums, counts, out=mean, where=np.asarray(counts) > 0)
  return Maps(
    np.asarray(total) / read,
    np.concatenate(first, axis=2),
    np.moveaxis(mean, 1, 0),
    np.moveaxis(np.asarray(spread) / read, 1, 0),
  )


def edges(S: int, most: int) -> np.ndarray:
  """Borders, int64, of at most `most` equal ranges of distances 0 to S - 1."""
  width = -(-S // most)
  return np.append(np.arange(0, S, width), S)


def in_ranges(maps: np.ndarray, borders: np.ndarray) -> np.ndarray:
  """Sums of [..., S] over each range of distances: [..., D]."""
  return np.add.reduceat(maps, borders[:-1], axis=-1)


def run(job: Job) -> None:
  """Measures the text; UserError if it begins too far behind."""
  config, o = job.config, job.config.attention_maps
  subject = analysis.open_run(job)
  n, end = len(subject.tokens), o.start + o.tokens
  if o.start + o.passage > n:
    allowed = f'at most {n - o.passage}, for eval.split has {n} tokens, '
    allowed += f'and attention_maps.passage is {o.passage}'
    errors.refuse('attention_maps.start', o.start, allowed)
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  model = model.at_test_time(longest=0)  # keys in their order, not in a ring
  ev = config.eval
  T, there = ev.context + ev.segment_len, min(end, n) - o.start
  found = measure(
    *(model, subject.restored.params, subject.tokens[:end], o.start),
    segment_len=T,
    context=o.context,
    passage=o.passage,
    progress=functools.partial(job.show_read, of=there),
  )
  used: Any = found.spread.any((1, 2))  # without distances only (a)
  names = [name for name, x in zip(TERMS, used) if x]
  S = found.mean.shape[-1]
  borders = edges(S, _RANGES)
  ids = subject.tokens[o.start : o.start + o.passage].tolist()
  decoded = map(subject.restored.vocabulary.decode, ([i] for i in ids))
  far = found.mean @ np.arange(S)  # [N, H]
  passage = in_ranges(found.passage, borders)
  record = analysis.conditions(job, subject, 'attention_maps') | {
    'start': o.start,
    'averaged_tokens': there,
    'segment_tokens': T,
    'keys': S,
    'mean_distance_tokens': far.round(4).tolist(),
    'beyond_segment': found.mean[..., T:].sum(-1).round(6).tolist(),
    'mean_attention_by_distance': found.mean.round(8).tolist(),
    'mean_score_by_distance': {
      name: _listed(term) for name, term in zip(names, found.terms[used])
    },
    'score_spread': dict(zip(names, found.spread[used].round(6).tolist())),
    'distance_range_edges_tokens': borders.tolist(),
    'passage_text': [x.decode(errors='backslashreplace') for x in decoded],
    'passage_attention_by_distance_range': passage.round(5).tolist(),
  }
  analysis.report(job, record, table(record), plot, (12, 7.5))


def _listed(term):
  """A term as lists; what no query sees is None, for JSON has no NaN."""
  values = term.round(6).astype(object)
  values[np.isnan(term)] = None
  return values.tolist()


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: a row for each layer, counted from 1."""
  rows, names = [], ['deviation of the scores of a query']
  both = zip(record['mean_distance_tokens'], record['beyond_segment'])
  for i, (far, beyond) in enumerate(both, 1):
    farthest = f'{max(far):.1f} (head {int(np.argmax(far)) + 1})'
    share = f'{100 * np.mean(beyond):.1f}%'
    rows.append((i, f'{np.mean(far):.1f}', farthest, share))
    names.append(f'layer {i}')
  spread = [
    (TERMS[name], *(f'{np.mean(x):.3f}' for x in term))
    for name, term in record['score_spread'].items()
  ]
  beyond = f'{record["segment_tokens"]} tokens or farther'
  header = 'layer', 'mean distance', 'farthest head', beyond
  return [
    analysis.heading(record),
    f'attention of {record["averaged_tokens"]:,} tokens to {record["keys"]:,} '
    'keys at most',
    *analysis.table(header, rows),
    '',
    *analysis.table(names, spread),
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """All heads by distance, and the passage of those that look farthest.

  Below them the terms of the scores. Every panel has a colour scale of its own.
  """
  borders = np.array(record['distance_range_edges_tokens'])
  mean = np.array(record['mean_attention_by_distance'])
  N, H, _ = mean.shape
  passage = np.array(record['passage_attention_by_distance_range'])
  far = np.array(record['mean_distance_tokens']).reshape(-1)
  shown = np.argsort(-far, kind='stable')[:_SHOWN].tolist()
  top, bottom = figure.subfigures(2, 1)
  first, *beside = top.subplots(1, 1 + len(shown))
  unit = 'probability in a column'
  _heat(first, in_ranges(mean, borders).reshape(N * H, -1), borders, unit)
  _name_layers(first, N, H)
  first.set_title('attention by distance')
  every = -(-len(record['passage_text']) // _WORDS)
  words = [_word(x) for x in record['passage_text'][::every]]
  for i, (axes, k) in enumerate(zip(beside, shown)):
    _heat(axes, passage[k // H, k % H], borders, unit)
    axes.set_title(f'passage, layer {k // H + 1}, head {k % H + 1}')
    at = every * np.arange(len(words))
    axes.set_yticks(at, words if i == 0 else [''] * len(at))
    axes.tick_params(axis='y', labelsize=7, length=2)
  beside[0].set_ylabel('token that attends')
  terms = record['mean_score_by_distance']
  panels = np.atleast_1d(bottom.subplots(1, len(terms)))
  for axes, (name, x) in zip(panels, terms.items()):
    scores = in_ranges(np.nan_to_num(np.array(x, float)), borders)
    scores = (scores / np.diff(borders)).reshape(N * H, -1)
    _heat(axes, scores, borders, 'mean score', centred=True)
    _name_layers(axes, N, H)
    axes.set_title(f'({name}) {TERMS[name]}')


def _heat(axes, rows, borders, unit, centred=False):
  """Probabilities on a logarithmic scale; or scores, around zero."""
  from matplotlib import colors  # where there is a figure, it is there

  axes.grid(False)
  at = np.linspace(0, len(borders) - 1, 4).astype(int)
  axes.set_xticks(at - 0.5, [f'{borders[i]:,}' for i in at])
  axes.set_xlabel('distance, tokens')
  most = abs(rows).max() or 1.0
  ticks = most * np.array([-1, 0, 1] if centred else [0.001, 0.01, 0.1, 1])
  norm, colours = colors.Normalize(-most, most), 'RdBu'
  if not centred:
    norm, colours = colors.LogNorm(ticks[0], most, clip=True), 'Blues'
  image = axes.imshow(
    rows, aspect='auto', cmap=colours, norm=norm, interpolation='nearest'
  )
  bar = axes.figure.colorbar(image, ax=axes, location='bottom', aspect=30)
  bar.outline.set_visible(False)
  bar.minorticks_off()
  bar.set_ticks(ticks, labels=[f'{x:.2g}' for x in ticks])
  bar.set_label(unit)


def _name_layers(axes, N, H):
  """Ticks for at most 12 layers, whose heads have a row each; lines between."""
  named = np.arange(0, N, -(-N // 12))
  axes.set_yticks(H * named + (H - 1) / 2, named + 1)
  axes.set_ylabel('layer, a row for each head')
  for i in range(1, N):
    axes.axhline(H * i - 0.5, color=pictures.PALE, linewidth=0.6)


def _word(token):
  """A token in a picture: white space is visible, the rest is printable."""
  token = token.replace(' ', '\u2423').replace('\n', '\u21b5')
  shown = ''.join(x if x.isprintable() else ascii(x)[1:-1] for x in token)
  return shown if len(shown) < 13 else f'{shown[:12]}…'
