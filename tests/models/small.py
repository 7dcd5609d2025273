"""A small Transformer-XL, or another Transformer, and text for it.

It is held against the direct formula, row by row.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests import direct
from txl_jax import models
from txl_jax.models import ring_model

B, T, N, V = 2, 4, 2, 11


def make(vocab_size=V, **changes):
  fields = dict(name='transformer_xl', n_layer=N, d_model=8, n_head=2, d_head=3)
  fields |= dict(d_ff=10, mem_len=5, dropout=0.0, dtype='float64') | changes
  if models.MODELS[fields['name']].ABSOLUTE and 'mem_len' not in changes:
    del fields['mem_len']
  longest = fields.pop('longest', 0)
  model = models.build(fields, vocab_size)
  return model.at_test_time(longest) if longest else model


def apply(model, *args, **kwargs):
  """Jitted model.apply(params, tokens, targets, memory, ...)."""
  run = jax.jit(functools.partial(model.apply, **kwargs))
  return run(*args)


def text(segments, length, seed=0):
  """Tokens and targets, each [segments, B, length]."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, V, [2, segments, B, length], np.int32)
  return tokens[0], tokens[1]


def assert_direct_formula(model, lengths=None):
  """Of three segments; lengths is that of row 1 in each."""
  params, (tokens, targets) = direct.random_params(model), text(3, T)
  real = np.array([[T, n] for n in lengths or [T] * 3], np.int32)
  targets = np.where(np.arange(T) < real[..., None], targets, -1)
  rows, M = [direct.init_memory(model) for _ in range(B)], model.config.mem_len
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(model.apply, train=False))
    memory = model.init_memory(B)
    for s in range(3):
      segment = tokens[s], targets[s], memory
      padded = real[s] if lengths else None
      out = run({'params': params}, *segment, lengths=padded)
      memory = out.memory
      for b, n in enumerate(real[s]):
        nll = np.zeros(T)
        if n:
          part = np.s_[s, b, :n]
          logits, rows[b] = direct.segment(model, params, tokens[part], rows[b])
          nll[:n] = direct.nll(logits, targets[part])
        close(out.nll[b], nll)
        if not model.remembers():
          assert memory == ()
          continue
        filled = len(rows[b][0])
        assert min(memory.filled[b], M) == filled
        # A ring has keys and values instead; nll shows that they are right.
        if not ring_model.rewindable(model):
          close(memory.states[:, b, M - filled :], np.stack(rows[b]))


def assert_gradient(model, padded=False):
  """Of a segment after a memory, against differences of the direct formula."""
  params, (tokens, targets) = direct.random_params(model), text(2, T)
  ends = [T, T - 1] if padded else [T, T]
  targets[1, 1, ends[1] :] = -1

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def gradient(params, s, memory, lengths):
    segment = jnp.asarray(tokens)[s], jnp.asarray(targets)[s], memory
    more = dict(train=False, lengths=lengths)
    out = model.apply({'params': params}, *segment, **more)
    return out.nll.sum(), out.memory

  with jax.enable_x64(True):
    both = [np.array(n) if padded else None for n in ([T, T], ends)]
    _, memory = gradient(params, 0, model.init_memory(B), both[0])
    grads, _ = gradient(params, 1, memory, both[1])
  start = direct.init_memory(model)
  rows = [direct.segment(model, params, row, start)[1] for row in tokens[0]]

  def total(params):
    nll = 0.0
    for b, n in enumerate(ends):
      logits, _ = direct.segment(model, params, tokens[1, b, :n], rows[b])
      nll += direct.nll(logits, targets[1, b, :n]).sum()
    return nll

  direct.assert_slopes(total, params, grads, rtol=1e-6, atol=1e-6)
