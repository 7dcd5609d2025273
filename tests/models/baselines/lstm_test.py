"""LSTM against the recurrence written out in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import every
from tests.models.baselines import recurrent
from tests.models.baselines.recurrent import DROPS, sigmoid
from tests.models.every import B, V
from txl_jax import models
from txl_jax.configs import lstm as config
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.models import base


def step(p, x, state, draws, t, b):
  """c and h of one row after one position."""
  del t, b
  H = p['hidden'].shape[-1]
  c, h = state or (np.zeros(H), np.zeros(H))
  U = p['hidden'] * draws.get('hidden', 1.0)
  new_c, new_h = np.zeros(H), np.zeros(H)
  for k in range(H):
    i, f, g, o = (
      sum(x * p['input'][:, n, k]) + sum(h * U[:, n, k]) + p['bias'][n, k]
      for n in range(4)
    )
    new_c[k] = sigmoid(f) * c[k] + sigmoid(i) * np.tanh(g)
    new_h[k] = sigmoid(o) * np.tanh(new_c[k])
  return new_h, (new_c, new_h)


@pytest.mark.default_cases('changes2')
@pytest.mark.parametrize('changes', [{}, dict(n_layer=1), dict(n_layer=3)])
def test_by_hand(changes, x64):
  model, params = every.make('lstm', **changes)
  recurrent.assert_as_by_hand(model, params, step, ['hidden'])


@pytest.mark.thorough
@pytest.mark.parametrize('locked', [False, True])
def test_dropout(locked, monkeypatch, x64):
  """One mask of the hidden weights in a segment; variational ones if locked."""
  model, params = every.make('lstm', locked_dropout=locked, **DROPS)
  draws = recurrent.assert_draws(model, params, step, ['hidden'], monkeypatch)
  for n, H in enumerate([6, 8]):
    assert draws[f'hidden {n}'].shape == (H, 4, H)
    assert set(np.unique(draws[f'hidden {n}'])) == {0, 2}
    assert 0.3 < draws[f'hidden {n}'].mean() / 2 < 0.7
  for name in 'embeddings', 'between 1', 'final':
    assert (draws[name] == draws[name][:, :1]).all() == locked


@pytest.mark.thorough
def test_gradient(x64):
  recurrent.assert_gradient(*every.make('lstm'))


def test_memory_has_no_gradient(x64):
  model, params = every.make('lstm')
  tokens = every.text(4)[0]

  def total(params):
    args = {'params': params}, tokens, model.init_memory(B)
    _, memory = model.apply(*args, method='states')
    return sum(jnp.sum(x) for x in jax.tree.leaves(memory))

  value, gradients = jax.jit(jax.value_and_grad(total))(params)
  assert value != 0
  assert all((x == 0).all() for x in jax.tree.leaves(gradients))


def test_a_memory_of_another_number_of_layers(x64):
  model, params = every.make('lstm')
  arguments = {'params': params}, every.text(4)[0], model.init_memory(B)[:1]
  with pytest.raises(ValueError, match='argument 2 is shorter'):
    model.apply(*arguments, method='states')


def test_initial_biases():
  section = dict(name='lstm', **every.SETTINGS['lstm'], forget_bias=0.75)
  model = models.build(section, V)
  params = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  for n in range(2):
    b = params[f'layers_{n}']['bias']
    np.testing.assert_array_equal(b[1], 0.75)
    np.testing.assert_array_equal(b[np.array([0, 2, 3])], 0)


def test_cells_add_up_in_bfloat16():
  section = dict(name='lstm', n_layer=1, d_model=4, dtype='bfloat16')
  model = models.build(section, V)
  (state,) = model.init_memory(B)
  assert state.hidden.dtype == model.config.state_dtype
  assert state.cell.dtype == 'float32'
  gates = [-8.0, 30.0, 1.0, 0.0]  # i, f, g, o
  expected = 400 * sigmoid(-8.0) * np.tanh(1.0)
  recurrent.assert_slow_steps_add_up(model, gates, expected)


def test_parameters_of_the_configs():
  found = {}
  for variant in config.VARIANTS:
    c = config.get_config(variant)
    V = preparation.vocab_size(sections.read(c).data)
    shapes = base.param_shapes(models.build(c.model, V))
    found[variant] = sum(x.size for x in jax.tree.leaves(shapes))

  def layer(J, H):
    return 4 * H * (J + H + 1)

  # Words and their biases, projection, tails, layers.
  words, D, E = 267_735, 1024, 500
  assert found['wt103'] == (
    words * (E + 1) + E * D + 3 * (E + 1) + 2 * layer(D, D)
  )
  assert abs(found['wt103'] / 151e6 - 1) < 0.01
  # The original counts 24,221,600: a second bias for each gate.
  D, H = 400, 1150
  three = layer(D, H) + layer(H, H) + layer(H, D)
  assert found['ptb'] == 10_000 * (D + 1) + three
  assert found['ptb'] + 4 * (H + H + D) == 24_221_600
