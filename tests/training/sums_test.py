import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.training.state import Sums


def add(sums, nll, tokens, grad_norm, step):
  return jax.jit(Sums.add)(
    sums,
    nll=jnp.asarray(nll),
    tokens=jnp.int32(tokens),
    grad_norm=jnp.asarray(grad_norm),
    step=jnp.int32(step),
  )


def values(sums):
  """Sums of Python numbers, the tokens as one."""
  numbers = jax.tree.map(lambda x: x.item(), sums.replace(tokens=()))
  return numbers.replace(tokens=sums.token_count())


DTYPES = dict(nll='f4', tokens='i4', grad_norm='f4')
DTYPES |= dict(steps='i4', bad_step='i4')


def assert_dtypes(sums):
  for name, dtype in DTYPES.items():
    leaf = getattr(sums, name)
    shape = (2,) if name == 'tokens' else ()
    assert leaf.shape == shape and leaf.dtype == np.dtype(dtype), name


def test_add():
  sums = Sums.zeros()
  assert_dtypes(sums)
  assert values(sums) == Sums(0.0, 0, 0.0, 0, -1)
  sums = add(sums, 6.5, 4, 0.25, 7)
  sums = add(sums, jnp.bfloat16(1.5), 3, 0.5, 8)
  assert_dtypes(sums)
  assert values(sums) == Sums(8.0, 7, 0.75, 2, -1)


def test_more_tokens_than_an_int32_counts():
  """A log line of many steps of large batches, on the way past 2^31."""
  rng = np.random.default_rng(0)
  counts = [2**30 - 1, 1, *rng.integers(2**29, 2**30, 12).tolist()]
  sums, total = Sums.zeros(), 0
  for step, tokens in enumerate(counts):
    sums = add(sums, 1.0, tokens, 1.0, step)
    total += tokens
    assert jax.device_get(sums).token_count() == total
    assert sums.tokens.tolist() == [total >> 30, total % 2**30]  # as is saved
  assert_dtypes(sums)
  assert total > 2**32


@pytest.mark.parametrize('bad', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('which', ['nll', 'grad_norm'])
def test_bad_step_is_the_first(which, bad):
  good = dict(nll=1.0, grad_norm=1.0)
  sums = Sums.zeros()
  for step, entry in enumerate([good, {**good, which: bad}, good]):
    sums = add(sums, entry['nll'], 1, entry['grad_norm'], step)
    assert sums.bad_step == [-1, 1, 1][step]
  sums = add(sums, bad, 1, bad, 3)
  assert sums.bad_step == 1 and sums.steps == 4


def test_bad_step_zero_is_kept():
  sums = add(Sums.zeros(), math.nan, 1, 1.0, 0)
  assert add(sums, math.nan, 1, 1.0, 1).bad_step == 0
