"""--mode=eval: scores a whole split and prints the figure."""

import contextlib
import functools
import io
from typing import Any

import numpy as np

from txl_jax.data import streams
from txl_jax.evaluation import figures, split_score
from txl_jax.experiment import analysis, call_options, restore
from txl_jax.experiment.job import Job
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.runs.console import TOKENS


def run(job: Job) -> split_score.SplitScore:
  """Scores the split; UserError if it is too short.

  The record of the report is eval_SPLIT.json.
  """
  config, ev = job.config, job.config.eval
  if ev.nll_file and not ev.nll_file.endswith('.npy'):
    errors.refuse('eval.nll_file', ev.nll_file, 'a name that ends in .npy')
  subject = analysis.open_run(job, documents=True)
  found = subject.restored
  corpus, split = subject.corpus, subject.tokens
  tokens = _from_first_token(split, corpus, ev.first_token)
  model = call_options.scorer(config, subject.vocab_size)
  split_score.check(model, tokens, ev.batch_size, ev.segment_len, ev.context)
  nll = np.zeros(len(tokens) - 1, np.float32)
  with (
    _nll_file(ev.nll_file, nll),
    job.console.phase('scoring', len(tokens) - 1, TOKENS) as phase,
  ):
    score_tokens = functools.partial(
      split_score.score,
      params=found.params,
      tokens=tokens,
      **call_options.batching(config),
      mesh=found.mesh,
      progress=functools.partial(job.console.reach, phase, pause=5.0),
    )
    score = score_tokens(model, each=nll.__setitem__)
    second = None
    if ev.temperature != 1:
      second = score_tokens(model.at_temperature(ev.temperature))
  unit, checkpoint = found.vocabulary.unit, restore.weights_line(found)
  figure = figures.to_units(score.nats, unit)[unit]
  job.console.say(f'checkpoint: {checkpoint}; corpus: {corpus.name}')
  bits = figures.bits(score.nll, split[-score.scored :], found.vocabulary)
  line = (
    f'{ev.split}: {figure:.5f} {unit} ({score.nats:.5f} nats), '
    f'{at_temperature(ev, second, unit)}{figures.bits_text(bits)}'
    f'{len(split)} tokens, {score.scored} scored, '
    f'{score.seconds:.1f} s, {score.tokens_per_second:,.0f} tokens/s '
    f'({conditions(ev)})'
  )
  record = analysis.conditions(job, subject, 'eval') | {
    'program': f'eval_{ev.split}',
    'scored_tokens': score.scored,
    'tokens_per_second': score.tokens_per_second,
    **figures.to_units(score.nats, unit),
    **bits,
  }
  if second:
    record['at_temperature'] = figures.to_units(second.nats, unit)
  if not isinstance(tokens, streams.Documents):
    each = by_position(nll, ev.batch_size, ev.segment_len)
    record['nats_by_position'] = each
    places = ', '.join(f'{p}: {x:.3f}' for p, x in each.items())
    job.console.say(f'nats by position in the segment, up to {places}')
  analysis.report(job, record, [line])
  if ev.nll_file:
    job.console.say(f'nll of each scored token: {ev.nll_file}')
  return score


def by_position(
  nll: np.ndarray, batch_size: int, segment_len: int
) -> dict[int, float]:
  """{p: mean nll} at position 1, 2, 3 to 4, 5 to 8 ... p of the segments.

  The nll, float [n], is of B streams of segments of T. A token at position p
  sees p tokens of its segment: without a memory, the first symbols have little
  context (Dai et al. 2019, Section 3.1).
  """
  stream = -(-len(nll) // batch_size)
  bits = np.frexp(np.arange(len(nll)) % stream % segment_len)[1]  # of p - 1
  groups = {2 ** int(k): nll[bits == k] for k in np.unique(bits)}
  return {p: float(x.mean(dtype=np.float64)) for p, x in groups.items()}


@contextlib.contextmanager
def _nll_file(path, nll):
  """Writes a .npy when the block ends; UserError, at once, if it cannot be."""
  if not path or not processes.is_main():
    yield
    return
  name = f'eval.nll_file: {path}'
  with contextlib.ExitStack() as stack:
    with files.writing(name):
      f = stack.enter_context(files.replacing(path))
    yield
    made = io.BytesIO()  # of a full disk np.save would not say so
    np.save(made, nll)
    with files.writing(name):
      f.write(made.getbuffer())
      stack.close()


def at_temperature(section: split_score.Eval, score: Any, unit: str) -> str:
  """The figure of a score with eval.temperature, in words; '' without one."""
  if score is None:
    return ''
  figure = figures.to_units(score.nats, unit)[unit]
  return f'{figure:.5f} {unit} at temperature {section.temperature:g}, '


def conditions(section: split_score.Eval) -> str:
  """The section `eval` in words: lengths and streams."""
  parts = [f'T {section.segment_len}']
  both = {'context': section.context, 'window': section.window}
  lengths = {k: n for k, n in both.items() if n} | section.model.given()
  parts += [f'{k} {x}' for k, x in lengths.items()]
  return ', '.join([*parts, f'{section.batch_size} streams'])


def _from_first_token(tokens, corpus, first_token):
  """The tokens, after one more that makes the first one be scored."""
  if first_token == 'none':
    return tokens
  eos = corpus.vocabulary.eos_id
  begun = corpus.of_documents or corpus.sentences('test') is not None
  if eos is None or begun:
    what = 'has no <eos>' if eos is None else 'begins with one already'
    allowed = f'none, for corpus {corpus.name} {what}'
    errors.refuse('eval.first_token', first_token, allowed)
  return streams.Preceded(eos, tokens)
