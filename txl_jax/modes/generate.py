"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import sys
from typing import Any

import numpy as np

from txl_jax import files, models, settings
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError
from txl_jax.generation import decoding
from txl_jax.generation.options import Generate
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base
from txl_jax.modes import trained
from txl_jax.modes.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes

_LARGEST = 1 << 26  # bytes of a prompt


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
  chosen = choices(g, vocabulary)
  prompts = _encode(g, prompt.encode('latin-1'), vocabulary, chosen['start'])
  model = reader(job.config, len(vocabulary))
  rows, T = g.samples * len(prompts), g.segment_len
  decoding.check(model, found.params, samples=rows, segment_len=T)
  pieces = decoding.generate(
    model,
    found.params,
    _begun(prompts, chosen['start']) if g.prompt_lines else prompts[0],
    max_new_tokens=g.max_new_tokens,
    seed=g.seed,
    samples=g.samples,
    segment_len=T,
    **chosen,
  )
  out = sys.stdout if processes.is_main() else io.StringIO()
  if rows == 1 and not g.prompt_lines:
    (tokens,) = prompts
    decoder = vocabulary.decoder()
    # An incomplete character waits for its last byte.
    utf8 = codecs.getincrementaldecoder('utf-8')('replace')
    out.write(utf8.decode(decoder.push(tokens)))
    for piece in pieces:
      out.write(utf8.decode(decoder.push(piece[0])))
      if g.stream:
        out.flush()
    out.write(utf8.decode(b'', final=True) + '\n')
  else:
    new = np.concatenate([np.zeros([rows, 0], np.int32), *pieces], axis=1)
    for row, tokens in enumerate(new):
      n, i = divmod(row, g.samples)
      which = f'prompt {n + 1} of {len(prompts)}, ' if g.prompt_lines else ''
      out.write(f'=== {which}sample {i + 1} of {g.samples}\n')
      tokens = tokens[tokens >= 0]  # -1 is behind the end of a row
      text = vocabulary.decode(np.concatenate([prompts[n], tokens]))
      out.write(text.decode(errors='replace') + '\n')
  out.flush()


def reader(config: Any, vocab_size: int) -> base.LanguageModel:
  """The model as the section `generate` uses it, a window if it has no memory.

  UserError if a window is asked for, and it has one.
  """
  own = config, vocab_size, 'generate'
  model = models.at_test_time(*own, config.generate.window)
  if model.remembers():
    return model
  return models.at_test_time(*own, config.train.segment_len)


def choices(g: Generate, vocabulary: Vocabulary | Words) -> dict[str, Any]:
  """How tokens are drawn, and which start and end a sample, None for none."""
  forbidden: Any = (vocabulary.unk_id,) if g.forbid_unk else ()
  if None in forbidden:
    allowed = 'False, for the vocabulary has no unknown word'
    settings.refuse('generate.forbid_unk', True, allowed)
  end = None if g.stop == 'none' else vocabulary.line_end
  if end is None and g.stop != 'none':
    allowed = 'none, for the vocabulary has no end of a line'
    settings.refuse('generate.stop', g.stop, allowed)
  drawn = g.temperature, g.top_k, g.top_p, g.repetition_penalty
  sampling = Sampling(*drawn, forbidden)
  return dict(sampling=sampling, start=vocabulary.start, eos=end)


def _encode(g, text, vocabulary, start):
  """The tokens of each prompt.

  UserError if a line is empty and the vocabulary has nothing to start with.
  """
  if not g.prompt_lines:
    return [vocabulary.encode(text, 'the prompt')]
  lines, prompts = text.splitlines() or [b''], []
  for n, line in enumerate(lines, 1):
    name = f'line {n} of the prompt'
    prompts.append(vocabulary.encode(line, name))
    if start is None and not len(prompts[-1]):
      raise UserError(f'{name} is empty; allowed: at least one token')
  return prompts


def _begun(prompts, start):
  """Prompts to be read: in place of an empty one what a text begins after."""
  return [tokens if len(tokens) else [start] for tokens in prompts]


def _prompt(g: Generate):
  if not g.prompt_file:
    return g.prompt.encode()
  name = f'generate.prompt_file: {g.prompt_file}'
  if g.prompt_file != '-':
    return files.read(g.prompt_file, name, _LARGEST)
  if sys.stdin is None:
    raise UserError(f'{name} is standard input, which is closed')
  try:
    return files.limited(sys.stdin.buffer, name, _LARGEST)
  except OSError as e:
    raise UserError(f'{name} cannot be read: {e.strerror}') from e
