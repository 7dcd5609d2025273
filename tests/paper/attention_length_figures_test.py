"""What a token sees, by models of one layer, which see nothing indirectly."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.experiment import measurements
from txl_jax.paper import attention_length
from txl_jax.program.errors import UserError

V, N, LENGTHS = 11, 40, (1, 2, 3, 7)
FIELDS = dict(name='transformer_xl', n_layer=1, d_model=6, n_head=2, d_head=3)
FIELDS |= dict(d_ff=8)
CUT = dict(batch_size=1, segment_len=5, segments_per_call=3)


def make(mem_len):
  model = models.build(FIELDS, V, mem_len=mem_len)
  return model.at_test_time(), direct.random_params(model)


def text():
  return np.random.default_rng(1).integers(0, V, N).astype(np.uint8)


def by_hand(L):
  """Mean nll of each token but the first, from the L before it alone."""
  model, params = make(0)
  tokens, nll = text().astype(np.int64), []
  for t in range(1, N):
    start = direct.init_memory(model)
    logits, _ = direct.segment(model, params, tokens[max(t - L, 0) : t], start)
    nll.append(direct.nll(logits[-1:], tokens[t : t + 1]))
  return np.mean(nll)


@pytest.mark.thorough
@pytest.mark.parametrize('mem_len', [4, 0])
def test_every_token_sees_the_last_ones(mem_len):
  """With a memory and by a window, in one layer the same."""
  model, params = make(mem_len)
  params = jax.tree.map(jnp.float32, params)
  seen = []
  found = attention_length.sweep(
    model, params, text(), (7, 2, 1, 3, 2), **CUT,
    progress=lambda *x: seen.append(x),
  )  # fmt: skip
  assert [*found] == [*LENGTHS]
  assert {length for length, _ in seen} == {*LENGTHS}
  for L, score in found.items():
    assert score.scored == N - 1
    assert score.nats == pytest.approx(by_hand(L), rel=1e-5)
  nats = [score.nats for score in found.values()]
  assert np.abs(np.diff(nats)).min() > 1e-3


@pytest.mark.parametrize(
  'figures, length',
  [
    ((24.0, 23.5, 23.48, 23.47), 1),  # gains of 2.1, 0.09 and 0.04 %
    ((24.0, 24.5, 20.0), 0),
    ((3.0, 2.0, 1.99), None),
    ((3.0,), None),
  ],
)
def test_enough(figures, length):
  """The rule of the paper: no relative gain above 0.1 % beyond it."""
  assert attention_length.enough(figures) == length


def test_a_context_that_is_no_attention_length():
  config = CausalConvolution.Config()
  with pytest.raises(UserError, match='Convolution has no attention length'):
    attention_length.at_length(CausalConvolution(V, config), 4)


@pytest.mark.thorough
def test_farther_than_a_table():
  """Is refused before the first length is scored."""
  fields = FIELDS | dict(name='al_rfou', table_len=3)
  model, L = models.build(fields, V), 3
  params = jax.tree.map(jnp.float32, direct.random_params(model))
  with pytest.raises(
    UserError, match=r'^the attention length is 4; allowed: at most 3 f'
  ):
    attention_length.sweep(
      model, params, text(), (2, L, L + 1), **CUT, progress=pytest.fail
    )


def test_a_memory_without_a_span_of_its_own():
  """Absolute positions: the memory is L, and nothing else is changed."""
  fields = FIELDS | dict(name='vaswani', mem_len=4)
  model = models.build(fields, V).at_test_time()
  changed = attention_length.at_length(model, 7)
  assert changed.config == dataclasses.replace(model.config, mem_len=7)


@pytest.mark.parametrize('lengths', [(), (0,), (3, -1), (True,), (2.0,), ([],)])
def test_lengths_that_are_none(lengths):
  section = measurements.AttentionLength(lengths=lengths)
  assert [name for name, _ in section.problems()] == ['lengths']
  assert not [*dataclasses.replace(section, lengths=(1, 9)).problems()]
