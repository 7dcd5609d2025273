"""--mode=eval: scores a whole split and prints its bpc or perplexity."""

import contextlib
import functools
import io
from collections.abc import Iterator

import numpy as np

from txl_jax.data import streams
from txl_jax.evaluation import scoring, units
from txl_jax.experiment import analysis, results, saved_model, text_score
from txl_jax.experiment.job import Job
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.runs.terminal import TOKENS

AnyScore = scoring.SplitScore | results.Score


def run(job: Job) -> scoring.SplitScore:
  """Scores a split, writes the record; UserError: see `text_score.scorer`."""
  ev = job.config.eval
  if ev.nll_file and not ev.nll_file.endswith('.npy'):
    errors.refuse('eval.nll_file', ev.nll_file, 'a name that ends in .npy')
  subject = analysis.open_run(job, documents=True)
  restored, corpus, split = subject.restored, subject.corpus, subject.tokens
  tokens = _from_first_token(split, corpus, ev.first_token)
  score_at = text_score.scorer(
    job.config, restored.params, subject.vocab_size, restored.mesh, tokens
  )
  nll = np.zeros(len(tokens) - 1, np.float32)
  with (
    _nll_file(ev.nll_file, nll),
    job.console.phase('scoring', len(nll), TOKENS) as phase,
  ):
    progress = functools.partial(job.console.reach, phase)
    score = score_at(1.0, progress, each=nll.__setitem__)
    scaled = score_at(ev.temperature, progress) if ev.temperature != 1 else None
  checkpoint = saved_model.weights_line(restored)
  job.console.say(f'checkpoint: {checkpoint}; corpus: {corpus.name}')
  scored_tokens = split[-score.scored :]
  bits = units.bits(score.nll, scored_tokens, restored.vocabulary)
  values = figures_text(ev, subject.unit, score, scaled)
  counts = f'{len(split)} tokens, {score.scored} scored'
  speed = speed_text(ev, score.scored, score.seconds)
  line = f'{ev.split}: {values}, {units.bits_text(bits)}{counts}, {speed}'
  record = analysis.conditions(job, subject, 'eval') | {
    'program': f'eval_{ev.split}',
    'scored_tokens': score.scored,
    'tokens_per_second': score.tokens_per_second,
    **units.to_units(score.nats, subject.unit),
    **bits,
  }
  if scaled:
    record['at_temperature'] = units.to_units(scaled.nats, subject.unit)
  if not isinstance(tokens, streams.Documents):
    means = by_position(nll, ev.batch_size, ev.segment_len)
    record['nats_by_position'] = means
    text = ', '.join(f'{p}: {mean:.3f}' for p, mean in means.items())
    job.console.say(f'nats by position in the segment, groups ending at {text}')
  analysis.report(job, record, [line])
  if ev.nll_file:
    job.console.say(f'nll of each scored token: {ev.nll_file}')
  return score


def figures_text(
  section: scoring.Eval, unit: str, score: AnyScore, scaled: AnyScore | None
) -> str:
  """A score in its unit and in nats, as text.

  `scaled` is the score at eval.temperature, None if that is 1.
  """

  def figure(score):
    return f'{units.to_units(score.nats, unit)[unit]:.5f} {unit}'

  text = f'{figure(score)} ({score.nats:.5f} nats)'
  if scaled is None:
    return text
  return f'{text}, {figure(scaled)} at temperature {section.temperature:g}'


def speed_text(section: scoring.Eval, scored: int, seconds: float) -> str:
  """Wall time and tokens per second, with the lengths and streams, as text."""
  lengths = {'context': section.context, 'window': section.window}
  lengths = {k: n for k, n in lengths.items() if n} | section.model.given()
  options = ''.join(f', {k} {x}' for k, x in lengths.items())
  return (
    f'{seconds:.1f} s, {scored / seconds:,.0f} tokens/s '
    f'(T {section.segment_len}{options}, {section.batch_size} streams)'
  )


def by_position(
  nll: np.ndarray, batch_size: int, segment_len: int
) -> dict[int, float]:
  """Mean nll by position in the segment: {last position of a group: mean}.

  The groups are the positions 1, 2, 3 to 4, 5 to 8 and so on; nll, float [n],
  is from B streams cut into segments of T. The token at position p sees p
  tokens of its segment: without memory, the first tokens of a segment have
  little context (Dai et al. 2019, Section 3.1).
  """
  stream_len = -(-len(nll) // batch_size)
  previous = np.arange(len(nll)) % stream_len % segment_len  # p - 1
  exponent = np.frexp(previous)[1]  # a group ends at position 2 ** exponent
  groups = {2 ** int(k): nll[exponent == k] for k in np.unique(exponent)}
  return {p: float(x.mean(dtype=np.float64)) for p, x in groups.items()}


@contextlib.contextmanager
def _nll_file(path: str, nll: np.ndarray) -> Iterator[None]:
  """Writes a .npy file at the end of the block; UserError if it cannot.

  The file is opened first, so a bad path is refused before the block.
  """
  if not path or not processes.is_main():
    yield
    return
  name = f'eval.nll_file: {path}'
  with contextlib.ExitStack() as stack:
    with files.writing(name):
      f = stack.enter_context(files.replacing(path))
    yield
    data = io.BytesIO()  # np.save to a file would not report a full disk
    np.save(data, nll)
    with files.writing(name):
      f.write(data.getbuffer())
      stack.close()


def _from_first_token(tokens, corpus, first_token):
  """The tokens, preceded by <eos> if the first one is to be scored too."""
  if first_token == 'none':
    return tokens
  eos = corpus.vocabulary.eos_id
  begun = corpus.of_documents or corpus.sentences('test') is not None
  if eos is None or begun:
    reason = 'has no <eos>' if eos is None else 'already begins with one'
    allowed = f'none, because corpus {corpus.name} {reason}'
    errors.refuse('eval.first_token', first_token, allowed)
  return streams.Preceded(eos, tokens)
