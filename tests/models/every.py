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
from tests.models.cases import CASES
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.models import windowed

V, B = 13, 3
SETTINGS = {name: case.small for name, case in CASES.items()}
WHOLE = {name: case.whole for name, case in CASES.items()}
NAMES = [*SETTINGS, 'window']
# Those that are much like another one are tried by `-m slow`; al_rfou is behind
# a window, too.
_SLOW = {name for name in CASES if CASES[name].slow} | {'window'}


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
  more = dict(last=last, method='logits')
  return jax.jit(
    lambda tokens, memory, lengths=None: model.apply(
      {'params': params}, tokens, memory, lengths=lengths, **more
    )
  )
