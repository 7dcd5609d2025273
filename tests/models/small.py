"""A small Transformer-XL, or another Transformer, and text for it."""

import functools

import jax
import numpy as np

from txl_jax import models

B, T, N, V = 2, 4, 2, 11


def make(vocab_size=V, **changes):
  fields = dict(
    n_layer=N,
    d_model=8,
    n_head=2,
    d_head=3,
    d_ff=10,
    mem_len=5,
    dropout=0.0,
    dtype='float64',
  )
  fields = {'name': 'transformer_xl', **fields, **changes}
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
