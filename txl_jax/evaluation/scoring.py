"""Nll of segments, memory carried from one to the next.

Shapes: B batch, T segment, G segments in a call.
"""

from typing import Any

import jax
from jax.sharding import Mesh

from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib


def score(
  params: Any,
  memory: Any,
  inputs: jax.Array,
  targets: jax.Array,
  *,
  model: base.LanguageModel,
  mesh: Mesh | None = None,
) -> tuple[Any, jax.Array]:
  """Nll of G consecutive segments.

  Args:
    params: of the model.
    memory: of the model, for B rows.
    inputs: int32 [G, B, T].
    targets: int32 [G, B, T], -1 is not scored.
    model: see `models.base`.
    mesh: that the parameters are on, from `mesh.make_mesh`.

  Returns:
    The memory after them, and nll float32 [G, B, T].
  """

  def body(memory, segment):
    out: Any = model.apply({'params': params}, *segment, memory, train=False)
    return out.memory, out.nll

  with mesh_lib.ambient(mesh):
    memory, nll = jax.lax.scan(body, memory, (inputs, targets))
  if mesh is not None:
    # Where it came from, or the next call would be compiled anew.
    memory = jax.tree.map(
      lambda axis, x: jax.lax.with_sharding_constraint(
        x, mesh_lib.rows(mesh, axis)
      ),
      model.row_axes(),
      memory,
    )
  return memory, nll


# One compilation per model (Linen modules with equal fields are equal) and
# shapes, however often the model is evaluated.
jit_score = jax.jit(
  score, static_argnames=('model', 'mesh'), donate_argnames='memory'
)
