"""How much memory training needs on one device, for any mesh and hardware.

Neither has to be there: the loss is traced as it would be on a device. Counted
are the arrays of the state, what `jax.vjp` keeps for the backward pass, the
gradients and the largest product. For configs compiled for an H100
(docs/scaling.md) the figures are within 20 %.

`memory_analysis` needs the compiler of the device: of the step of enwik8_24l a
CPU's said 158 GB, after 94 s on two busy cores; an H100 needs some 97 GB.
"""

from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractDevice

from txl_jax import models
from txl_jax.models import base
from txl_jax.parallel import capacity
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import target_device
from txl_jax.training import cost
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib
from txl_jax.training.options import Config


def needs(
  config: Config, vocab_size: int, device: target_device.Device
) -> float:
  """Bytes on each device of the config's mesh; a size of -1 counts as 1.

  UserError if the batch cannot be divided over the mesh.
  """
  mesh, train = mesh_lib.abstract_mesh(config.mesh), config.train
  step_lib.check_rows(config, mesh_lib.row_parts(mesh))
  built = step_lib.build(config, vocab_size, None)
  placed = state_lib.shardings(built.abstract, mesh, built.model)
  held = mesh_lib.with_shardings(built.abstract, placed)
  state, gradients = map(capacity.on_a_device, (held, held.params))
  sums = 1 if train.accumulate == 1 else 2
  kind = AbstractDevice(device.kind, None, device.platform)
  with jax.sharding.use_abstract_mesh(mesh_lib.abstract_mesh({}, kind)):
    model = models.build(_local(config.model, mesh), vocab_size)
    rows = train.batch_size // mesh_lib.row_parts(mesh) // train.accumulate
    kept = _kept(model, rows, train.segment_len)
  return state + kept + sums * gradients


def _local(model, mesh):
  """The section `model` with one device's share of heads and features."""
  local: Any = model.copy_and_resolve_references()
  for name in 'n_head', 'd_ff':
    parts = mesh.shape['tensor']
    if name in local and not local[name] % parts:
      local[name] //= parts
  return local


def _kept(model: base.LanguageModel, B: int, T: int) -> int:
  """Bytes kept for the backward pass of B rows, and of the largest product."""
  loss, arguments = cost.loss(model, B, T)

  def backward(params, *others):
    return jax.vjp(lambda p: loss(p, *others), params)[1]

  jaxpr = jax.make_jaxpr(backward)(*arguments).jaxpr
  made = {x for x in jaxpr.outvars if not isinstance(x, core.Literal)}
  made -= {*jaxpr.invars, *jaxpr.constvars}
  return cost.nbytes([x.aval for x in made]) + capacity.largest_product(jaxpr)
