"""Layers in a loop: recomputation that neither merges nor waits."""

import jax
import jax.numpy as jnp
import pytest

from txl_jax.ops import layer_loop


@pytest.mark.parametrize(
  'unroll, barriers', [(1, False), (2, False), (3, True), (4, True)]
)
def test_what_is_computed_again_has_a_barrier_where_it_could_be_merged(
  unroll, barriers
):
  def layer(h, given):
    (weights,) = given
    return jnp.tanh(h @ weights), h.sum()

  def loss(weights):
    h, _ = layer_loop.run(
      layer,
      jnp.ones((2, 3)),
      weights,
      (),
      unroll=unroll,
      remat=jax.checkpoint_policies.nothing_saveable,
      cast=lambda tree: tree,
    )
    return h.sum()

  text = jax.jit(jax.grad(loss)).lower([jnp.ones((3, 3))] * 4).as_text()
  assert ('optimization_barrier' in text) == barriers
