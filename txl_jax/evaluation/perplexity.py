"""Bits per character and perplexity of a split, memory carried throughout.

Shapes: B streams, T segment, G segments in one call of the device.
"""

import dataclasses
import mmap
import time

import jax
import numpy as np

from txl_jax import models
from txl_jax.data import streams
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes


@dataclasses.dataclass(frozen=True)
class Score:
  """The figures of a split.

  Attributes:
    nll: nats, summed over the scored tokens.
    scored: tokens scored.
    seconds: it took.
  """

  nll: float
  scored: int
  seconds: float

  @property
  def nats(self):
    """Mean nll of a token, in nats."""
    return self.nll / self.scored

  @property
  def tokens_per_second(self):
    """Tokens scored in a second, compilation included."""
    return self.scored / self.seconds


def model_at_test_time(config, vocab_size, section):
  """The model of a config with the lengths of a section.

  Its memory holds keys and values: the weights are frozen.

  Args:
    config: ConfigDict.
    vocab_size: V.
    section: has mem_len, clamp_len, same_length: `eval` or `generate`.
  """
  return models.build(
    config.model,
    vocab_size,
    mem_len=section.mem_len,
    clamp_len=section.clamp_len,
    same_length=section.same_length,
    cache_projections=True,
  )


def score(
  model,
  params,
  tokens,
  *,
  batch_size,
  segment_len,
  segments_per_call,
  mesh=None,
  nll_file=None,
  stopped=lambda: False,
  progress=None,
):
  """Scores every token of a split once, but the first.

  The mean is over the n - 1 scored tokens. With B > 1 the split is cut into
  B streams that start with an empty memory, so the figure is a little
  higher than with B = 1, which is exact.

  Args:
    model: see `models.base`.
    params: its parameters.
    tokens: integer array [n], n >= 2; may be mapped from a file.
    batch_size: B.
    segment_len: T.
    segments_per_call: G.
    mesh: of the parameters; its devices share the streams, if they can be
      divided. None for parameters on one device.
    nll_file: path of a .npy for the nll of each scored token, float32
      [n - 1] in text order; it is in memory only piece by piece. Of several
      processes the first one writes it.
    stopped: asked before each call; True ends the scoring.
    progress: called with the tokens scored so far.

  Returns:
    A Score, or None if it was stopped.
  """
  begin = time.monotonic()
  # No more segments in a call than a stream has: nothing is only padding.
  per_stream = -(-(len(tokens) - 1) // batch_size)
  group = min(segments_per_call, -(-per_stream // segment_len))
  memory = _empty_memory(model, batch_size, mesh)
  total, scored, written = 0.0, 0, None
  if nll_file and processes.is_main():
    written = np.lib.format.open_memmap(
      nll_file, 'w+', np.float32, (len(tokens) - 1,)
    )
  parts = streams.segments(tokens, batch_size, segment_len, group)
  for inputs, targets, lengths, positions in parts:
    if stopped():
      return None
    memory, nll = scoring.jit_score(
      params, memory, inputs, targets, lengths, model=model, mesh=mesh
    )
    real = targets >= 0
    values = placement.fetch(nll)[real]
    total += float(values.sum(dtype=np.float64))
    scored += values.size
    if written is not None:
      written[positions[real] - 1] = values
    _release(tokens)
    _release(written)
    if progress:
      progress(scored)
  if written is not None:
    written.flush()
  return Score(total, scored, time.monotonic() - begin)


def _empty_memory(model, B, mesh):
  """The memory before the first token; its rows divided where they can be."""
  init = lambda: model.init_memory(B)
  if mesh is None:
    return jax.jit(init)()

  def place(leaf):
    if B % mesh_lib.row_parts(mesh):
      return mesh_lib.replicated(mesh)
    return mesh_lib.rows(mesh, base.row_axis(leaf))

  places = jax.tree.map(place, jax.eval_shape(init))
  return jax.jit(init, out_shardings=places)()


def _release(array):
  """Takes what a mapped file has brought into memory out of the process.

  The file is as it was, what was written to it included; without this the
  process would seem to grow with the text.
  """
  while array is not None and not isinstance(array, mmap.mmap):
    array = getattr(array, 'base', None)
  if array is not None and hasattr(mmap, 'MADV_DONTNEED'):
    array.madvise(mmap.MADV_DONTNEED)
