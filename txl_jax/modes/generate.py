"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import itertools
import sys

from txl_jax.api import texts, writing
from txl_jax.generation.options import Generate
from txl_jax.modes.job import Job
from txl_jax.parallel import processes
from txl_jax.program import files
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # bytes of a text


def run(job: Job) -> None:
  """Writes the samples; UserError if the prompt cannot be read or encoded."""
  g = job.config.generate
  text = read_prompt(g)
  found = job.restored()
  vocabulary = found.vocabulary
  if g.prompt_file:
    text = texts.of_file(vocabulary, text, _file_of(g))
  text = texts.plain(vocabulary, text)
  writer = writing.make(job.config, found.params, vocabulary)
  prompt = vocabulary.encode(text, 'the prompt')
  if line := vocabulary.unknown(text, 'the prompt'):
    job.console.say(f'warning: {line}')
  if vocabulary.kind == 'subwords' and text.endswith(b' '):
    why = 'the next word would begin with it; leave it out'
    job.console.say(f'warning: the prompt ends in a space, and {why}')
  pieces = writer.texts([prompt], g.samples, echo=True)
  with job.console.phase('compiling, and reading the prompt'):
    pieces = itertools.chain([*itertools.islice(pieces, 2)], pieces)
  out = sys.stdout if processes.is_main() else io.StringIO()
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
  out.flush()


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
