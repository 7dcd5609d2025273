"""Every model there is, small, to hold its interface against.

Those in MODELS, and two that it does not know: a small one of another family,
and a Transformer-XL without memory. Whoever has no memory is behind a moving
window.
"""

import functools

import jax
import numpy as np
import pytest

from tests import direct
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.models import windowed

V, B, M = 13, 3, 4

TINY = dict(n_layer=2, d_model=8, n_head=2, d_head=3, d_ff=10)
# Small; a token matters to at least the five after it.
SETTINGS = {
  'gcnn': dict(d_model=8, blocks='[4,6] [1,3 4,5 1,8]'),
  'lstm': dict(d_model=8, d_hidden=6),
  'qrnn': dict(d_model=8, d_hidden=6, window=3),
  'transformer_xl': dict(TINY, mem_len=M),
  'shaw': dict(TINY, mem_len=M, table_len=6),
  'vaswani': dict(TINY),
  'al_rfou': dict(TINY, table_len=9, layer_losses=True, second_target=0.5),
  'convolution': dict(kernel=4),
}
# Changes under which a memory holds all of the nine tokens before.
WHOLE = {
  'transformer_xl': [dict(mem_len=9), dict(mem_len=9, pre_norm=True)],
  'gcnn': [{}, dict(tie_weights=False, blocks='[3,7 2,4] [1,6]*2')],
  'lstm': [{}],
  'qrnn': [{}],
  'shaw': [dict(mem_len=9), dict(mem_len=9, clamp_len=3)],
  'vaswani': [dict(pre_norm=True)],
  'al_rfou': [{}],
  'convolution': [{}],
}
NAMES = [*SETTINGS, 'window']
# Those that are much like another one are tried by `-m slow`; al_rfou is behind
# a window, too.
_SLOW = 'shaw', 'vaswani', 'qrnn', 'window'


def some(names):
  """Names, or tuples of a name and more, as parameters of a test."""
  cases = [name if isinstance(name, tuple) else (name,) for name in names]
  mark = lambda name: [pytest.mark.slow] * (name in _SLOW)
  return [pytest.param(*case, marks=mark(case[0])) for case in cases]


WINDOW = 9


def build(name, **changes):
  """The model that computes in float64."""
  if name == 'window':
    return build('transformer_xl', mem_len=0, **changes)
  fields = {'dtype': 'float64', **SETTINGS[name], **changes}
  if name == 'convolution':
    return CausalConvolution(V, CausalConvolution.Config(**fields))
  model = models.build({'name': name, **fields}, V)
  if model.remembers():
    return model
  return windowed.Windowed(V, model.config, model=model, window=WINDOW)


@functools.cache
def make(name, used=False, **changes):
  """A model, at test time if it is used, and parameters for it."""
  model = build(name, **changes)
  params = direct.random_params(model)
  # Segments there have at most nine tokens.
  return model.at_test_time(longest=9) if used else model, params


@functools.cache
def scorer(name, **changes):
  """The jitted (tokens, targets, memory, lengths) -> LMOutput."""
  model, params = make(name, **changes)
  return jax.jit(
    lambda tokens, targets, memory, lengths=None: model.apply(
      {'params': params}, tokens, targets, memory, train=False, lengths=lengths
    )
  )


def text(T, seed=0):
  """int32 [B, T] tokens and targets."""
  rng = np.random.default_rng(seed)
  return rng.integers(0, V, [2, B, T], np.int32)


def assert_close(a, b):
  compare = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
  jax.tree.map(compare, a, b)


def warm(name, **changes):
  """A memory that has read something."""
  memory = make(name, **changes)[0].init_memory(B)
  return scorer(name, **changes)(*text(3, seed=1), memory).memory


@functools.cache
def reader(name, last=False, **changes):
  """The jitted (tokens, memory, lengths) -> logits, memory."""
  model, params = make(name, **changes)
  return jax.jit(
    lambda tokens, memory, lengths=None: model.apply(
      {'params': params},
      tokens,
      memory,
      lengths=lengths,
      last=last,
      method='logits',
    )
  )
