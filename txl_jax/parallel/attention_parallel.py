"""Relative attention with rows and heads sharded over devices.

The compiler partitions plain operations, but not a kernel: with `jax.shard_map`
each device of our mesh (`mesh.own`) runs it on its rows and heads. The dropout
mask is the same as on a single device.
"""

import functools
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from txl_jax.ops.kernels import api, base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import errors

_HEADS = 'tensor'


def attend(
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  implementation: str,
) -> jax.Array:
  """`kernels.relative_attention`; on a mesh, kernels run under shard_map.

  `implementation` is a value of model.attention; UserError if it does not
  support the arguments.
  """
  case = api.case_of(inputs.q, inputs.k, rate)
  choice = None if implementation == 'auto' else implementation
  try:
    name, attend = api.implementation_of(choice, case)
  except base.Unable as e:
    errors.refuse('model.attention', implementation, f'auto, xla; {e}')
  run = functools.partial(attend, span=span, rate=rate)
  mesh = mesh_lib.own()
  if mesh.empty or mesh.size == 1 or name == 'xla':
    return run(inputs, key=key)

  B, _, H, _ = inputs.q.shape
  axes = placement.ROWS, None, (_HEADS,)
  spec = placement.spec(axes, inputs.q.shape, mesh)
  rows, _, heads, *_ = (*spec, None, None, None)
  states, table, bias = P(rows, None, heads), P(None, heads), P(heads)
  specs = states, states, states, table, bias, bias, table, P(rows)
  pairs = zip(specs, inputs)  # None as an array needs None as a spec
  specs = [spec if x is not None else None for spec, x in pairs]
  in_specs: Any = base.Inputs(*specs)  # pyright: ignore[reportArgumentType]

  def on_shard(inputs, key):
    first_row = _first(rows, B)
    before = first_row * H + _first(heads, H)
    return run(inputs, key=key, before=before, heads=H)

  return jax.shard_map(
    on_shard, in_specs=(in_specs, P()), out_specs=states, check_vma=False
  )(inputs, key)


def _first(axes: Any, n: int) -> Any:
  """Index of this device's first row or head, of n sharded over `axes`."""
  if not axes:
    return 0
  return jax.lax.axis_index(axes) * (n // jax.lax.axis_size(axes))
