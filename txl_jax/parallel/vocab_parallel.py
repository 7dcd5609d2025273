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


def nll(
  h: jax.Array,
  targets: jax.Array,
  output: softmax.Output,
  tables: Sequence[jax.Array] | None = None,
  **options: Any,
) -> jax.Array:
  """See `softmax.nll`; the options are its tail_order and dtype.

  Tied weights are best taken from the `tables` that `embed` returned.
  """

  def run(h, targets, output, tables, **bins):
    if tables:
      weights = [t.reshape(t.shape[-2:]) for t in tables]
      output = output._replace(weights=weights)
    return softmax.nll(h, targets, output, **options, **bins)

  vocab_specs = _vocab_specs(output.weights), _vocab_specs(output.biases)
  specs = softmax.Output(*vocab_specs, P(), P(), P())
  own = _own_specs(output.weights) if tables else None
  tokens, rest = (h, targets), (output, tables)
  return _call(run, output.weights, tokens, rest, (specs, own))


def embed(
  tokens: jax.Array, tables: Sequence, projections: Sequence, dtype: Any
) -> tuple[jax.Array, Sequence[jax.Array]]:
  """See `softmax.embed`; on a mesh, the tables have another axis in front.

  Along it lies what each device has of a table, so that its gradients are
  summed over devices once, those of the softmax and of the embeddings together.
  """

  def run(*args, **bins):
    x, tables = softmax.embed(*args, dtype, **bins)
    return x, [t[None] for t in tables] if bins else tables

  specs, own = (_vocab_specs(tables), P()), _own_specs(tables)
  rest = tables, projections
  return _call(run, tables, (tokens,), rest, specs, own)


def _call(run, weights, tokens, rest, specs, others=None):
  """Calls run(*tokens, *rest) on each device; `specs` partition `rest`.

  The result is partitioned as the tokens; a second one, if any, by `others`.
  """
  mesh = mesh_lib.own()
  if mesh.size <= 1:  # 0 if there is none
    return run(*tokens, *rest)
  spec = placement.spec((placement.ROWS,), tokens[0].shape, mesh)
  pairs = zip(weights, map(_axes, _vocab_specs(weights)))
  bins = [_Sharded(len(w), axes, _axes(spec)) for w, axes in pairs]
  run = functools.partial(run, bins=bins)
  specs = (*[spec] * len(tokens), *specs)
  out: Any = (spec, others) if others else spec
  sharded = jax.shard_map(run, in_specs=specs, out_specs=out, check_vma=False)
  return sharded(*tokens, *rest)


def _own_specs(tables):
  """PartitionSpecs of tables [V_i, ...] with an axis in front, see `embed`."""
  names = mesh_lib.own().axis_names

  def own(words):
    return P(tuple(a for a in names if a not in _axes(words)), *words)

  return [own(spec) for spec in _vocab_specs(tables)]


def _vocab_specs(arrays):
  """PartitionSpecs of a pytree of arrays [V_i, ...], one for each bin."""
  mesh = mesh_lib.own()
  axes = () if mesh.empty else placement.VOCABULARY
  return jax.tree.map(lambda x: placement.spec((axes,), x.shape, mesh), arrays)


def _axes(spec):
  """The mesh axes of a spec's first dimension."""
  first = spec[0] if spec else ()
  return (first,) if isinstance(first, str) else first


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
    here = in_bin & (at >= 0) & (at < len(table))
    x, table = super().look_up(table, at, here)
    for axis in self._axes:
      if axis in self._gathered:
        x = jax.lax.psum_scatter(x, axis, tiled=True)
      else:
        x = jax.lax.psum(x, axis)
    return x, table
