"""--mode=recl: relative effective context length (Dai et al. 2019, Appendix C).

A model gains from a longer context if it then beats the best model of its group
at a shorter one. Here l_i(c, t) = -log p_i(x_t | the c tokens before it), NaN
if model i cannot read c tokens.

Shapes
  m models, C contexts, P positions, n tokens; B contexts of c tokens are read
  at once, in G segments of T tokens.
"""

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.experiment import analysis, measurements
from txl_jax.experiment.job import Job
from txl_jax.models import base
from txl_jax.paper import pictures
from txl_jax.parallel import placement
from txl_jax.program import buckets, errors

THRESHOLD = 0.01  # published: the least gain that counts as use of a context
_PERCENTILES = 2.5, 97.5  # of the interval of each result


def positions(n: int, longest: int, count: int) -> np.ndarray:
  """Distinct positions, evenly spaced from `longest` to n - 1: int64 [P]."""
  if count >= n - longest:
    return np.arange(longest, n)
  return np.unique(np.linspace(longest, n - 1, count).astype(np.int64))


def after_context(
  model: base.LanguageModel,
  params: Any,
  tokens: np.ndarray,
  at: np.ndarray,
  c: int,
  *,
  batch_size: int,
  segment_len: int,
  mesh: Mesh | None = None,
) -> np.ndarray:
  """l(c, t): nll of tokens[t] given exactly the c tokens before it.

  For each t in `at`, int64 [P], t >= c; the result is float32 [P]. A model with
  memory starts with an empty one and reads the c tokens in segments; others
  read them at once.
  """
  T = min(segment_len, c) if model.remembers() else c
  rows = min(batch_size, len(at))
  G = -(-c // T)
  rows += -rows % placement.row_parts(mesh) if mesh else 0
  nll = np.zeros(len(at), np.float32)
  empty_memory = jax.jit(
    lambda: model.init_memory(rows),
    out_shardings=base.memory_shardings(model, mesh),
  )
  variables = base.freeze(model, params)
  for first in range(0, len(at), rows):
    batch = at[first : first + rows]
    inputs = np.zeros([rows, G * T], np.int32)
    inputs[: len(batch), :c] = tokens[batch[:, None] - c + np.arange(c)]
    targets = np.full([rows, G * T], -1, np.int32)
    targets[: len(batch), c - 1] = tokens[batch]
    # [B, G T] -> [G, B, T]
    inputs, targets = (
      x.reshape(rows, G, T).swapaxes(0, 1) for x in (inputs, targets)
    )
    _, scores = scoring.jit_score(
      variables, empty_memory(), inputs, targets, model=model, mesh=mesh
    )
    last = placement.fetch(scores)[-1, : len(batch), c - 1 - (G - 1) * T]
    nll[first : first + rows] = last
  return nll


class Result(NamedTuple):
  """The result for one model and share r."""

  length: int | None  # RECL, in tokens; None if no context can be read
  gains: tuple[float, ...]  # g(c, c + step), float [C - 1]; NaN beyond reach
  at_end: bool  # whether the gain was large up to the longest context
  at_reach: bool  # whether it was large up to the model's reach
  interval: tuple[int, int] | None  # _PERCENTILES of the length, in tokens


def effective(
  nll: np.ndarray, lengths: Sequence[int], share: float, resamples: int = 0
) -> list[Result]:
  """RECL of each model from nll, float64 [m, C, P], at C context `lengths`.

  From the first context on, c grows while g(c, c + step) >= THRESHOLD. `share`
  is r. The interval comes from bootstrap resamples of the P positions, the same
  ones in every call.
  """
  drops, order = _drops(nll)
  P = nll.shape[2]
  gains = _gains(drops, order, np.ones(P, np.int64), share)
  ends = [_last(_gains(drops, order, n, share)) for n in _draws(P, resamples)]
  results = []
  for i, k in enumerate(_last(gains)):
    model_gains = (*gains[i].tolist(),)
    if np.isnan(nll[i, 0, 0]):
      results.append(Result(None, model_gains, False, False, None))
      continue
    at_end = bool(k == len(model_gains))
    at_reach = not at_end and math.isnan(model_gains[k])
    interval = None
    if resampled := [lengths[end[i]] for end in ends]:
      low, high = np.percentile(resampled, _PERCENTILES, method='inverted_cdf')
      interval = int(low), int(high)
    results.append(Result(lengths[k], model_gains, at_end, at_reach, interval))
  return results


def _draws(P: int, resamples: int) -> Iterator[np.ndarray]:
  """Yields how often each resample contains each position, int64 [P]."""
  rng = np.random.default_rng(0)
  for _ in range(resamples):
    yield np.bincount(rng.integers(P, size=P), minlength=P)


def _drops(nll):
  """Drops of the nll, [C - 1, m, P], and the order of positions, [C - 1, P].

  With c' the context after c, a drop is b(c, t) - min(b(c, t), l_i(c', t)),
  where b(c, t) = min_i l_i(c, t) is the nll of the best model. Both are sorted
  by decreasing b(c, t): the hardest positions t come first.
  """
  best = np.fmin.reduce(nll)[:-1]  # ignores models that cannot read c tokens
  order = np.argsort(-best, axis=1, kind='stable')
  drops = best[:, None] - np.minimum(best[:, None], nll[:, 1:].swapaxes(0, 1))
  return np.take_along_axis(drops, order[:, None], axis=2), order


def _gains(drops, order, counts, share):
  """g_i(c, c') for each model i, context c and next context c', [m, C - 1].

  The means are over the share r of the positions with the largest b(c, t);
  position t occurs counts[t] times. With f_i(c, c') the mean of
  min(b(c, t), l_i(c', t)) and f_i(c, c) the mean of b(c, t),
  g = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c).
  """
  kept = max(1, round(share * counts.sum()))
  counts = counts[order]
  counts = np.clip(kept - (np.cumsum(counts, axis=1) - counts), 0, counts)
  sums = (drops @ counts[..., None].astype(float))[..., 0]  # [C - 1, m]
  return -np.expm1(-sums / kept).T


def _last(gains):
  """Number of gains before the first small one, int64 [m]."""
  return np.cumprod(gains >= THRESHOLD, axis=1).sum(axis=1)


def run(job: Job) -> None:
  """Measures the run of the job and those of recl.others as one group.

  UserError: the split is too short, a run cannot be compared, or no model can
  read the first context.
  """
  config = job.config
  o = job.config.recl
  subject = analysis.open_run(job)
  tokens = subject.tokens
  lengths = range(o.step, o.longest + 1, o.step)
  if len(tokens) <= lengths[-1]:
    allowed = f'fewer, because eval.split has {len(tokens)} tokens'
    errors.refuse('recl.longest', o.longest, allowed)
  at = positions(len(tokens), lengths[-1], o.positions)
  runs = [(job.folder, config, subject.restored)]
  for name in o.others:
    folder = buckets.place(os.path.expanduser(name), 'recl.others')
    runs.append((folder, *analysis.open_other(job, subject, folder)))
  group = []
  for member in runs:
    read, entry = _member(*member, subject, lengths[-1], at, o.batch_size)
    same_name = sum(entry['run'] == other['run'] for _, other in group)
    entry['name'] += f' ({same_name + 1})' if same_name else ''
    group.append((read, entry))
  most = max(entry['reads_at_most_tokens'] for _, entry in group)
  if most < o.step:
    allowed = f'at most {most}, the most that a model of the group reads'
    errors.refuse('recl.step', o.step, allowed)
  nll = np.full([len(group), len(lengths), len(at)], np.nan)
  for model_nll, (read, entry) in zip(nll, group):
    longest = entry['reads_at_most_tokens']
    # The longest context, which needs the most device memory, comes first.
    for k, c in reversed([*enumerate(lengths)]):
      if c <= longest:
        job.console.progress(f'{entry["run"]}: context {c:,}')
        model_nll[k] = read(c)
    entry['mean_nats'] = _within(longest, lengths, model_nll.mean(1).tolist())
  results = [
    {
      'name': entry['name'],
      'share': share,
      'recl_tokens': result.length,
      'at_end': result.at_end,
      'at_reach': result.at_reach,
      'interval_tokens': result.interval,
      'gains': _within(
        entry['reads_at_most_tokens'], lengths[1:], result.gains
      ),
    }
    for share in o.shares
    for (_, entry), result in zip(
      group, effective(nll, lengths, share, o.resamples)
    )
  ]
  record = analysis.conditions(job, subject, 'recl') | {
    'contexts_tokens': [*lengths],
    'positions': len(at),
    'resamples': o.resamples,
    'threshold': THRESHOLD,
    'group': [entry for _, entry in group],
    'results': results,
  }
  pictures.report(job, record, table(record), plot, (10, 5.5))


def _member(folder, config, restored, subject, longest, at, batch_size):
  """A function that reads a model's nll after c tokens, and its record."""
  model = models.at_test_time(config, subject.vocab_size, 'eval')
  trained = restored.config
  trained_len = trained['train.segment_len'] + trained.get('train.context', 0)
  reach = model.reach(trained_len)
  has_memory = model.remembers()
  if not has_memory:
    longest = int(min(longest, reach))
  T = int(min(config.eval.segment_len, reach))
  read = functools.partial(
    after_context, model, restored.params, subject.tokens, at,
    batch_size=batch_size, segment_len=T, mesh=restored.mesh,
  )  # fmt: skip
  entry = analysis.model_of(folder, restored)
  return read, entry | {
    'name': entry['run'],
    'reads_at_most_tokens': longest,
    'segment_len': T if has_memory else None,
  }


def _within(longest, lengths, values):
  """The values of the contexts, None for those above the longest."""
  return [x if c <= longest else None for c, x in zip(lengths, values)]


def table(record: dict[str, Any]) -> list[str]:
  """The lines to print: a row for each model, a column for each r."""
  results = {(r['name'], r['share']): r for r in record['results']}
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  rows = [
    (member['name'], *(_cell(results[member['name'], r]) for r in shares))
    for member in record['group']
  ]
  contexts, resamples = record['contexts_tokens'], record['resamples']
  interval = f'; in brackets, 95 % of {resamples:,} resamples of the positions'
  lines = [
    analysis.heading(record),
    f'{record["positions"]:,} positions, contexts to {contexts[-1]:,} tokens'
    f'{interval if resamples else ""}',
    *analysis.table(('', *(f'r = {share:g}' for share in shares)), rows),
  ]
  if record['positions'] < (enough := measurements.Recl.positions):
    lines.append(
      f'warning: {record["positions"]:,} positions are too few for a result to '
      f'publish, which needs {enough:,} (recl.positions)'
    )
  nats = {member['name']: member['mean_nats'] for member in record['group']}
  for (name, r), result in results.items():
    k = contexts.index(result['recl_tokens'] or contexts[0])
    nll = nats[name]
    half = k // 2
    # A gain of THRESHOLD over a share r is r THRESHOLD of the mean.
    if k and nll[half] - nll[k] < r * THRESHOLD:
      lines.append(
        f'{name}, r = {r:g}: the mean nll is {nll[half]:.3f} after '
        f'{contexts[half]:,} and {nll[k]:.3f} after {contexts[k]:,} tokens; '
        'losses elsewhere cancel the gains'
      )
  for member in record['group']:
    name, reads = member['name'], member['reads_at_most_tokens']
    T = member['segment_len']
    if reads < contexts[-1]:
      lines.append(f'{name} reads at most {reads:,} tokens')
    if T is not None and record['eval']['segment_len'] > T:
      lines.append(f'{name} reads segments of {T:,}, as in training')
  return lines


def _cell(result: Mapping[str, Any]) -> str:
  """A cell of the table: length, >= or (its reach), and interval."""
  length, interval = result['recl_tokens'], result['interval_tokens']
  if length is None:
    return 'n/a'
  end = ' (its reach)' if result['at_reach'] else ''
  brackets = f' [{interval[0]:,}, {interval[1]:,}]' if interval else ''
  return f'{">= " if result["at_end"] else ""}{length:,}{end}{brackets}'


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Draws the mean nll of each model against the context, and its gains."""
  contexts = record['contexts_tokens']
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  grid = figure.add_gridspec(len(shares), 2)
  axes = figure.add_subplot(grid[:, 0])
  _lines(axes, contexts, {m['name']: m['mean_nats'] for m in record['group']})
  axes.set_xlabel('context c, tokens')
  axes.set_ylabel('nll, nats per token')
  axes.set_title(f'{record["corpus"]} {record["split"]}')
  figure.legend(loc='outside lower center', ncols=4, frameon=False)
  gains = [g for r in record['results'] for g in r['gains'] if g is not None]
  top = 1.3 * max(gains, default=0) + THRESHOLD
  for row, share in enumerate(shares):
    panel = figure.add_subplot(grid[row, 1], sharex=axes)
    last = shares[-1]
    rows = [r for r in record['results'] if r['share'] == share]
    _plot_gains(panel, contexts, {r['name']: r['gains'] for r in rows}, top)
    panel.set_title(f'gain g(c, c + {contexts[0]:,}), r = {share:g}')
    panel.set_xlabel('context c, tokens' if share == last else '')
    panel.tick_params(labelbottom=share == last)


def _plot_gains(axes, contexts, gains, top):
  """Draws gains and the threshold on a symlog axis, linear below the latter."""
  axes.axhline(THRESHOLD, color=pictures.INK, linewidth=1)
  _lines(axes, contexts, gains)
  axes.set_yscale('symlog', linthresh=THRESHOLD)
  ticks = 0, 0.003, THRESHOLD, 0.03, 0.1, 0.3, 1
  axes.set_yticks(ticks, [f'{100 * x:g} %' for x in ticks])
  axes.minorticks_off()
  axes.set_ylim(0, top)


def _lines(axes, contexts, values):
  """Draws a line for each model, {name: values}, up to its last value."""
  for i, (name, y) in enumerate(values.items()):
    if not (y := [value for value in y if value is not None]):
      continue
    axes.plot(
      contexts[: len(y)], y, marker='o', markersize=3, linewidth=1.4,
      label=name, **pictures.style(i),
    )  # fmt: skip
