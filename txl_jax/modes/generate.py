"""--mode=generate: prints samples that continue a prompt."""

import codecs
import io
import itertools
import sys

import numpy as np

from txl_jax.experiment import analysis, texts
from txl_jax.experiment.job import Job
from txl_jax.generation import text_writer
from txl_jax.generation.generate_config import Generate
from txl_jax.parallel import processes
from txl_jax.program import errors, files
from txl_jax.program.errors import UserError

_LARGEST = 1 << 28  # bytes of a text


def run(job: Job) -> None:
  """Prints the samples; UserError if the prompt cannot be read or encoded.

  With a prompt from a split, also prints the text that follows it there (Dai et
  al. 2019, Appendix E).
  """
  g = job.config.generate
  text = b''
  prompt = None
  reference = None
  if g.prompt_tokens:
    subject = analysis.open_run(job)
    restored = subject.restored
    prompt, reference = _from_split(g, subject.tokens)
  else:
    name = f'generate.prompt_file: {g.prompt_file}'
    path = g.prompt_file
    id_dtype = job.config.data.id_dtype
    text = read_text(name, path) if path else g.prompt.encode()
    restored = job.restored()
    if path:
      text, prompt = texts.of_file(restored.vocabulary, text, name, id_dtype)
  vocabulary = restored.vocabulary
  text = texts.plain(vocabulary, text)
  writer = text_writer.make(job.config, restored.params, vocabulary)
  if prompt is None:
    prompt = vocabulary.encode(text, 'the prompt')
  if line := vocabulary.unknown(text, 'the prompt'):
    job.console.say(f'warning: {line}')
  if vocabulary.kind == 'subwords' and text.endswith(b' '):
    reason = 'the next subword would begin with it; remove it'
    job.console.say(f'warning: the prompt ends in a space, and {reason}')
  rows = writer.make_rows([prompt], g.samples)
  pieces = writer.stream(rows, g.samples, echo=g.echo and not g.prompt_tokens)
  with job.console.phase('compiling, and reading the prompt'):
    pieces = itertools.chain([*itertools.islice(pieces, 2)], pieces)
  out = sys.stdout if processes.is_main() else io.StringIO()
  if reference is not None:
    out.write(f'=== prompt\n{_decode(vocabulary, prompt)}\n=== generated\n')
  if g.samples == 1:
    # An incomplete character waits for its last byte.
    sample = (piece for (piece,) in pieces)
    for part in codecs.iterdecode(sample, 'utf-8', 'replace'):
      out.write(part)
      out.flush()
    out.write('\n')
  else:
    for i, sample in enumerate(map(b''.join, zip(*pieces)), 1):
      out.write(f'=== sample {i} of {g.samples}\n')
      out.write(sample.decode(errors='replace') + '\n')
  if reference is not None:
    following = _decode(vocabulary, reference)
    out.write(f'=== original continuation\n{following}\n')
  out.flush()


def _decode(vocabulary, ids):
  return vocabulary.decode(ids).decode(errors='replace')


def _from_split(g: Generate, tokens: np.ndarray) -> list[np.ndarray]:
  """The prompt and the max_new_tokens tokens after it, both int32 [n]."""
  begin = g.prompt_start + g.prompt_tokens
  if (end := begin + g.max_new_tokens) > len(tokens):
    name = 'generate.prompt_start, prompt_tokens and max_new_tokens: the sum'
    errors.refuse(name, end, f'at most {len(tokens)}, the size of eval.split')
  parts = tokens[g.prompt_start : begin], tokens[begin:end]
  return [np.asarray(x, np.int32) for x in parts]


def read_text(name: str, path: str) -> bytes:
  """Reads a file, or standard input for '-', on process 0 for all processes.

  UserError, with `name`, if it cannot be read.
  """

  def read():
    if path != '-':
      data = files.read(path, name, _LARGEST)
    elif sys.stdin is None:
      raise UserError(f'{name} is standard input, which is closed')
    else:
      try:
        data = files.limited(sys.stdin.buffer, name, _LARGEST)
      except OSError as e:
        raise UserError(f'{name} cannot be read: {e.strerror}') from e
    return data.decode('latin-1')  # `on_main` passes JSON

  return processes.on_main(read).encode('latin-1')
