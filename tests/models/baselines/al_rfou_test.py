"""The losses of training that the character Transformer has besides."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.small import B, T, make, text
from txl_jax import attention, models
from txl_jax.evaluation import scoring
from txl_jax.experiment import sections
from txl_jax.models import base
from txl_jax.models.baselines import al_rfou
from txl_jax.program.errors import UserError

N = 3
BOTH = dict(layer_losses=True, second_target=0.5)
CASES = {
  'both': BOTH,
  'layers': dict(layer_losses=True),
  'second': dict(second_target=0.3),
  'one_layer': dict(BOTH, n_layer=1),
  'off': {},
}


def build(**changes):
  return make(name='al_rfou', table_len=6, **{'n_layer': N, **changes})


def random_params(model):
  """Those of training too, float64."""
  init = functools.partial(base.init_params, model)
  with jax.enable_x64(True):
    shapes = jax.eval_shape(init, jax.random.key(0))
  rng = np.random.default_rng(1)
  draw = lambda x: 0.3 * rng.normal(size=x.shape)
  return jax.tree.map(draw, shapes)


def outputs_by_hand(model, params, tokens):
  """The output [T, D] of each layer for one row; `direct` is of their last."""
  x = params['vocabulary']['table'][tokens] * math.sqrt(model.config.d_model)
  found = []
  for n in range(model.config.n_layer):
    own, none = params[f'layers_{n}'], np.zeros([0, model.config.d_model])
    x = direct.layer(model, own, None, x, none, direct.undropped)
    found.append(x)
  return found


def aux_by_hand(model, params, tokens, targets, lengths, progress):
  """Layer by layer, position by position."""
  c, own = model.config, params.get('auxiliary', {})
  n_layer = c.n_layer
  losses = {}  # of (layer, kind): each position's
  for b, length in enumerate(lengths):
    outputs = outputs_by_hand(model, params, tokens[b, :length])
    for n, output in enumerate(outputs):
      last = n == n_layer - 1
      if not last and (
        not c.layer_losses or progress >= (n + 1) / (2 * n_layer)
      ):
        continue
      at = n if c.layer_losses else 0
      for t in range(length):
        for kind in 'next', 'second':
          if kind == 'next' and last:
            continue  # the main loss
          if kind == 'second' and not c.second_target:
            continue
          ahead = t if kind == 'next' else t + 1
          if ahead >= T or min(targets[b, t : ahead + 1]) < 0:
            continue
          logits = own[f'{kind}_weights'][at] @ output[t]
          logits = logits + own[f'{kind}_biases'][at]
          nll = -np.log(direct.softmax(logits)[targets[b, ahead]])
          losses.setdefault((n, kind), []).append(nll)
  weight = {'next': 1.0, 'second': c.second_target}
  return sum(weight[kind] * np.mean(x) for (_, kind), x in losses.items())


def segment():
  tokens, targets = text(1, T)
  lengths = np.array([T, T - 1], np.int32)
  targets = targets[0].copy()
  targets[1, -1] = targets[0, 1] = -1
  return tokens[0], targets, lengths


@functools.cache
def run(case):
  """The model, parameters, jitted (params, progress) -> loss; its gradient."""
  model = build(**CASES[case])
  tokens, targets, lengths = segment()

  @jax.jit
  def aux(params, progress):
    sums = model.apply(
      {'params': params}, tokens, targets, (), train=True, lengths=lengths,
      progress=progress, rngs={'dropout': jax.random.key(0)},
    ).aux  # fmt: skip
    scored = targets >= 0
    pairs = scored[:, 1:] & scored[:, :-1]
    return sums[0] / scored.sum() + sums[1] / pairs.sum()

  grads = jax.jit(jax.grad(aux))
  return model, random_params(model), aux, grads


@pytest.mark.default_cases(
  '0.0-layers', '0.0-second', '0.0-one_layer', '0.5-off'
)
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('progress', [0.0, 1 / 6, 0.3, 0.5, 1.0])
def test_losses_by_hand(case, progress):
  with jax.enable_x64(True):
    model, params, aux, _ = run(case)
    found = float(aux(params, progress))
    if (case, progress) == ('layers', 0.0):  # as if none had begun
      assert aux(params, None) == found
  expected = aux_by_hand(model, params, *segment(), progress)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
  ended = case == 'layers' and progress >= 0.5
  assert (found > 0) == (case != 'off' and not ended)


@pytest.mark.thorough
@pytest.mark.parametrize('progress', [0.0, 1 / 6, 0.9])
def test_gradient_of_the_losses(progress):
  """By differences; a layer whose time has passed has none."""
  with jax.enable_x64(True):
    model, params, _, gradient = run('both')
    grads = jax.tree.map(np.asarray, gradient(params, progress))
  slow = lambda params: aux_by_hand(model, params, *segment(), progress)
  direct.assert_slopes(slow, params, grads, rtol=1e-5, atol=1e-6)
  own, last = grads['auxiliary'], N - 1
  ended = sum(progress >= l / (2 * N) for l in range(1, N))
  for name, x in own.items():
    for n in range(len(x)):
      assert x[n].any() == (n >= ended or n == last), (name, n)


@pytest.mark.parametrize('steps', [12, 120, 1001, 300_000])
def test_layers_end_on_schedule(steps):
  """In the step that begins at l / 2 N of the training, and none before."""
  N = 12
  ends = [(-(-l * steps // (2 * N)), l) for l in range(1, N)]

  @jax.jit
  def on(step):  # as training counts its progress
    progress = jnp.float32(step) / steps
    return al_rfou.on_until(jnp.arange(1, N), N, progress)

  for first, l in ends:
    for step in range(max(first - 1, 0), first + 2):
      assert on(step)[l - 1] == (step < first), (l, step)


@pytest.mark.thorough
def test_each_layer_that_predicts_drops_on_its_own(monkeypatch):
  """Of states [T, D] of each row: embeddings, final states, and N losses."""
  seen, dropout = [], attention.dropout
  note = lambda key: seen.append(tuple(np.ravel(key)))

  def watched(x, rate, key, shared=()):
    assert shared == (1,) or not rate
    if rate:
      jax.debug.callback(note, jax.random.key_data(key))
    return dropout(x, rate, key, shared)

  rates = dict(dropout_embed=0.5, dropout_final=0.5)
  model = build(**BOTH, **rates, locked_dropout=True)
  params = random_params(model)
  tokens, targets, _ = segment()
  monkeypatch.setattr(attention, 'dropout', watched)
  with jax.enable_x64(True):
    run = jax.jit(functools.partial(model.apply, train=True, progress=0.0))
    args = {'params': params}, tokens, targets, ()
    keys = [{'dropout': jax.random.key(n)} for n in (0, 0, 1)]
    values = [float(run(*args, rngs=key).aux.sum()) for key in keys]
    jax.effects_barrier()
  assert len(seen) == 3 * (2 + N) and len(set(seen)) == 2 * (2 + N)
  assert values[0] == values[1] != values[2]


def test_segments_longer_than_the_table():
  model = make(name='al_rfou', table_len=T - 1)
  params = direct.random_params(model)
  tokens, _ = text(1, T)
  expected = f'model.table_len is {T - 1}; allowed: at least {T}, the tokens of'
  with jax.enable_x64(True), pytest.raises(UserError, match=expected):
    model.apply({'params': params}, tokens[0], (), method='logits')


def test_words_of_an_adaptive_softmax():
  """The losses besides are plain softmaxes, whatever the main one is."""
  model = build(**BOTH, cutoffs=(3, 7), div_val=2, dtype='float32')
  key = jax.random.key(0)

  def score():
    args = *(x[0] for x in text(1, T)), ()
    more = dict(train=True, progress=0.1, rngs={'dropout': key})
    return model.apply({'params': base.init_params(model, key)}, *args, **more)

  out = jax.eval_shape(score)
  assert out.nll.shape == (B, T) and out.aux.shape == (2,)


def test_longer_segments_and_windows_are_refused_by_their_keys():
  """Of a trained model the table cannot be another one."""
  c = sections.compose('al_rfou')
  c.model.table_len = 6
  expected = r'eval\.window is 7; allowed: at most 6'
  with pytest.raises(UserError, match=expected):
    models.at_test_time(sections.read(c), 3, 'eval', 7)
  model = models.at_test_time(sections.read(c), 3, 'eval')
  with pytest.raises(UserError, match=r'eval\.segment_len is 7; .* at most 6'):
    scoring.check(model, np.zeros(9, np.int32), 1, 7)
