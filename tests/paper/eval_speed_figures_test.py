"""That both ways are measured, and what is refused."""

import itertools

import jax
import pytest

from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.experiment import measurements
from txl_jax.models import base, windowed
from txl_jax.paper import eval_speed
from txl_jax.program.errors import UserError

FIELDS = dict(name='transformer_xl', n_layer=1, d_model=8, n_head=2, d_head=3)
FIELDS |= dict(d_ff=8, mem_len=3)
OPTIONS = dict(segment_len=4, tokens=2, repeats=3)


@pytest.mark.thorough
def test_both_ways_are_timed(monkeypatch):
  model = models.build(FIELDS, 11)
  params = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  timed, score = [], eval_speed.scoring.jit_score

  def spy(params, memory, inputs, targets, *, model):
    timed.append((model, inputs.shape[-1]))
    return score(params, memory, inputs, targets, model=model)

  clock = itertools.accumulate([0, 100, 0, 1, 0, 2, 0, 3] * 2)
  monkeypatch.setattr(eval_speed.time, 'perf_counter', lambda: next(clock))
  spy.trace = score.trace
  monkeypatch.setattr(eval_speed.scoring, 'jit_score', spy)
  speed = eval_speed.measure(model.at_test_time(), params, 9, **OPTIONS)
  assert speed == (2 / 4, 2 / 2)
  assert len(timed) == 2 * (3 + 1)  # one more to compile
  (ours, T), (window, tokens) = timed[0], timed[-1]
  assert (ours.config.mem_len, ours.config.span, T) == (9, 9, 4)
  assert isinstance(window, windowed.Windowed)
  assert (window.window, window.model.config.mem_len, tokens) == (9, 0, 2)


@pytest.mark.thorough
def test_a_window_of_absolute_positions():
  """The model of Table 9, in the sizes of the one with a memory."""
  model = models.build(FIELDS | {'cutoffs': (4,)}, 11)
  other, params = eval_speed.absolute(model.at_test_time(), 9)
  assert type(other) is models.MODELS['al_rfou']
  for name in 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff', 'cutoffs':
    assert getattr(other.config, name) == getattr(model.config, name)
  assert other.reach() == 9 and 'auxiliary' not in params
  made = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  options = OPTIONS | {'window': 'al_rfou'}
  assert min(eval_speed.measure(model.at_test_time(), made, 9, **options)) > 0


@pytest.mark.thorough
def test_a_memory_with_absolute_positions():
  """It has no same_length to turn off."""
  model = models.build(FIELDS | {'name': 'vaswani'}, 11)
  params = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  assert min(eval_speed.measure(model.at_test_time(), params, 9, **OPTIONS)) > 0


def test_a_model_without_attention():
  model = CausalConvolution(11, CausalConvolution.Config())
  with pytest.raises(UserError, match=r'no attention length.*key mem_len$'):
    eval_speed.measure(model, {}, 4, **OPTIONS)


def test_the_table():
  lengths = [
    {'attention_length_tokens': n, 'memory_seconds_per_token': 0.00125,
     'window_seconds_per_token': 1.5, 'times_slower': 1200.0,
     'paper_times_slower': paper}
    for n, paper in ((9, None), (3800, 1874))
  ]  # fmt: skip
  record = {'run': 'xl', 'parameters': 'fresh', 'lengths': lengths}
  record |= {'hardware': {'device': 'A card'}, 'eval': {'segment_len': 5}}
  lines = eval_speed.table(record | {'options': {'window': 'same'}})
  assert [x.split() for x in lines[2:]] == [
    ['9', '1.250', '1,500.000', '1,200', '-'],
    ['3,800', '1.250', '1,500.000', '1,200', '1,874'],
  ]


def test_the_table_of_the_paper():
  assert measurements.EvalSpeed().lengths == (800, 1800, 2800, 3800)
  assert [*eval_speed.PAPER.values()] == [363, 773, 1409, 1874]
  for lengths in (), (0,), (True,), (1.5,), (10**7,):
    section = measurements.EvalSpeed(lengths=lengths)
    assert [name for name, _ in section.problems()] == ['lengths']
