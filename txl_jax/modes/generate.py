"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import itertools
import sys

import numpy as np

from txl_jax.experiment import analysis, texts
from txl_jax.experiment.job import Job
from txl_jax.generation import text_writer
from txl_jax.generation.options import Generate
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # bytes of a text


def run(job: Job) -> None:
  """Writes the samples; UserError if the prompt cannot be read or encoded.

  A prompt of the split is followed by what the text has there (Appendix E).
  """
  g, text, prompt, real = job.config.generate, b'', None, None
  if g.prompt_tokens:
    subject = analysis.open_run(job)
    found, (prompt, real) = subject.restored, _of_split(g, subject.tokens)
  else:
    text = read_prompt(g)
    found = job.restored()
  vocabulary = found.vocabulary
  if g.prompt_file:
    dtype = job.config.data.id_dtype
    given = texts.of_file(vocabulary, text, _file_of(g), dtype)
    if isinstance(given, np.ndarray):
      prompt, given = given, vocabulary.decode(given)
    text = given
  text = texts.plain(vocabulary, text)
  writer = text_writer.make(job.config, found.params, vocabulary)
  if prompt is None:
    prompt = vocabulary.encode(text, 'the prompt')
  if line := vocabulary.unknown(text, 'the prompt'):
    job.console.say(f'warning: {line}')
  if vocabulary.kind == 'subwords' and text.endswith(b' '):
    why = 'the next word would begin with it; leave it out'
    job.console.say(f'warning: the prompt ends in a space, and {why}')
  rows = writer.make_rows([prompt], g.samples)
  pieces = writer.stream(rows, g.samples, echo=real is None)
  with job.console.phase('compiling, and reading the prompt'):
    pieces = itertools.chain([*itertools.islice(pieces, 2)], pieces)
  out = sys.stdout if processes.is_main() else io.StringIO()
  if real is not None:
    out.write(f'=== prompt\n{_text(vocabulary, prompt)}\n=== written\n')
  if g.samples == 1:
    # An incomplete character waits for its last byte.
    one = (piece for (piece,) in pieces)
    for part in codecs.iterdecode(one, 'utf-8', 'replace'):
      out.write(part)
      out.flush()
    out.write('\n')
  else:
    for i, sample in enumerate(map(b''.join, zip(*pieces)), 1):
      out.write(f'=== sample {i} of {g.samples}\n')
      out.write(sample.decode(errors='replace') + '\n')
  if real is not None:
    out.write(f'=== what follows in the text\n{_text(vocabulary, real)}\n')
  out.flush()


def _text(vocabulary, ids):
  return vocabulary.decode(ids).decode(errors='replace')


def _of_split(g: Generate, tokens: np.ndarray) -> list[np.ndarray]:
  """Int32 [n]: the prompt, and what follows it, as long as a sample."""
  begin = g.prompt_start + g.prompt_tokens
  if (end := begin + g.max_new_tokens) > len(tokens):
    name = 'generate.prompt_start, prompt_tokens and max_new_tokens: the sum'
    errors.refuse(name, end, f'at most {len(tokens)}, as many as eval.split')
  parts = tokens[g.prompt_start : begin], tokens[begin:end]
  return [np.asarray(x, np.int32) for x in parts]


def _file_of(g):
  return f'generate.prompt_file: {g.prompt_file}'


def read_prompt(g: Generate) -> bytes:
  """The bytes of the prompt, for every process; or UserError."""

  def read():
    if not g.prompt_file:
      return g.prompt
    return read_text(_file_of(g), g.prompt_file).decode('latin-1')

  # Standard input is that of process 0.
  return processes.on_main(read).encode('latin-1' if g.prompt_file else 'utf-8')


def read_text(name: str, path: str) -> bytes:
  """A file, or standard input, which is -; UserError, which calls it `name`."""
  if path != '-':
    return files.read(path, name, _LARGEST)
  if sys.stdin is None:
    raise UserError(f'{name} is standard input, which is closed')
  try:
    return files.limited(sys.stdin.buffer, name, _LARGEST)
  except OSError as e:
    raise UserError(f'{name} cannot be read: {e.strerror}') from e
