import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from txl_jax import models
from txl_jax.configs import common
from txl_jax.training import cost

V = 50


def small(**changes):
  c = common.get_config()
  c.model.update(
    n_layer=3, d_model=32, n_head=2, d_head=8, d_ff=48, mem_len=24, **changes
  )
  c.train.update(batch_size=4, segment_len=16)
  return c


def count(f, *arguments):
  return cost.flops(jax.make_jaxpr(f)(*arguments).jaxpr)


def test_flops_of_products_and_scans():
  a, b = jnp.ones([3, 4]), jnp.ones([4, 5])
  assert count(jnp.dot, a, b) == 2 * 3 * 4 * 5
  batched = lambda x, y: jnp.einsum('bij,bjk->bik', x, y)
  assert count(batched, jnp.ones([7, 3, 4]), jnp.ones([7, 4, 5])) == 840
  body = lambda x, _: (jax.jit(jnp.tanh)(x @ (b @ b.T)), None)
  once = 2 * 4 * 5 * 4 + 2 * 3 * 4 * 4
  loop = lambda x: jax.lax.scan(body, x, length=6)[0]
  assert count(loop, a) == 6 * once
  twice = lambda x: jax.lax.scan(lambda y, _: (loop(y), None), x, length=2)[0]
  assert count(twice, a) == 12 * once
  assert count(jnp.sin, a) == 0
  either = lambda x: jax.lax.cond(x.any(), lambda: x @ b, lambda: x @ (3 * b))
  assert count(either, a) == count(jnp.dot, a, b)  # one of them runs


def test_flops_of_a_kernel():
  """Of every step of its grid."""

  def product(x, y, out):
    out[...] = jnp.dot(x[...], y[...])

  rows = pl.BlockSpec((8, 16), lambda i, j: (2 * i + j, 0))
  kernel = pl.pallas_call(
    product,
    grid=(3, 2),
    in_specs=[rows, pl.BlockSpec((16, 16), lambda i, j: (0, 0))],
    out_specs=rows,
    out_shape=jax.ShapeDtypeStruct((48, 16), jnp.float32),
    interpret=True,
  )
  x, y = jnp.ones([48, 16]), jnp.ones([16, 16])
  assert count(kernel, x, y) == count(jnp.dot, x, y)


def test_flops_of_a_convolution():
  x, kernel = jnp.ones([2, 9, 3]), jnp.ones([4, 3, 5])  # [B, T, C], [k, C, D]

  def convolve(x, kernel, groups=1):
    return jax.lax.conv_general_dilated(
      x,
      kernel,
      window_strides=[1],
      padding=[(3, 0)],
      dimension_numbers=('NTC', 'TIO', 'NTC'),
      feature_group_count=groups,
    )

  assert count(convolve, x, kernel) == 2 * (2 * 9 * 5) * (4 * 3)
  depthwise = functools.partial(convolve, groups=3)
  assert count(depthwise, x, jnp.ones([4, 1, 6])) == 2 * (2 * 9 * 6) * 4


def multiplications(config):
  """Of the matrix products of one segment of all rows, forward."""
  m, B, T = config.model, config.train.batch_size, config.train.segment_len
  D, H, K, F, S = m.d_model, m.n_head, m.d_head, m.d_ff, m.mem_len + T
  queries_and_output = 2 * B * T * D * H * K
  keys_and_values = 2 * B * S * D * H * K
  positions = S * D * H * K  # the same for all rows
  attention = 3 * B * H * T * S * K  # content, position, values
  layer = queries_and_output + keys_and_values + positions + attention
  return m.n_layer * (layer + 2 * B * T * D * F) + B * T * D * V


@pytest.mark.thorough
def test_flops_of_a_model():
  c = small()
  forward, backward = cost.of_rows(models.build(c.model, V), 4, 16)
  column = 3 * 4 * 2 * 16 * 8  # N B H T K, of `kernels.cpu`
  assert forward == 2 * (multiplications(c) + column)
  of_memory = 2 * 3 * 2 * 4 * 24 * 32 * 2 * 8  # N layers, k and v: B M D H K
  assert backward == 2 * forward - of_memory
  # What a layer computes again is no work of the model.
  c.model.remat = 'layer'
  again = cost.of_rows(models.build(c.model, V), 4, 16)
  assert again.backward > 1.2 * backward
  assert cost.flops_per_token(c, V) == (forward + backward) / 64


def test_flops_of_a_token(monkeypatch):
  """Of those that are scored; rows of context count in what they cost."""
  asked = []
  of_rows = lambda model, *sizes: asked.append(sizes) or cost.Cost(1000, 2000)
  monkeypatch.setattr(cost, 'of_rows', of_rows)
  c = small()
  c.train.update(batch_size=12, accumulate=3, segment_len=15, context=7)
  assert cost.flops_per_token(c, V) == 3000 / (4 * 15)
  c.train.loss = 'half'
  assert cost.flops_per_token(c, V) == 3000 / (4 * 8)
  assert asked == [(4, 15, 7)] * 2


def test_context_costs_all_but_its_words():
  c = small()
  c.model.mem_len = 0
  model = models.build(c.model, V)
  expected = cost.of_rows(model, 4, 20).forward - 2 * 4 * 6 * 32 * V
  assert cost.of_rows(model, 4, 14, 6).forward == expected


@pytest.mark.thorough
def test_tails_are_counted_for_one_chunk():
  c = small()
  plain = cost.of_rows(models.build(c.model, V), 4, 16).forward
  c.model.cutoffs = (5, 9)
  # 64 tokens in chunks of 4; a logit of the head for each of the two tails.
  words = 64 * (5 + 2) + 4 * (V - 5)
  found = cost.of_rows(models.build(c.model, V), 4, 16).forward
  assert found == plain - 2 * 32 * (64 * V - words)
