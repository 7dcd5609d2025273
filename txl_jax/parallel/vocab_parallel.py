"""Embedding and softmax over a vocabulary that many devices share.

The functions of `softmax`, run by each device of the ambient mesh on its own
tokens and its own words (`jax.shard_map`): the compiler alone would bring all
tokens to all devices for the tails, whose number of chunks it does not know.
Without a mesh, or on one device, they are those functions.
"""

import jax
from jax.sharding import PartitionSpec

from txl_jax.ops import softmax
from txl_jax.parallel import mesh as mesh_lib


def nll(h, targets, output, *, tail_order='ascending', dtype=None):
  """See `softmax.nll`."""
  mesh = _mesh()
  if mesh is None:
    return softmax.nll(h, targets, output, tail_order=tail_order, dtype=dtype)
  layout, tokens = _layout(mesh, len(targets), output.weights)
  specs = softmax.Output(
    _words(layout, output.weights),
    _words(layout, output.biases),
    _everywhere(output.projections),
    PartitionSpec(),
    PartitionSpec(),
  )
  return jax.shard_map(
    lambda h, targets, output: softmax.nll(
      h, targets, output, tail_order=tail_order, dtype=dtype, layout=layout
    ),
    in_specs=(tokens, tokens, specs),
    out_specs=tokens,
    check_vma=False,
  )(h, targets, output)


def embed(tokens, tables, projections, dtype):
  """See `softmax.embed`."""
  mesh = _mesh()
  if mesh is None:
    return softmax.embed(tokens, tables, projections, dtype)
  layout, spec = _layout(mesh, len(tokens), tables)
  return jax.shard_map(
    lambda tokens, tables, projections: softmax.embed(
      tokens, tables, projections, dtype, layout
    ),
    in_specs=(spec, _words(layout, tables), _everywhere(projections)),
    out_specs=spec,
    check_vma=False,
  )(tokens, tables, projections)


def _mesh():
  """The ambient mesh, or None where there is nothing to share."""
  mesh = jax.sharding.get_abstract_mesh()
  return None if mesh.empty or mesh.size == 1 else mesh


def _layout(mesh, n, weights):
  """The Layout of n tokens and of bins, and the spec of the tokens."""
  spec = mesh_lib.fit((mesh_lib.ROWS,), (n,), mesh)
  words = (mesh_lib.fit((mesh_lib.VOCABULARY,), w.shape, mesh) for w in weights)
  return softmax.Layout(_axes(spec), tuple(map(_axes, words))), spec


def _axes(spec):
  """The axes of the first dimension."""
  first = spec[0] if spec else ()
  return (first,) if isinstance(first, str) else first


def _words(layout, weights):
  """The specs of what has one array for each bin, words first."""
  specs = [PartitionSpec(*([axes] if axes else [])) for axes in layout.bins]
  return jax.tree.unflatten(jax.tree.structure(weights), specs)


def _everywhere(projections):
  return jax.tree.map(lambda _: PartitionSpec(), projections)
