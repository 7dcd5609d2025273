"""--mode=score: the nll of any text file under the model of a run."""

import functools
import json
import os
import time
import warnings
from collections.abc import Iterator

from txl_jax.evaluation import units
from txl_jax.experiment import saved_model, score_page, text_score, texts
from txl_jax.experiment.job import Job
from txl_jax.experiment.results import Score
from txl_jax.modes import evaluate, generate
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.program.errors import UserError


def run(job: Job) -> Score:
  """Scores the file of --text with the options of the section `eval`.

  --score_file, if set, gets a page (.html) or a line of JSON for each scored
  token. UserError: a file cannot be read or written, the vocabulary has no
  token for a part of the text, or the options do not fit the model or the text.
  """
  if not job.text:
    raise UserError('--text=FILE is missing: the text to score, - for stdin')
  if job.score_file and os.path.realpath(job.score_file) == os.path.realpath(
    job.text
  ):
    errors.refuse('--score_file', job.score_file, 'a file other than --text')
  name = f'--text={job.text}'
  data = generate.read_text(name, job.text)
  as_page = job.score_file.lower().endswith(('.html', '.htm'))
  restored = job.restored()
  begin = time.monotonic()
  vocabulary = restored.vocabulary
  text, ids = texts.of_file(vocabulary, data, name, job.config.data.id_dtype)
  if ids is None and (line := vocabulary.unknown(text, name)):
    job.console.say(f'warning: {line}')
  with (
    job.console.phase('scoring', form='{:,} tokens') as phase,
    warnings.catch_warnings(),
  ):
    warnings.simplefilter('ignore', texts.UnknownWords)  # warned above
    score = text_score.score(
      job.config,
      restored.params,
      vocabulary,
      restored.mesh,
      texts.with_offsets(
        vocabulary, 'text', text if ids is None else ids, frames=2
      ),
      functools.partial(job.console.reach, phase),
      top=5 if as_page else 0,
    )
  seconds = time.monotonic() - begin
  n = len(score.nll)
  bits = {'bpb': score.bits_per_byte}
  if vocabulary.kind == 'ids':
    bits = units.bits(score.total, score.ids, vocabulary)
  job.console.say(f'checkpoint: {saved_model.weights_line(restored)}')
  ev = job.config.eval
  scaled = score.at_temperature
  size = f'{score.text_bytes} bytes, ' if score.text_bytes else ''
  figures = evaluate.figures_text(ev, vocabulary.unit, score, scaled)
  processes.print_on_main(
    f'{job.text}: {figures}, '
    f'{units.bits_text(bits)}{n} tokens scored, {size}'
    f'{evaluate.speed_text(ev, n, seconds)}'
  )
  if job.score_file:
    title = f'{job.folder.name}: {figures}'
    parts = [score_page.page(score, title)] if as_page else _lines(score, text)
    name = f'--score_file={job.score_file}'
    processes.on_main(lambda: files.write(job.score_file, ''.join(parts), name))
  return score


def _lines(score: Score, text: bytes) -> Iterator[str]:
  """A line of JSON for each scored token; start and end are in bytes."""
  for i, (start, end), nll in zip(score.ids, score.offsets.tolist(), score.nll):
    token = text[start:end].decode(errors='backslashreplace')
    entry = dict(start=start, end=end, id=int(i), text=token, nll=float(nll))
    yield json.dumps(entry) + '\n'
