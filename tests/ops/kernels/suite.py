"""What every implementation of relative attention is held to.

A subclass names its module and what it supports; kernels for GPUs and TPUs are
interpreted on the CPU.
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import promotions
from tests.ops.kernels import reference
from txl_jax import attention
from txl_jax.ops.kernels import base, fused

NAMES = 'q', 'k', 'v', 'r', 'u', 'v_bias', 'b'
# B, T, H, K, M, filled, span
SHAPES = {
  'one query': (2, 1, 1, 64, 5, (5, 2), None),
  'no memory': (1, 9, 2, 64, 0, (0,), None),
  'empty memory': (2, 7, 1, 41, 6, (0, 6), None),
  'odd sizes': (1, 13, 2, 41, 10, (3,), 11),
  'more queries than memory': (1, 70, 1, 64, 3, (2,), None),
  'several tiles': (2, 130, 1, 128, 71, (40, 71), None),
  'a short span': (1, 67, 1, 64, 127, (20,), 30),
  'only itself': (1, 5, 1, 64, 4, (4,), 1),
}


def draw(shape, seed=0, size=1.0, b=False):
  """Inputs in float64, as a dict; b only where it is asked for."""
  B, T, H, K, M, filled, span = shape
  rng, S = np.random.default_rng(seed), M + T
  sizes = [(B, T, H, K), *[(B, S, H, K)] * 2, (S, H, K), (H, K), (H, K), (S, H)]
  found = {n: size * rng.normal(size=s) for n, s in zip(NAMES, sizes)}
  found['v'] /= size
  found['b'] = found['b'] if b else None
  dout = rng.normal(size=(B, T, H, K))
  return found, np.array(filled), S if span is None else span, dout


def cast(given, dtype):
  """The values of a dict of arrays in a dtype; None stays."""
  return [None if x is None else jnp.asarray(x, dtype) for x in given.values()]


def some(names, *slow):
  """Names as parameters of a test; other tests show the slow ones, too."""
  mark = lambda name: [pytest.mark.slow] * (name in slow)
  return [pytest.param(name, marks=mark(name)) for name in names]


class Suite:
  """Subclasses are tests; see above."""

  MODULE: ClassVar[Any]
  # Relative error of float32 results: what the products leave.
  float32_error = 2e-6

  def attend(self, arrays, filled, span, rate=0.0, key=None, **shard):
    """By the implementation, of arrays in the order of NAMES."""
    inputs = base.Inputs(*arrays, jnp.asarray(filled, jnp.int32))
    options = dict(span=span, rate=rate, key=key)
    if hasattr(self.MODULE, 'forward'):
      return fused.attend(self.MODULE, inputs, **options, **shard)
    return self.MODULE.attend(inputs, **options)

  def compiled(self, filled, span, **options):
    """The jitted (arrays, dout) -> the result and the gradients."""

    @jax.jit
    def run(arrays, dout):
      padded = [*arrays, *[None] * (len(NAMES) - len(arrays))]
      attend = lambda *a: self.attend(a, filled, span, **options)
      used = functools.partial(lambda *a: attend(*a, *padded[len(arrays) :]))
      out, pull = jax.vjp(used, *arrays)
      return out, pull(dout)

    return lambda arrays, dout: run([x for x in arrays if x is not None], dout)

  @pytest.fixture(scope='class')
  @classmethod
  def of(cls):
    """The program for the name of a shape, which several tests run."""

    @functools.cache
    def compiled(name):
      _, filled, span, _ = draw(SHAPES[name])
      return cls().compiled(filled, span)

    return compiled

  def check(
    self, given, filled, span, dout, dtype, error, *, run=None, **options
  ):
    """Against the reference, of the very numbers that `dtype` has."""
    arrays = cast(given, dtype)
    exact = [None if x is None else np.asarray(x, float) for x in arrays]
    dout = jnp.asarray(dout, dtype)
    more = dict(keep=options.pop('keep', None), rate=options.get('rate', 0.0))
    run = run or self.compiled(filled, span, **options)
    out, grads = run(arrays, dout)
    expected = reference.attend(*exact, filled, span, **more)
    assert out.dtype == dtype
    close(out, expected, error, 'out')
    wanted = reference.gradients(
      *exact, filled, span, np.asarray(dout, float), **more
    )
    # The gradient of every score is bounded by that of the largest gradient:
    # sums of many terms that cancel are compared with those terms.
    for name, grad, value in zip(NAMES, grads, wanted):
      close(grad, value, 4 * error, name)

  @pytest.mark.default_cases('empty memory', 'odd sizes', 'one query')
  @pytest.mark.parametrize('shape', some(SHAPES, 'more queries than memory'))
  def test_float32(self, shape, of):
    given, *rest = draw(SHAPES[shape], b=shape == 'odd sizes')
    error = self.float32_error
    self.check(given, *rest, jnp.float32, error, run=of(shape))

  @pytest.mark.parametrize(
    'shape', some(['empty memory', 'several tiles'], 'empty memory')
  )
  def test_bfloat16(self, shape, of):
    given, *rest = draw(SHAPES[shape])
    self.check(given, *rest, jnp.bfloat16, 1e-2, run=of(shape))

  @pytest.mark.parametrize(
    'shape', some(['odd sizes', 'several tiles'], 'odd sizes')
  )
  def test_dropout(self, shape):
    """The probabilities that are kept are those of the plain operations."""
    self.check_dropout(SHAPES[shape])

  def check_dropout(self, shape, **also):
    """Of a shard from the second row and the third head on, in a kernel."""
    B, T, H, _, M, _, _ = shape
    key, rate = jax.random.key(7), 0.3
    row, head = (1, 2) if hasattr(self.MODULE, 'forward') else (0, 0)
    ones = jnp.ones([row + B, head + H, T, M + T])
    keep = np.asarray(attention.dropout(ones, rate, key))[row:, head:] > 0
    given, *rest = draw(shape, **also)
    more = dict(keep=keep, rate=rate, key=key)
    if row:
      more |= dict(before=row * (head + H) + head, heads=head + H)
    self.check(given, *rest, jnp.float32, self.float32_error, **more)

  @pytest.mark.thorough
  def test_small_keys(self, of):
    """The gradient of u is no difference of large sums."""
    given, *rest = draw(SHAPES['several tiles'])
    given |= dict(k=0.01 * given['k'], r=3 * given['r'])
    error = self.float32_error
    self.check(given, *rest, jnp.float32, error, run=of('several tiles'))

  @pytest.mark.thorough
  def test_one_bias_for_both(self):
    """Its gradient is the sum of theirs."""
    given, filled, span, dout = draw(SHAPES['odd sizes'])
    given['v_bias'] = given['u']
    *arrays, u, _, _ = cast(given, jnp.float32)
    attend = lambda *a: self.attend([*a, a[-1], None], filled, span)
    out, pull = jax.vjp(jax.jit(attend), *arrays, u)
    exact = [None if x is None else np.float64(x) for x in given.values()]
    close(out, reference.attend(*exact, filled, span), 1e-5, 'out')
    wanted = reference.gradients(*exact, filled, span, dout)
    wanted[4:] = [wanted[4] + wanted[5]]
    for name, *pair in zip(NAMES, pull(jnp.float32(dout)), wanted):
      close(*pair, 1e-5, name)

  def test_extreme_scores(self, of):
    """Scores of some thousands: all is finite, and the winner takes all."""
    given, *rest = draw(SHAPES['odd sizes'], size=30.0, b=True)
    filled, span, dout = rest
    arrays = cast(given, jnp.float32)
    out, grads = of('odd sizes')(arrays, jnp.float32(dout))
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in (out, *grads))
    exact = [np.asarray(x, float) for x in arrays]
    expected = reference.attend(*exact, filled, span)
    close(out, expected, 1e-3, 'out')

  def test_twice_the_same(self, of):
    given, _, _, dout = draw(SHAPES['several tiles'])
    arrays, dout = cast(given, jnp.bfloat16), jnp.asarray(dout, jnp.bfloat16)
    results = [of('several tiles')(arrays, dout) for _ in range(2)]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
      np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

  @pytest.mark.thorough
  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  def test_promotion_is_explicit(self, dtype):
    """The same bits in programs that forbid it otherwise."""
    given, *rest, dout = draw(SHAPES['empty memory'], b=True)
    options = dict(rate=0.3, key=jax.random.key(7))
    arrays, dout = cast(given, dtype), jnp.asarray(dout, dtype)
    expected = self.compiled(*rest, **options)(arrays, dout)
    with promotions.forbidden():
      found = self.compiled(*rest, **options)(arrays, dout)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
      np.testing.assert_array_equal(np.asarray(x), np.asarray(y))

  @pytest.mark.thorough
  def test_transformations(self):
    """Under vmap, remat and scan, what it is without them."""
    given, filled, span, _ = draw(SHAPES['odd sizes'])
    arrays = cast(given, jnp.float32)

    def loss(q, rest):
      out = self.attend([q, *rest], filled, span)
      return jnp.sum(out.astype(jnp.float32) ** 2)

    q, rest = arrays[0], arrays[1:]
    grad = jax.jit(jax.grad(loss))
    plain = [grad(x, rest) for x in (q, 2 * q)]
    saved = jax.vmap(jax.grad(jax.checkpoint(loss)), (0, None))

    def body(carry, x):
      return carry, saved(x, rest)

    steps = jnp.array([[q, 2 * q], [2 * q, q]])
    found = jax.jit(lambda x: jax.lax.scan(body, 0, x)[1])(steps)
    for step, n in (0, 0), (0, 1), (1, 0), (1, 1):
      close(found[step, n], plain[step ^ n], 1e-6, 'q')


def close(found, expected, error, name):
  """The norm of the difference is at most `error` of that of what is expected.

  NaN never passes.
  """
  found, expected = np.asarray(found, float), np.asarray(expected, float)
  assert found.shape == expected.shape, name
  distance = np.linalg.norm(found - expected)
  # A gradient that cancels to nothing is held to the size of an ordinary one.
  size = max(np.linalg.norm(expected), 0.1 * np.sqrt(expected.size))
  assert distance <= error * size, f'{name}: {distance / size:.2e} of {error}'
