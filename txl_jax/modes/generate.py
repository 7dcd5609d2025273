"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import itertools
import sys

import numpy as np

from txl_jax.api import writing
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.generation import decoding
from txl_jax.generation.options import Generate
from txl_jax.modes.job import Job
from txl_jax.parallel import processes
from txl_jax.program import files
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # bytes of a text


def run(job: Job) -> None:
  """Writes the samples; UserError if the prompt cannot be read or encoded."""
  g = job.config.generate
  prompt = read_prompt(g)
  found = job.restored()
  vocabulary = found.vocabulary
  writer = writing.make(job.config, found.params, vocabulary)
  prompts = encode(g, prompt, vocabulary)
  if line := vocabulary.unknown(prompt, 'the prompt'):
    job.console.say(f'warning: {line}')
  if vocabulary.kind == 'subwords' and prompt.endswith(b' '):
    why = 'the next word would begin with it; leave it out'
    job.console.say(f'warning: the prompt ends in a space, and {why}')
  rows, T = g.samples * len(prompts), g.segment_len
  decoding.check(writer.model, found.params, samples=rows, segment_len=T)
  pieces = writer.texts(prompts, g.samples, echo=True)
  with job.console.phase('compiling, and reading the prompt'):
    pieces = itertools.chain([*itertools.islice(pieces, 2)], pieces)
  out = sys.stdout if processes.is_main() else io.StringIO()
  if rows == 1 and not g.prompt_lines:
    # An incomplete character waits for its last byte.
    one = (piece for (piece,) in pieces)
    for text in codecs.iterdecode(one, 'utf-8', 'replace'):
      out.write(text)
      out.flush()
    out.write('\n')
  else:
    for row, text in enumerate(map(b''.join, zip(*pieces))):
      n, i = divmod(row, g.samples)
      which = f'prompt {n + 1} of {len(prompts)}, ' if g.prompt_lines else ''
      out.write(f'=== {which}sample {i + 1} of {g.samples}\n')
      out.write(text.decode(errors='replace') + '\n')
  out.flush()


def encode(
  g: Generate, text: bytes, vocabulary: AnyVocabulary
) -> list[np.ndarray]:
  """The tokens of each prompt of a text; UserError if they are not known."""
  if not g.prompt_lines:
    return [vocabulary.encode(text, 'the prompt')]
  lines = enumerate(text.splitlines() or [b''], 1)
  return [vocabulary.encode(x, f'line {n} of the prompt') for n, x in lines]


def read_prompt(g: Generate) -> bytes:
  """The text of the prompts, for every process; or UserError."""

  def read():
    if not g.prompt_file:
      return g.prompt
    name = f'generate.prompt_file: {g.prompt_file}'
    return read_text(name, g.prompt_file).decode('latin-1')

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
