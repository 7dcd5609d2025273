"""Embedding and softmax over a vocabulary that many devices share.

The functions of `ops.softmax`, run by each device of our own mesh on its
own tokens and its own words (`jax.shard_map`): the compiler alone would bring
all tokens to all devices for the tails, whose number of chunks it does not
know. No device ever holds the words of another. Without it, or on one
device, they are those functions.
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
  h: jax.Array, targets: jax.Array, output: softmax.Output, **options: Any
) -> jax.Array:
  """See `softmax.nll`; the options are its tail_order and dtype."""
  run = functools.partial(softmax.nll, **options)
  words = _words(output.weights), _words(output.biases)
  specs = softmax.Output(*words, P(), P(), P())
  return _call(run, output.weights, (h, targets), (output,), (specs,))


def embed(
  tokens: jax.Array, tables: Sequence, projections: Sequence, dtype: Any
) -> jax.Array:
  """See `softmax.embed`."""
  run = functools.partial(softmax.embed, dtype=dtype)
  specs = _words(tables), P()
  return _call(run, tables, (tokens,), (tables, projections), specs)


def _call(run, weights, tokens, rest, specs):
  """Runs a function of tokens and the rest, with its specs, on each device."""
  mesh = mesh_lib.own()
  if mesh.empty or mesh.size == 1:
    return run(*tokens, *rest)
  spec = placement.fit((placement.ROWS,), tokens[0].shape, mesh)
  places = zip(weights, _words(weights))
  bins = [_Shared(len(w), _axes(words), _axes(spec)) for w, words in places]
  run = functools.partial(run, bins=bins)
  specs = (*[spec] * len(tokens), *specs)
  shared = jax.shard_map(run, in_specs=specs, out_specs=spec, check_vma=False)
  return shared(*tokens, *rest)


def _words(arrays):
  """The specs of what has one array for each bin, words first."""
  mesh = mesh_lib.own()
  axes = () if mesh.empty else placement.VOCABULARY
  return jax.tree.map(lambda x: placement.fit((axes,), x.shape, mesh), arrays)


def _axes(spec):
  """The axes of the first dimension."""
  first = spec[0] if spec else ()
  return (first,) if isinstance(first, str) else first


class _Shared(softmax.Bin):
  """A bin of which this device, under shard_map, has some of the words."""

  def __init__(self, words, axes, token_axes):
    super().__init__(words)
    self._axes = axes  # over which the words are divided
    # Devices that have different words and different tokens show each other
    # the tokens, never the words.
    self._shown = tuple(a for a in axes if a in token_axes)

  def _show(self, ids, *arrays):
    """[N, …] of those who share words, the ids from the first word here."""
    if self._shown:
      gather = functools.partial(jax.lax.all_gather, tiled=True)
      ids, *arrays = (gather(x, self._shown) for x in (ids, *arrays))
    if self._axes:
      here = self.words // jax.lax.axis_size(self._axes)
      ids -= jax.lax.axis_index(self._axes) * here
    return ids, *arrays

  def normaliser(self, f, h, ids, rows):
    """See `softmax.Bin`."""
    n = len(ids)
    ids, h, rows = self._show(ids, h, rows)
    total, chosen = f(h, ids, rows)
    if self._axes:
      top = jax.lax.pmax(jax.lax.stop_gradient(total), self._axes)
      total = jax.lax.psum(jnp.exp(total - top), self._axes)
      total, chosen = top + jnp.log(total), jax.lax.psum(chosen, self._axes)
    if self._shown:
      here = jax.lax.axis_index(self._shown) * n, n
      total = jax.lax.dynamic_slice_in_dim(total, *here)
      chosen = jax.lax.dynamic_slice_in_dim(chosen, *here)
    return total, chosen

  def look_up(self, table, ids, inside):
    """See `softmax.Bin`."""
    at, inside = self._show(ids, inside)
    x = super().look_up(table, at, inside & (at >= 0) & (at < len(table)))
    for axis in self._axes:
      if axis in self._shown:
        x = jax.lax.psum_scatter(x, axis, tiled=True)
      else:
        x = jax.lax.psum(x, axis)
    return x
