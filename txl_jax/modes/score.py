"""--mode=score: the nll of any text file under the model of a run."""

import functools
import json
import os
import time
import warnings

from txl_jax.evaluation import figures
from txl_jax.experiment import restore, text_score, texts
from txl_jax.experiment.job import Job
from txl_jax.experiment.results import Score
from txl_jax.modes import evaluate, generate
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.program.errors import UserError


def run(job: Job) -> Score:
  """Scores the file of --text as the section `eval` says.

  With --score_file, a line of JSON for each token is written there. UserError:
  a file cannot be read or written, or the vocabulary has no token for a part of
  the text.
  """
  if not job.text:
    raise UserError('--text=FILE is missing: the text to score, - for stdin')
  if job.score_file and os.path.realpath(job.score_file) == os.path.realpath(
    job.text
  ):
    errors.refuse('--score_file', job.score_file, 'another file than --text')

  def read():
    text = generate.read_text(f'--text={job.text}', job.text)
    return text.decode('latin-1')

  # Standard input is that of process 0.
  text = processes.on_main(read).encode('latin-1')
  found, begin = job.restored(), time.monotonic()
  name, dtype = f'--text={job.text}', job.config.data.id_dtype
  given = texts.of_file(found.vocabulary, text, name, dtype)
  is_text = isinstance(given, bytes)
  text = given if is_text else found.vocabulary.decode(given)
  of_run = job.config, found.params, found.vocabulary, found.mesh
  if is_text and (line := found.vocabulary.unknown(text, name)):
    job.console.say(f'warning: {line}')
  with (
    job.console.phase('scoring', 0, '{:,} tokens') as phase,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('ignore', texts.UnknownWords)  # it was said
    told = functools.partial(job.console.reach, phase, pause=5.0)
    encoded = texts.with_offsets(found.vocabulary, 'text', given)
    score = text_score.score(*of_run, encoded, told)
  seconds, n = time.monotonic() - begin, len(score.nll)
  unit = found.vocabulary.unit
  figure = figures.to_units(score.nats, unit)[unit]
  size = f'{score.text_bytes} bytes, ' if score.text_bytes else ''
  bits = {'bpb': score.bits_per_byte}
  if found.vocabulary.kind == 'ids':
    bits = figures.bits(score.total, score.ids, found.vocabulary)
  job.console.say(f'checkpoint: {restore.weights_line(found)}')
  processes.print_on_main(
    f'{job.text}: {figure:.5f} {unit} ({score.nats:.5f} nats), '
    f'{evaluate.at_temperature(job.config.eval, score.at_temperature, unit)}'
    f'{figures.bits_text(bits)}{n} tokens scored, {size}'
    f'{seconds:.1f} s, {n / seconds:,.0f} tokens/s '
    f'({evaluate.conditions(job.config.eval)})'
  )
  if job.score_file:
    lines = ''.join(_lines(score, text))
    name = f'--score_file={job.score_file}'
    processes.on_main(lambda: files.write(job.score_file, lines, name))
  return score


def _lines(score, text):
  """A line of JSON for each scored token; its place is in bytes of the text."""
  for i, (start, end), nll in zip(score.ids, score.offsets.tolist(), score.nll):
    token = text[start:end].decode(errors='backslashreplace')
    found = dict(start=start, end=end, id=int(i), text=token, nll=float(nll))
    yield json.dumps(found) + '\n'
