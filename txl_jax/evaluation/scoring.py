"""Nll of segments, memory carried from one to the next.

Shapes: B batch, T segment, G segments in a call.
"""

import jax

from txl_jax.parallel import mesh as mesh_lib


def score(params, memory, inputs, targets, lengths, *, model, mesh=None):
  """Nll of G consecutive segments, memory carried from one to the next.

  Args:
    params: of the model.
    memory: of the model, for B rows.
    inputs: int32 [G, B, T].
    targets: int32 [G, B, T], -1 is not scored.
    lengths: int32 [G, B], or None; see `models.base`.
    model: see `models.base`.
    mesh: that the parameters are on, from `mesh.make_mesh`.

  Returns:
    The memory after them, and nll float32 [G, B, T].
  """

  def body(memory, segment):
    inputs, targets, lengths = segment
    out = model.apply(
      {'params': params},
      inputs,
      targets,
      memory,
      train=False,
      lengths=lengths,
    )
    return out.memory, out.nll

  with mesh_lib.ambient(mesh):
    return jax.lax.scan(body, memory, (inputs, targets, lengths))


# One compilation per model (Linen modules with equal fields are equal) and
# shapes, however often the model is evaluated.
jit_score = jax.jit(
  score, static_argnames=('model', 'mesh'), donate_argnames='memory'
)
