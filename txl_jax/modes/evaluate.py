"""--mode=eval: scores a whole split and prints the figure."""

from typing import Any

from jax.sharding import Mesh

from txl_jax import models
from txl_jax.api import call_options
from txl_jax.data import streams
from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import figures, perplexity
from txl_jax.modes import analysis, restore
from txl_jax.modes.job import Job
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs.console import TOKENS


def run(job: Job) -> perplexity.Score:
  """Scores the split of the section `eval`.

  The record of the report is eval_SPLIT.json. UserError: see
  `analysis.open_run`; or the split is too short.
  """
  config, ev = job.config, job.config.eval
  subject = analysis.open_run(job, documents=True)
  mesh, found = subject.mesh, subject.found
  corpus, split = subject.corpus, subject.tokens
  tokens = _from_first_token(split, corpus, ev.first_token)
  check_tokens(config, corpus, found.params, tokens, mesh=mesh)
  with job.console.phase('scoring', len(tokens) - 1, TOKENS) as phase:

    def progress(scored):
      job.console.reach(phase, scored, pause=5.0)

    more = dict(mesh=mesh, nll_file=ev.nll_file, progress=progress)
    score = score_tokens(config, corpus, found.params, tokens, **more)
  unit, checkpoint = found.vocabulary.unit, restore.weights_line(found)
  figure = figures.figures(score.nats, unit)[unit]
  job.console.say(f'checkpoint: {checkpoint}; corpus: {corpus.name}')
  sizes = found.vocabulary.sizes
  bits = figures.bits_per_byte(score.nll, split[-score.scored :], sizes)
  line = (
    f'{ev.split}: {figure:.5f} {unit} ({score.nats:.5f} nats), '
    f'{figures.told(bits)}'
    f'{len(split)} tokens, {score.scored} scored, '
    f'{score.seconds:.1f} s, {score.tokens_per_second:,.0f} tokens/s '
    f'({conditions(ev)})'
  )
  record = analysis.conditions(job, subject, 'eval') | {
    'program': f'eval_{ev.split}',
    'scored_tokens': score.scored,
    'tokens_per_second': score.tokens_per_second,
    **figures.figures(score.nats, unit),
    **bits,
  }
  try:
    analysis.report(job, record, [line])
  except UserError as e:  # as in a folder that can only be read
    job.console.say(f'warning: {e}')
  if ev.nll_file:
    job.console.say(f'nll of each scored token: {ev.nll_file}')
  return score


def score_tokens(
  config: Any, corpus: Prepared, params: Any, tokens: Any, **more: Any
) -> perplexity.Score:
  """`perplexity.score` of tokens of a corpus as the section `eval` says."""
  model, cut = _as_asked(config, corpus)
  return perplexity.score(model, params, tokens, **cut, **more)


def check_tokens(
  config: Any, corpus: Prepared, params: Any, tokens: Any, mesh: Mesh
) -> None:
  """`perplexity.check` for `score_tokens`."""
  model, cut = _as_asked(config, corpus)
  perplexity.check(model, params, tokens, **cut, mesh=mesh)


def _as_asked(config, corpus):
  """The model, and how the text is cut, as the section `eval` says."""
  at = len(corpus.vocabulary), 'eval', config.eval.window
  return models.at_test_time(config, *at), call_options.cut(config)


def conditions(section: Any) -> str:
  """The section `eval` in words: lengths and streams."""
  own = [f'{k} {x}' for k, x in section.model.items() if x is not None]
  window = [f'window {section.window}'] if section.window else []
  parts = [f'T {section.segment_len}', *window, *own]
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
    settings.refuse('eval.first_token', first_token, allowed)
  return streams.Preceded(eos, tokens)
