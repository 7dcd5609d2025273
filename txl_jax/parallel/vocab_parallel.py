"""Embedding and softmax with the vocabulary sharded over devices.

With `jax.shard_map`, each device of our mesh runs the functions of
`ops.softmax` on its tokens and its shard of the words. If the compiler
partitioned the tails, their dynamic number of chunks would force all tokens
onto all devices. Weights of words are never gathered. Without a mesh, or on one
device, these functions equal those of `ops.softmax`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from txl_jax.ops import softmax
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement


def per_device(tables: Sequence[jax.Array]) -> Sequence[jax.Array]:
  """Tables [V_i, d_i] as `nll` and `embed` take them.

  On a mesh they are [n, V_i, d_i], what each device has of them, so that the
  gradients of several calls are added before they are summed over devices.
  There XLA adds those of an embedding in place.
  """
  mesh = mesh_lib.own()
  if mesh.size <= 1:  # 0 if there is none
    return tables
  run = jax.shard_map(
    lambda tables: [table[None] for table in tables],
    in_specs=(_vocab_specs(tables),),
    out_specs=[_own_spec(table.shape, mesh) for table in tables],
    check_vma=False,
  )
  return run(list(tables))


def nll(
  h: jax.Array, targets: jax.Array, output: softmax.Output, **options: Any
) -> jax.Array:
  """See `softmax.nll`; the options are its tail_order and dtype.

  The weights of the output are those of `per_device`.
  """

  def run(h, targets, weights, output, **bins):
    output = output._replace(weights=weights)
    return softmax.nll(h, targets, output, **options, **bins)

  rest = output._replace(weights=None)
  specs = softmax.Output(None, _vocab_specs(output.biases), P(), P(), P())
  return _call(run, (h, targets), output.weights, rest, specs)


def embed(
  tokens: jax.Array, tables: Sequence, projections: Sequence, dtype: Any
) -> jax.Array:
  """See `softmax.embed`; the tables are those of `per_device`."""
  run = functools.partial(softmax.embed, dtype=dtype)
  return _call(run, (tokens,), tables, projections, P())


def _call(run, tokens, weights, rest, specs):
  """Calls run(*tokens, weights, rest) on each device; `specs` partition rest.

  The weights are those of `per_device`.
  """
  mesh = mesh_lib.own()
  if mesh.size <= 1:
    return run(*tokens, weights, rest)
  spec = placement.spec((placement.ROWS,), tokens[0].shape, mesh)
  own = [_own_spec(w.shape[1:], mesh) for w in weights]
  bins = [
    _Sharded(w.shape[1], _axes(words[1:]), _axes(spec))
    for w, words in zip(weights, own)
  ]

  def on_device(tokens, weights, rest):
    return run(*tokens, [w[0] for w in weights], rest, bins=bins)

  sharded = jax.shard_map(
    on_device, in_specs=(spec, own, specs), out_specs=spec, check_vma=False
  )
  return sharded(tokens, list(weights), rest)


def _vocab_specs(arrays):
  """PartitionSpecs of a pytree of arrays [V_i, ...], one for each bin."""
  mesh = mesh_lib.own()
  axes = () if mesh.empty else placement.VOCABULARY
  return jax.tree.map(lambda x: placement.spec((axes,), x.shape, mesh), arrays)


def _own_spec(shape, mesh):
  """The PartitionSpec of [n, V_i, d_i], see `per_device`, given [V_i, d_i]."""
  words = placement.spec((placement.VOCABULARY,), shape, mesh)
  others = [axis for axis in mesh.axis_names if axis not in _axes(words)]
  return P(tuple(others), *words)


def _axes(spec):
  """The mesh axes of a spec's first dimension."""
  first = spec[0] if spec else ()
  return (first,) if isinstance(first, str) else first or ()


class _Sharded(softmax.Bin):
  """A bin whose words are sharded, under shard_map."""

  def __init__(self, words, axes, token_axes):
    super().__init__(words)
    self._axes = axes  # mesh axes of the words
    # Tokens, never words, are gathered over the axes that shard both.
    self._gathered = tuple(a for a in axes if a in token_axes)

  def _gather(self, ids, *arrays):
    """Gathers tokens [N, …]; makes ids relative to this device's first word."""
    if self._gathered:
      gather = functools.partial(jax.lax.all_gather, tiled=True)
      ids, *arrays = (gather(x, self._gathered) for x in (ids, *arrays))
    if self._axes:
      local = self.words // jax.lax.axis_size(self._axes)
      ids -= jax.lax.axis_index(self._axes) * local
    return ids, *arrays

  def normaliser(self, f, h, ids, in_bin):
    """See `softmax.Bin`."""
    n = len(ids)
    ids, h, in_bin = self._gather(ids, h, in_bin)
    total, chosen = f(h, ids, in_bin)
    if self._axes:
      top = jax.lax.pmax(jax.lax.stop_gradient(total), self._axes)
      total = jax.lax.psum(jnp.exp(total - top), self._axes)
      total = top + jnp.log(total)
      chosen = jax.lax.psum(chosen, self._axes)
    if self._gathered:
      local = jax.lax.axis_index(self._gathered) * n, n
      total = jax.lax.dynamic_slice_in_dim(total, *local)
      chosen = jax.lax.dynamic_slice_in_dim(chosen, *local)
    return total, chosen

  def look_up(self, table, ids, in_bin):
    """See `softmax.Bin`."""
    at, in_bin = self._gather(ids, in_bin)
    x = super().look_up(table, at, in_bin & (at >= 0) & (at < len(table)))
    for axis in self._axes:
      if axis in self._gathered:
        x = jax.lax.psum_scatter(x, axis, tiled=True)
      else:
        x = jax.lax.psum(x, axis)
    return x
