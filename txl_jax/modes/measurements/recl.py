"""--mode=recl: relative effective context length (Dai et al. 2019, Appendix C).

Shapes
  m models, C contexts, P positions, n tokens; G segments of T tokens hold a
  context of c, B of them are read at once.

A model makes use of a longer context if it is then better than the best model
of its group with a shorter one.
l_i(c, t) = -log p_i(x_t | the c tokens before), nan where model i is not read
that far.
"""

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.experiment import analysis
from txl_jax.experiment.job import Job
from txl_jax.models import base
from txl_jax.parallel import placement
from txl_jax.program import buckets, errors
from txl_jax.shell import pictures

# The published threshold: from this gain on a longer context counts as used.
THRESHOLD = 0.01
_PERCENTILES = 2.5, 97.5  # of the interval beside each result


def positions(n: int, longest: int, count: int) -> np.ndarray:
  """int64 [P]: distinct places, evenly spaced from `longest` to n - 1."""
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
  """l(c, t): nll of tokens[t] after exactly the c before it, float32 [P].

  Every t in `at`, int64 [P], is at least c and starts with an empty memory. A
  model with memory reads the c tokens in segments; one without reads them at
  once.
  """
  T = min(segment_len, c) if model.remembers() else c
  more = -batch_size % placement.row_parts(mesh) if mesh else 0
  rows, G = batch_size + more, -(-c // T)
  nll = np.zeros(len(at), np.float32)
  start = jax.jit(
    lambda: model.init_memory(rows),
    out_shardings=scoring.memory_shardings(model, mesh),
  )
  variables = base.freeze(model, params)
  for first in range(0, len(at), rows):
    here = at[first : first + rows]
    inputs = np.zeros([rows, G * T], np.int32)
    inputs[: len(here), :c] = tokens[here[:, None] - c + np.arange(c)]
    targets = np.full([rows, G * T], -1, np.int32)
    targets[: len(here), c - 1] = tokens[here]
    # [B, G T] -> [G, B, T]
    calls = [x.reshape(rows, G, T).swapaxes(0, 1) for x in (inputs, targets)]
    _, found = scoring.jit_score(
      variables, start(), *calls, model=model, mesh=mesh
    )
    last = placement.fetch(found)[-1, : len(here), c - 1 - (G - 1) * T]
    nll[first : first + rows] = last
  return nll


class Found(NamedTuple):
  """The result for one model and share r."""

  length: int | None  # RECL, in tokens; None if it is not read at all
  gains: tuple[float, ...]  # g(c, c + step) for each context, nan beyond reach
  at_end: bool  # whether it may be longer than any context tried
  at_reach: bool  # whether no gain was small, but the model is read no farther
  interval: tuple[int, int] | None  # _PERCENTILES of the length, in tokens


def effective(
  nll: np.ndarray, lengths: Sequence[int], share: float, resamples: int = 0
) -> list[Found]:
  """For each model in l, float64 [m, C, P]: the last c before a small gain.

  From the first of the C contexts, c grows while g(c, c + step) >= THRESHOLD.
  The interval is that of the P positions: each resample draws P of them with
  replacement, the same in every call. None without resamples.
  """
  drops, order = _drops(nll)
  P = nll.shape[2]
  gains = _gains(drops, order, np.ones(P, np.int64), share)
  ends = [_last(_gains(drops, order, n, share)) for n in _drawn(P, resamples)]
  found = []
  for i, k in enumerate(_last(gains)):
    own = (*gains[i].tolist(),)
    if np.isnan(nll[i, 0, 0]):
      found.append(Found(None, own, False, False, None))
      continue
    at_end = bool(k == len(own))
    at_reach = not at_end and math.isnan(own[k])
    interval = None
    if drawn := [lengths[end[i]] for end in ends]:
      within = np.percentile(drawn, _PERCENTILES, method='inverted_cdf')
      interval = int(within[0]), int(within[1])
    found.append(Found(lengths[k], own, at_end, at_reach, interval))
  return found


def _drawn(P, resamples):
  """For each resample int64 [P], how often it has each position."""
  rng = np.random.default_rng(0)
  for _ in range(resamples):
    yield np.bincount(rng.integers(P, size=P), minlength=P)


def _drops(nll):
  """How much a longer context helps, hardest positions first; their order.

  For each context c but the last and its next one c': b(c, t) - min(b(c, t),
  l_i(c', t)), [C - 1, m, P], where b(c, t) = min_i l_i(c, t), the best of the
  group; and the positions t, [C - 1, P], that of the largest b(c, t) first.
  """
  best = np.fmin.reduce(nll)[:-1]  # of the models that are read so far
  order = np.argsort(-best, axis=1, kind='stable')
  drops = best[:, None] - np.minimum(best[:, None], nll[:, 1:].swapaxes(0, 1))
  return np.take_along_axis(drops, order[:, None], axis=2), order


def _gains(drops, order, times, share):
  """g_i(c, c') of each model i and context c, c' the next one, [m, C - 1].

  Over the share r of the positions with the largest b(c, t), of which position
  t counts times[t]: f_i(c, c') = mean_t min(b(c, t), l_i(c', t)) and
  g = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c), in which f_i(c, c) is
  the mean of b(c, t).
  """
  kept = max(1, round(share * times.sum()))
  times = times[order]
  times = np.clip(kept - (np.cumsum(times, axis=1) - times), 0, times)
  sums = (drops @ times[..., None].astype(float))[..., 0]  # [C - 1, m]
  return -np.expm1(-sums / kept).T


def _last(gains):
  """int64 [m]: how many contexts come before the first small gain."""
  return np.cumprod(gains >= THRESHOLD, axis=1).sum(axis=1)


def run(job: Job) -> None:
  """Measures the run of the job among the others of the section `recl`.

  UserError: the split is too short, or no model is read as far as the first
  context.
  """
  config, o = job.config, job.config.recl
  subject = analysis.open_run(job)
  tokens, lengths = subject.tokens, range(o.step, o.longest + 1, o.step)
  if len(tokens) <= lengths[-1]:
    allowed = f'fewer, for eval.split has {len(tokens)} tokens'
    errors.refuse('recl.longest', o.longest, allowed)
  at = positions(len(tokens), lengths[-1], o.positions)
  group = [(job.folder, config, subject.restored)]
  for name in o.others:
    folder = buckets.place(os.path.expanduser(name), 'recl.others')
    group.append((folder, *analysis.open_other(job, subject, folder)))
  readers = []
  for _, own, found in group:
    model = models.at_test_time(own, subject.vocab_size, 'eval')
    trained = found.config['train.segment_len']
    trained += found.config.get('train.context', 0)
    longest, reach = lengths[-1], model.reach(trained)
    if not model.remembers():
      longest = int(min(longest, reach))
    T = int(min(own.eval.segment_len, reach))
    how: Any = dict(batch_size=o.batch_size, segment_len=T, mesh=found.mesh)
    readers.append((model, longest, how))
  if (most := max(longest for _, longest, _ in readers)) < o.step:
    reads = f'{most}, the most that a model of the group reads'
    errors.refuse('recl.step', o.step, f'at most {reads}')
  nll, members = np.full([len(group), len(lengths), len(at)], np.nan), []
  for own, (folder, _, found), (model, longest, how) in zip(
    nll, group, readers
  ):
    name = folder.resolve().name
    # The longest, which needs the most memory, comes first.
    for k, c in reversed([*enumerate(lengths)]):
      if c <= longest:
        job.console.progress(f'{name}: context {c:,}')
        own[k] = after_context(model, found.params, tokens, at, c, **how)
    again = sum(name == x['run'] for x in members)
    members.append(
      analysis.model_of(folder, found)
      | {'name': f'{name} ({again + 1})' if again else name}
      | {'reads_at_most_tokens': longest}
      | {'segment_len': how['segment_len'] if model.remembers() else None}
      | {'mean_nats': _within(longest, lengths, own.mean(1).tolist())}
    )
  results = [
    {
      'name': member['name'],
      'share': share,
      'recl_tokens': found.length,
      'at_end': found.at_end,
      'at_reach': found.at_reach,
      'interval_tokens': found.interval,
      'gains': _within(
        member['reads_at_most_tokens'], lengths[1:], found.gains
      ),
    }
    for share in o.shares
    for member, found in zip(
      members, effective(nll, lengths, share, o.resamples)
    )
  ]
  record = analysis.conditions(job, subject, 'recl') | {
    'contexts_tokens': [*lengths],
    'positions': len(at),
    'resamples': o.resamples,
    'threshold': THRESHOLD,
    'group': members,
    'results': results,
  }
  analysis.report(job, record, table(record), plot, (10, 5.5))


def _within(longest, lengths, values):
  """Values of contexts, None for those above the longest."""
  return [x if c <= longest else None for c, x in zip(lengths, values)]


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed: a row for each model, a column for each r."""
  found = {(r['name'], r['share']): r for r in record['results']}
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  names = [member['name'] for member in record['group']]
  rows = [
    (name, *(_shown(found[name, share]) for share in shares)) for name in names
  ]
  longest, resamples = record['contexts_tokens'][-1], record['resamples']
  within = f'; in brackets, 95 % of {resamples:,} resamples of the positions'
  lines = [
    analysis.heading(record),
    f'{record["positions"]:,} positions, contexts to {longest:,} tokens'
    f'{within if resamples else ""}',
    *analysis.table(('', *(f'r = {share:g}' for share in shares)), rows),
  ]
  for member in record['group']:
    nats = [x for x in member['mean_nats'] if x is not None]
    if nats and nats[-1] > nats[0]:
      lines.append(
        f'{member["name"]}: its mean nll rises from {nats[0]:.3f} to '
        f'{nats[-1]:.3f}; its length does not mean that it uses the context'
      )
  for member in record['group']:
    name, most = member['name'], member['reads_at_most_tokens']
    T, asked = member['segment_len'], record['eval']['segment_len']
    if most < longest:
      lines.append(f'{name} reads {most:,} tokens at most')
    if T is not None and asked > T:
      lines.append(f'{name} reads segments of {T:,}, those of its training')
  return lines


def _shown(result):
  """A length in a cell of the table."""
  length, interval = result['recl_tokens'], result['interval_tokens']
  if length is None:
    return 'n/a'
  end = ' (its reach)' if result['at_reach'] else ''
  within = f' [{interval[0]:,}, {interval[1]:,}]' if interval else ''
  return f'{">= " if result["at_end"] else ""}{length:,}{end}{within}'


def plot(figure: Any, record: dict[str, Any]) -> None:
  """Mean nll of each model against the context; beside it the gains."""
  contexts = record['contexts_tokens']
  shares = [*dict.fromkeys(r['share'] for r in record['results'])]
  grid = figure.add_gridspec(len(shares), 2)
  axes = figure.add_subplot(grid[:, 0])
  _lines(axes, contexts, {m['name']: m['mean_nats'] for m in record['group']})
  axes.set_xlabel('context c, tokens')
  axes.set_ylabel('nll, nats per token')
  axes.set_title(f'{record["corpus"]} {record["split"]}')
  figure.legend(loc='outside lower center', ncols=4, frameon=False)
  every = [g for r in record['results'] for g in r['gains'] if g is not None]
  top = 1.3 * max(every, default=0) + THRESHOLD
  for row, share in enumerate(shares):
    beside, last = figure.add_subplot(grid[row, 1], sharex=axes), shares[-1]
    rows = [r for r in record['results'] if r['share'] == share]
    _plot_gains(beside, contexts, {r['name']: r['gains'] for r in rows}, top)
    beside.set_title(f'gain g(c, c + {contexts[0]:,}), r = {share:g}')
    beside.set_xlabel('context c, tokens' if share == last else '')
    beside.tick_params(labelbottom=share == last)


def _plot_gains(axes, contexts, gains, top):
  """Gains of each model and the threshold; linear below it, else by logs."""
  axes.axhline(THRESHOLD, color=pictures.INK, linewidth=1)
  _lines(axes, contexts, gains)
  axes.set_yscale('symlog', linthresh=THRESHOLD)
  ticks = 0, 0.003, THRESHOLD, 0.03, 0.1, 0.3, 1
  axes.set_yticks(ticks, [f'{100 * x:g} %' for x in ticks])
  axes.minorticks_off()
  axes.set_ylim(0, top)


def _lines(axes, contexts, values):
  """A line for each model, {name: values}, as far as it has any."""
  for i, (name, y) in enumerate(values.items()):
    if not (y := [value for value in y if value is not None]):
      continue
    colour, style = i % len(pictures.COLOURS), i // len(pictures.COLOURS)
    axes.plot(
      contexts[: len(y)], y, pictures.STYLES[style % 3],
      color=pictures.COLOURS[colour], marker='o', markersize=3, linewidth=1.4,
      label=name,
    )  # fmt: skip
