"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import sys

from txl_jax import files
from txl_jax.api import writing
from txl_jax.data import unknown
from txl_jax.errors import UserError
from txl_jax.generation import decoding
from txl_jax.generation.options import Generate
from txl_jax.modes import trained
from txl_jax.modes.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes

_LARGEST = 1 << 28  # bytes of a text


def run(job: Job) -> None:
  """Writes the samples of the section `generate`.

  UserError: see `trained.load`; or the prompt cannot be read or encoded.
  """
  g = job.config.generate
  # Standard input is that of process 0.
  prompt = processes.on_main(lambda: _prompt(g).decode('latin-1'))
  mesh = mesh_lib.make_mesh(job.config.mesh)
  found = trained.load(job.config, job.folder, mesh)
  vocabulary = found.vocabulary
  writer = writing.make(job.config, found.params, vocabulary)
  text = prompt.encode('latin-1')
  prompts = _encode(g, text, vocabulary)
  if line := unknown.told(vocabulary, text, 'the prompt'):
    job.console.say(f'warning: {line}')
  rows, T = g.samples * len(prompts), g.segment_len
  decoding.check(writer.model, found.params, samples=rows, segment_len=T)
  pieces = writer.texts(prompts, g.samples, echo=True)
  out = sys.stdout if processes.is_main() else io.StringIO()
  if rows == 1 and not g.prompt_lines:
    # An incomplete character waits for its last byte.
    one = (piece for (piece,) in pieces)
    for text in codecs.iterdecode(one, 'utf-8', 'replace'):
      out.write(text)
      if g.stream:
        out.flush()
    out.write('\n')
  else:
    for row, text in enumerate(map(b''.join, zip(*pieces))):
      n, i = divmod(row, g.samples)
      which = f'prompt {n + 1} of {len(prompts)}, ' if g.prompt_lines else ''
      out.write(f'=== {which}sample {i + 1} of {g.samples}\n')
      out.write(text.decode(errors='replace') + '\n')
  out.flush()


def _encode(g, text, vocabulary):
  """The tokens of each prompt."""
  if not g.prompt_lines:
    return [vocabulary.encode(text, 'the prompt')]
  lines = enumerate(text.splitlines() or [b''], 1)
  return [vocabulary.encode(x, f'line {n} of the prompt') for n, x in lines]


def _prompt(g: Generate):
  if not g.prompt_file:
    return g.prompt.encode()
  return read_text(f'generate.prompt_file: {g.prompt_file}', g.prompt_file)


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
