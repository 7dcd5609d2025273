"""QRNN against the recurrence written out in numpy."""

import jax
import numpy as np
import pytest

from tests.models import every
from tests.models.baselines import recurrent
from tests.models.baselines.recurrent import DROPS, sigmoid
from tests.models.every import B, V
from txl_jax import models
from txl_jax.configs import qrnn as config
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.models import base


def stepper(zoneout=0.0):
  """The step of a layer that is used with such a zoneout."""

  def step(p, x, state, draws, t, b):
    w, J, _, H = p['kernel'].shape
    c, before = state or (np.zeros(H), [np.zeros(J)] * (w - 1))
    seen = [*before, x]
    kernel = p['kernel'] * draws.get('kernel', 1.0)
    new_c, h = np.zeros(H), np.zeros(H)
    for k in range(H):
      z, f, o = (
        sum(sum(seen[n] * kernel[n, :, gate, k]) for n in range(w))
        + p['bias'][gate, k]
        for gate in range(3)
      )
      f = sigmoid(f)
      if 'zone' in draws:  # what is not drawn stays
        f = f if draws['zone'][t, b, k] else 1.0
      else:
        f = f + zoneout * (1 - f)
      new_c[k] = f * c[k] + (1 - f) * np.tanh(z)
      h[k] = sigmoid(o) * new_c[k]
    return h, (new_c, seen[1:])

  return step


@pytest.mark.thorough
@pytest.mark.parametrize(
  'changes',
  [{}, dict(n_layer=1, window=1), dict(n_layer=3, window=2, zoneout=0.3)],
)
def test_by_hand(changes, x64):
  model, params = every.make('qrnn', **changes)
  step = stepper(changes.get('zoneout', 0.0))
  recurrent.assert_as_by_hand(model, params, step, ['kernel', 'zone'])


@pytest.mark.thorough
@pytest.mark.parametrize('zoneout', [0.0, 0.4])
def test_dropout(zoneout, monkeypatch, x64):
  """One mask of the weights in a segment; zoneout at each position."""
  model, params = every.make('qrnn', zoneout=zoneout, window=2, **DROPS)
  kinds = ['kernel', 'zone'] if zoneout else ['kernel']
  draws = recurrent.assert_draws(model, params, stepper(), kinds, monkeypatch)
  for n, (w, J, H) in enumerate([(2, 8, 6), (1, 6, 8)]):
    assert draws[f'kernel {n}'].shape == (w, J, 3, H)
    assert set(np.unique(draws[f'kernel {n}'])) == {0, 2}
    if zoneout:
      zone = draws[f'zone {n}']
      assert zone.shape == (6, B, H)
      assert 0.45 < (zone > 0).mean() < 0.75
      assert (zone[0] != zone[1]).any()


def test_gradient(x64):
  recurrent.assert_gradient(*every.make('qrnn'))


def test_memory_holds_inputs_of_the_first_layer_alone():
  for window in 1, 3:
    model = every.build('qrnn', window=window, dtype='float32')
    first, second = model.init_memory(B)
    assert np.shape(first.inputs) == ((B, 2, 8) if window > 1 else (0,))
    assert second.inputs == ()


def test_states_move_slowly_in_bfloat16():
  section = dict(name='qrnn', n_layer=1, d_model=4, dtype='bfloat16')
  model = models.build(section, V)
  (state,) = model.init_memory(B)
  assert state.inputs.dtype == model.config.state_dtype
  assert state.cell.dtype == 'float32'
  expected = np.tanh(1.0) * (1 - sigmoid(8.0) ** 400)
  gates = [1.0, 8.0, 0.0]  # z, f, o
  recurrent.assert_slow_steps_add_up(model, gates, expected)


@pytest.mark.parametrize('window, near', [(1, 0.01), (2, 0.02)])
def test_parameters_of_the_config(window, near):
  c = config.get_config()
  c.model.window = window
  model = models.build(c.model, preparation.vocab_size(sections.read(c).data))
  words, D, H = 267_735, 400, 2500

  def layer(J, H, w=1):
    return 3 * H * (w * J + 1)

  layers = layer(D, H, window) + 2 * layer(H, H) + layer(H, D)
  tails = 3 * (D + 1)
  found = sum(x.size for x in jax.tree.leaves(base.param_shapes(model)))
  assert found == words * (D + 1) + tails + layers
  assert abs(found / 151e6 - 1) < near
