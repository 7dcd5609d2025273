"""Embedding and softmax over a vocabulary that many devices share.

The functions of `ops.softmax`, run by each device of the ambient mesh on its
own tokens and its own words (`jax.shard_map`): the compiler alone would bring
all tokens to all devices for the tails, whose number of chunks it does not
know. No device ever holds the words of another. Without a mesh, or on one
device, they are those functions.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from txl_jax.ops import softmax
from txl_jax.parallel import mesh as mesh_lib


def nll(
  h: jax.Array,
  targets: jax.Array,
  output: softmax.Output,
  *,
  tail_order: str = 'ascending',
  dtype: Any = None,
) -> jax.Array:
  """See `softmax.nll`."""

  def local(bins, h, targets, output):
    return softmax.nll(
      h, targets, output, tail_order=tail_order, dtype=dtype, bins=bins
    )

  mesh = _mesh()
  if mesh is None:
    return local(None, h, targets, output)
  tokens, axes = _layout(mesh, len(targets), output.weights)
  specs = softmax.Output(
    _words(axes, output.weights),
    _words(axes, output.biases),
    _everywhere(output.projections),
    PartitionSpec(),
    PartitionSpec(),
  )
  return jax.shard_map(
    lambda *parts: local(_bins(output.weights, axes, tokens), *parts),
    in_specs=(tokens, tokens, specs),
    out_specs=tokens,
    check_vma=False,
  )(h, targets, output)


def embed(
  tokens: jax.Array,
  tables: Sequence[jax.Array],
  projections: Sequence[jax.Array],
  dtype: Any,
) -> jax.Array:
  """See `softmax.embed`."""
  mesh = _mesh()
  if mesh is None:
    return softmax.embed(tokens, tables, projections, dtype)
  spec, axes = _layout(mesh, len(tokens), tables)
  return jax.shard_map(
    lambda tokens, parts, projections: softmax.embed(
      tokens, parts, projections, dtype, _bins(tables, axes, spec)
    ),
    in_specs=(spec, _words(axes, tables), _everywhere(projections)),
    out_specs=spec,
    check_vma=False,
  )(tokens, tables, projections)


class _Shared(softmax.Bin):
  """A bin of which this device, under shard_map, has some of the words.

  Attributes:
    start: the first word here, counted within the bin.
  """

  def __init__(self, words, axes, token_axes):
    super().__init__(words)
    self._axes = axes
    here = words // jax.lax.axis_size(axes) if axes else words
    self.start = jax.lax.axis_index(axes) * here if axes else 0
    # Devices that have different words and different tokens show each other
    # the tokens, never the words.
    self._shown = tuple(a for a in axes if a in token_axes)

  def _show(self, *arrays):
    """[N, ...] of this device -> those of all that share words with it."""
    if not self._shown:
      return arrays
    return [jax.lax.all_gather(x, self._shown, tiled=True) for x in arrays]

  def normaliser(self, f, h, ids, rows):
    """See `softmax.Bin`."""
    n = len(ids)
    h, ids, rows = self._show(h, ids, rows)
    total, chosen = f(h, ids - self.start, rows)
    if self._axes:
      top = jax.lax.pmax(jax.lax.stop_gradient(total), self._axes)
      total = jax.lax.psum(jnp.exp(total - top), self._axes)
      total, chosen = top + jnp.log(total), jax.lax.psum(chosen, self._axes)
    if self._shown:
      at = jax.lax.axis_index(self._shown) * n
      total, chosen = (
        jax.lax.dynamic_slice_in_dim(x, at, n) for x in (total, chosen)
      )
    return total, chosen

  def look_up(self, table, ids, inside):
    """See `softmax.Bin`."""
    ids, inside = self._show(ids, inside)
    at = ids - self.start
    x = super().look_up(table, at, inside & (at >= 0) & (at < len(table)))
    for axis in self._axes:
      if axis in self._shown:
        x = jax.lax.psum_scatter(x, axis, tiled=True)
      else:
        x = jax.lax.psum(x, axis)
    return x


def _mesh():
  """The ambient mesh, or None where there is nothing to share."""
  mesh = jax.sharding.get_abstract_mesh()
  return None if mesh.empty or mesh.size == 1 else mesh


def _layout(mesh, n, weights):
  """The spec of n tokens, and the axes over which each bin is divided."""
  spec = mesh_lib.fit((mesh_lib.ROWS,), (n,), mesh)
  words = (mesh_lib.fit((mesh_lib.VOCABULARY,), w.shape, mesh) for w in weights)
  return spec, [_axes(x) for x in words]


def _bins(weights, axes, tokens):
  """The bins of whole weights as one device has them, under shard_map."""
  return [_Shared(len(w), a, _axes(tokens)) for w, a in zip(weights, axes)]


def _axes(spec):
  """The axes of the first dimension."""
  first = spec[0] if spec else ()
  return (first,) if isinstance(first, str) else first


def _words(axes, weights):
  """The specs of what has one array for each bin, words first."""
  specs = [PartitionSpec(*([a] if a else [])) for a in axes]
  return jax.tree.unflatten(jax.tree.structure(weights), specs)


def _everywhere(projections):
  return jax.tree.map(lambda _: PartitionSpec(), projections)
