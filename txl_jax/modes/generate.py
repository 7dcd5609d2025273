"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import dataclasses
import io
import itertools
import sys
from collections.abc import Callable
from typing import Any

from txl_jax.api import call_options, writing
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.generation import decoding
from txl_jax.generation.options import Generate
from txl_jax.models import base
from txl_jax.modes.job import Job
from txl_jax.modes.sections import Config
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
  writer = writing.make(job.config, found.params, vocabulary)
  prompt = vocabulary.encode(text, 'the prompt')
  if line := vocabulary.unknown(text, 'the prompt'):
    job.console.say(f'warning: {line}')
  if vocabulary.kind == 'subwords' and text.endswith(b' '):
    why = 'the next word would begin with it; leave it out'
    job.console.say(f'warning: the prompt ends in a space, and {why}')
  fits: Any = dict(samples=g.samples, segment_len=g.segment_len)
  decoding.check(writer.model, found.params, **fits)
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


def sampler(
  config: Config, vocabulary: AnyVocabulary, params: Any
) -> Callable[[Any], str] | None:
  """Gives the text that parameters, those of a moment in training, write.

  All processes call it together. It is as `--mode=generate` would print it: the
  prompt and one sample, of train.sample_tokens. None without
  train.sample_every. Of the parameters the shapes suffice here. UserError if
  the section `generate` cannot be followed.
  """
  if not config.train.sample_every:
    return None
  given = {'max_new_tokens': config.train.sample_tokens}
  config = call_options.changed(config, 'generate', given)
  g = config.generate
  prompt = vocabulary.encode(read_prompt(g), 'the prompt')
  empty = writing.make(config, params, vocabulary, freeze=lambda *_: None)
  decoding.check(empty.model, params, samples=1, segment_len=g.segment_len)

  def sample(params):
    variables = base.freeze(empty.model, params)
    writer = dataclasses.replace(empty, variables=variables)
    pieces = (piece for (piece,) in writer.texts([prompt], echo=True))
    return b''.join(pieces).decode(errors='replace')

  return sample


def read_prompt(g: Generate) -> bytes:
  """The text of the prompt, for every process; or UserError."""

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
