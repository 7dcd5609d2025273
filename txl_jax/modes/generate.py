"""--mode=generate: prints what the model writes after a prompt."""

import codecs
import io
import sys

from txl_jax import models, settings
from txl_jax.errors import UserError
from txl_jax.generation import decoding
from txl_jax.generation.options import Generate
from txl_jax.generation.sampling import Sampling
from txl_jax.modes import trained
from txl_jax.modes.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes


def run(job: Job) -> None:
  """Writes the samples of the section `generate`.

  Raises:
    UserError: see `trained.load`; or the prompt cannot be read or encoded.
  """
  g = job.config.generate
  # Standard input is that of process 0.
  prompt = processes.on_main(lambda: _prompt(g).decode('latin-1'))
  mesh = mesh_lib.make_mesh(job.config.mesh)
  found = trained.load(job.config, job.folder, mesh)
  vocabulary = found.vocabulary
  tokens = vocabulary.encode(prompt.encode('latin-1'), 'the prompt')
  pieces = decoding.generate(
    _model(job.config, vocabulary),
    found.params,
    tokens,
    sampling=_sampling(g, vocabulary),
    max_new_tokens=g.max_new_tokens,
    seed=g.seed,
    segment_len=g.segment_len,
    samples=g.samples,
    start=vocabulary.start,
    eos=_end(g, vocabulary),
  )
  out = sys.stdout if processes.is_main() else io.StringIO()
  if g.samples == 1:
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
    rows = [tokens.tolist()] * g.samples
    for piece in pieces:
      # -1 stands in a row that has ended.
      rows = [
        row + [t for t in more.tolist() if t >= 0]
        for row, more in zip(rows, piece)
      ]
    for i, row in enumerate(rows):
      out.write(f'=== sample {i + 1} of {g.samples}\n')
      out.write(vocabulary.decode(row).decode(errors='replace') + '\n')
  out.flush()


def _model(config, vocabulary):
  """The model at test time; without memory, it sees a window."""
  V = len(vocabulary)
  model = models.at_test_time(config, V, 'generate', config.generate.window)
  if model.remembers():
    return model
  return models.at_test_time(config, V, 'generate', config.train.segment_len)


def _sampling(g: Generate, vocabulary):
  forbidden: tuple[int, ...] = ()
  if g.forbid_unk:
    unk = vocabulary.unk_id
    if unk is None:
      settings.refuse(
        'generate.forbid_unk',
        True,
        'False, for the vocabulary has no unknown word',
      )
    forbidden = (unk,)
  return Sampling(
    g.temperature, g.top_k, g.top_p, g.repetition_penalty, forbidden
  )


def _end(g: Generate, vocabulary):
  """The token id that ends a sample, or None."""
  if g.stop == 'none':
    return None
  if vocabulary.line_end is None:
    settings.refuse(
      'generate.stop', g.stop, 'none, for the vocabulary has no end of a line'
    )
  return vocabulary.line_end


def _prompt(g: Generate):
  if not g.prompt_file:
    return g.prompt.encode()
  if g.prompt_file == '-':
    return sys.stdin.buffer.read()
  try:
    with open(g.prompt_file, 'rb') as f:
      return f.read()
  except OSError as e:
    raise UserError(
      f'generate.prompt_file: {g.prompt_file}: {e.strerror}'
    ) from e
