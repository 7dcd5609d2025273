"""Nll of consecutive segments, with memory carried from one to the next.

Shapes: B batch, E context, T segment, G segments per call.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement


def memory_shardings(model: base.LanguageModel, mesh: Mesh | None) -> Any:
  """Shardings that divide a memory's rows over a mesh; None without a mesh."""
  if mesh is None:
    return None
  return jax.tree.map(lambda i: placement.by_rows(mesh, i), model.row_axes())


# Segments are joined up to this many tokens; larger calls are hardly faster.
_JOINED = 512


def _joined(model, G, B, T):
  """Number of segments joined into one call of the model, a divisor of G."""
  if model.joint_segment_len() != T:
    return 1
  fits = [n for n in range(1, G + 1) if n * B * T <= _JOINED and G % n == 0]
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
  """Returns the memory after G segments, and their nll float32 [G, B, T].

  The memory has B rows; inputs are int32 [G, B, E + T], targets [G, B, T]; a
  target of -1 is not scored. The memory of a row is reset before each segment
  that `begins`, bool [G, B], marks. `context`, int32 [G, B], is the number of
  context tokens of a row, which are not scored (see `models.base`); None if
  E = 0. The variables come from `base.freeze` and are on the mesh.
  """
  G, B, T = targets.shape
  n = 1 if begins is not None else _joined(model, G, B, T)

  def join(x):  # [G, B, T] -> [G / n, B, n T]
    parts = x.reshape(-1, n, B, x.shape[-1])
    return jnp.swapaxes(parts, 1, 2).reshape(-1, B, n * x.shape[-1])

  def body(memory, segments):
    *segments, begin, before = segments
    if begin is not None:
      memory = model.reset_memory(memory, begin)
    # Padding follows the last scored token of a document or row, so padding in
    # the memory is never seen. Models without memory need the lengths, because
    # positions may count from the end of a row.
    ends = jnp.where(segments[1] >= 0, jnp.arange(1, n * T + 1)[None], 0)
    lengths = None if model.remembers() else jnp.max(ends, axis=1)
    context: dict[str, Any] = {}
    if before is not None:
      lengths, context = before + lengths, {'context': before}
    out: Any = model.apply(
      variables, *segments, memory, train=False, lengths=lengths, **context
    )
    return out.memory, out.nll

  with mesh_lib.ambient(mesh):
    segments = join(inputs), join(targets), begins, context
    memory, nll = jax.lax.scan(body, memory, segments)
  nll = jnp.swapaxes(nll.reshape(-1, B, n, T), 1, 2).reshape(G, B, T)
  if shardings := memory_shardings(model, mesh):
    # A sharding unlike the argument's would make the next call recompile.
    memory = jax.lax.with_sharding_constraint(memory, shardings)
  return memory, nll


# Compiled once per model and shapes: Linen modules with equal fields are equal,
# and hash alike.
jit_score = jax.jit(
  score, static_argnames=('model', 'mesh'), donate_argnames='memory'
)
