"""Kernels as GPUs and TPUs get them, without one: python -m pytest -m slow."""

import re

import jax
import pytest

from txl_jax.ops.kernels import tpu, triton

# B, T, M, H, K: the configs of enwik8, WikiText-103 and Penn Treebank.
SHAPES = [
  (16, 512, 512, 8, 64),
  (16, 768, 768, 8, 128),
  (16, 150, 150, 10, 41),
  (16, 384, 384, 16, 64),
  (16, 70, 70, 10, 38),
]


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
@pytest.mark.parametrize('platform', ['cuda', 'tpu'])
def test_lowers(platform, shape, dtype):
  """Forward and backward, with dropout; no atomics, no array of T x S."""
  (B, T, M, H, K), kernel = shape, dict(cuda=triton, tpu=tpu)[platform]
  S = T + M
  A = lambda *s, d=dtype: jax.ShapeDtypeStruct(s, d)
  arrays = [A(B, T, H, K), A(B, S, H, K), A(B, S, H, K), A(S, H, K)]
  arrays += [A(B, H, S, d='float32'), A(H, S, d='float32')]
  arrays += [A(B, d='int32'), A(4, d='uint32')]
  off = dict(interpret=False, span=S, rate=0.1)

  def both(dout, *arrays):
    out, logsum = kernel.forward(*arrays, **off)
    return out, kernel.backward(*arrays, out, logsum, dout, **off)

  lowered = jax.jit(both).trace(arrays[0], *arrays)
  text = lowered.lower(lowering_platforms=(platform,)).as_text()
  assert 'custom_call' in text and 'atomic' not in text
  assert not re.search(rf'{T}x(\d+x)?{S}x', text)
