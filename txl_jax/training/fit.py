"""How much memory training needs on one device, for any mesh and hardware.

Neither has to be there: the step is traced as it would be on a device, and
`footprint` counts, which says what `memory_analysis` lacks. The figures lie
within 15 % of what XLA reserves (tests/training/fit_test.py); `python -m
benchmarks hlo` compiles the step and gives XLA's own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice

from txl_jax import target
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.training import footprint
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib
from txl_jax.training.options import Config

_FEW = 2, 4  # numbers of layers, from which more are extrapolated


class Needs(NamedTuple):
  """Bytes on one device."""

  state: float  # parameters, optimiser, average, memory
  step: float  # what a step needs in addition

  @property
  def total(self) -> float:
    """The sum of both."""
    return self.state + self.step


def needs(config: Config, vocab_size: int, device: target.Device) -> Needs:
  """What each device of the config's mesh needs; a size of -1 counts as 1.

  UserError if the batch cannot be divided over the mesh.
  """
  mesh = mesh_lib.abstract_mesh(config.mesh)
  step_lib.check_rows(config, mesh_lib.row_parts(mesh))
  built = step_lib.build(config, vocab_size, None)
  placed = state_lib.shardings(built.abstract, mesh, built.model)
  state = mesh_lib.bytes_per_device(built.abstract, placed)
  local: Any = _local(config, mesh)
  layers = local.model.get('n_layer', 0)
  # With losses in middle layers, the layers are not all alike.
  if layers <= _FEW[1] or local.model.name == 'al_rfou':
    return Needs(state, _step(local, vocab_size, device, mesh))
  few, more = (_with_layers(local, n) for n in _FEW)
  least = _step(few, vocab_size, device, mesh)
  each = (_step(more, vocab_size, device, mesh) - least) / (_FEW[1] - _FEW[0])
  return Needs(state, least + each * (layers - _FEW[0]))


def _local(config, mesh):
  """The config of one device's share: its rows, heads and features."""
  local: Any = config.copy_and_resolve_references()
  local.train.batch_size //= mesh_lib.row_parts(mesh)
  local.train.steps_per_dispatch = 1
  for name in 'n_head', 'd_ff':
    parts = mesh.shape['tensor']
    if name in local.model and not local.model[name] % parts:
      local.model[name] //= parts
  return local


def _with_layers(config, n):
  """A config with n layers; loops are unrolled as far as before."""
  other = config.copy_and_resolve_references()
  other.model.n_layer = n
  return other


def _step(config, vocab_size, device, mesh):
  """Bytes in addition to the state; gradients are divided like parameters."""
  kind = AbstractDevice(device.kind, None, device.platform)
  here: Any = mesh_lib.abstract_mesh({}, kind)
  with jax.sharding.use_abstract_mesh(here):
    built = step_lib.build(config, vocab_size, here)
    B, T = config.train.batch_size, config.train.segment_len
    tokens = jax.ShapeDtypeStruct([B, T], jnp.int32)
    reset = jax.ShapeDtypeStruct([B], jnp.bool_)
    batch = dict(inputs=tokens, targets=tokens, lengths=None, reset=reset)
    jaxpr = jax.make_jaxpr(built.step)(built.abstract, batch).jaxpr
  whole = footprint.peak(jaxpr, results=False)
  params = built.abstract.params
  placed = mesh_lib.by_rules(params, mesh, built.model.SHARDING)
  gradients = mesh_lib.bytes_per_device(params, placed)
  sums = 1 if config.train.accumulate == 1 else 2
  divided = sums * (_nbytes(params) - gradients)
  return max(whole - divided, gradients)


def _nbytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
