"""Nll of segments, with memory carried from one to the next.

Shapes: B batch, E context, T segment, G segments in a call.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement


def memory_shardings(model: base.LanguageModel, mesh: Mesh | None) -> Any:
  """Shardings that divide a memory's rows over a mesh; None without one."""
  if mesh is None:
    return None
  return jax.tree.map(lambda axis: placement.rows(mesh, axis), model.row_axes())


# Tokens of several segments in one product: more are hardly any faster.
_TOGETHER = 512


def _together(model, G, B, T):
  """How many of G segments [B, T] the model reads at once, a divisor of G."""
  if model.segments_of() != T:
    return 1
  fits = [n for n in range(1, G + 1) if n * B * T <= _TOGETHER and G % n == 0]
  return max(fits, default=1)


def score(
  variables: Any,
  memory: Any,
  inputs: jax.Array,
  targets: jax.Array,
  begins: jax.Array | None = None,
  context: jax.Array | None = None,
  *,
  model: base.LanguageModel,
  mesh: Mesh | None = None,
) -> tuple[Any, jax.Array]:
  """The memory after G consecutive segments, and their nll float32 [G, B, T].

  The memory has B rows; inputs are int32 [G, B, E + T], targets [G, B, T]; a
  target of -1 is not scored. Memories are emptied before the segments marked in
  `begins`, bool [G, B]. The first `context` tokens of a row, int32 [G, B], are
  only read (see `models.base`); None if E is 0. The variables are from
  `base.freeze`, on the mesh.
  """
  G, B, T = targets.shape
  n = 1 if begins is not None else _together(model, G, B, T)

  def join(x):  # [G, B, T] -> [G / n, B, n T]
    parts = x.reshape(-1, n, B, x.shape[-1])
    return jnp.swapaxes(parts, 1, 2).reshape(-1, B, n * x.shape[-1])

  def body(memory, segments):
    *segments, begin, before = segments
    if begin is not None:
      memory = model.reset_memory(memory, begin)
    # Padding comes after everything scored in a document or row. A memory may
    # keep it, as nothing that follows sees it. Without memory, positions may
    # count from the end of the row.
    places = jnp.arange(1, n * T + 1)
    ends = jnp.where(segments[1] >= 0, places, 0)
    lengths = None if model.remembers() else jnp.max(ends, axis=1)
    more: Any = dict(train=False, lengths=lengths)
    if before is not None:
      more |= dict(lengths=before + lengths, context=before)
    out: Any = model.apply(variables, *segments, memory, **more)
    return out.memory, out.nll

  with mesh_lib.ambient(mesh):
    segments = join(inputs), join(targets), begins, context
    memory, nll = jax.lax.scan(body, memory, segments)
  nll = jnp.swapaxes(nll.reshape(-1, B, n, T), 1, 2).reshape(G, B, T)
  if places := memory_shardings(model, mesh):
    # Placed as the given memory is, or the next call would be compiled anew.
    memory = jax.lax.with_sharding_constraint(memory, places)
  return memory, nll


# Compiled once per model (Linen modules with equal fields are equal) and
# shapes, however often the model is evaluated.
jit_score = jax.jit(
  score, static_argnames=('model', 'mesh'), donate_argnames='memory'
)
