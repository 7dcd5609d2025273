"""RECL against its definition, read line by line, and one reading for each l.

l[i][c][t] is the nll of model i at position t after a context of c.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models import every
from txl_jax import models
from txl_jax.experiment import measurements
from txl_jax.paper import recl
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement


def literal(l, step, r):
  """The definition, without arrays: l is {c: list over t} of each model.

  A model has the contexts that it is measured with.
  """
  lengths = []
  for i in range(len(l)):
    c = step if l[i] else None
    while l[i] and c + step in l[i]:
      places = range(len(l[i][c]))
      b = [min(one[c][t] for one in l if c in one) for t in places]
      T = sorted(places, key=lambda t: -b[t])[: max(1, round(r * len(places)))]

      def f(other, i=i, b=b, T=T):
        return sum(min(b[t], l[i][other][t]) for t in T) / len(T)

      now, then = math.exp(f(c)), math.exp(f(c + step))
      if (now - then) / now < 0.01:
        break
      c += step
    lengths.append(c)
  return lengths


def test_as_the_definition_says():
  rng = np.random.default_rng(0)
  distinct, ends = set(), set()
  for _ in range(60):
    m, C, P = rng.integers(1, 4), rng.integers(2, 7), rng.integers(1, 30)
    falls = rng.uniform(0.2, 1, [m, 1, 1]) * np.arange(C)[:, None]
    nll = 4 - 0.3 * falls**0.5 + rng.normal(size=[m, C, P]) * 0.3
    step = int(rng.integers(1, 9))
    lengths = range(step, step * C + 1, step)
    # Some are measured with the first contexts alone, or with none.
    known = rng.integers(0, C, m) if rng.random() < 0.5 else [C] * m
    by_name = [
      dict(zip(lengths[:k], model.tolist())) for k, model in zip(known, nll)
    ]
    for model, k in zip(nll, known):
      model[k:] = np.nan
    for r in (0.1, 0.5, 1.0):
      found = recl.effective(nll, lengths, r)
      expected = literal(by_name, step, r)
      assert [x.length for x in found] == expected
      assert [x.at_end for x in found] == [c == step * C for c in expected]
      for x, k, c in zip(found, known, expected):
        assert x.at_reach == (0 < k < C and c == k * step)
        measured = [not math.isnan(g) for g in x.gains]
        assert measured == [j + 1 < k for j in range(C - 1)]
        ends.add((x.at_end, x.at_reach, x.length is None))
      distinct |= {c // step for c in expected if c}
  assert len(distinct) > 3 and len(ends) == 4


def test_a_hand_made_table():
  """Two models, contexts 10, 20, 30, two positions; all by hand.

  Of model 0 f(10, 10) = 2 and f(10, 20) = (1 + 2) / 2, a gain of 1 - e^-0.5;
  then nothing. Model 1 is never better than the best, which is model 0.
  """
  nll = np.array([[[2, 2], [1, 2], [1, 2]], [[3, 3], [2.5, 3], [2, 2.5]]])
  ours, theirs = recl.effective(nll, (10, 20, 30), 1.0)
  assert (ours.length, theirs.length) == (20, 10)
  assert ours.interval is theirs.interval is None  # without resamples
  assert ours.gains == pytest.approx((1 - math.exp(-0.5), 0))
  assert theirs.gains == (0, 0)
  # At the hardest position, the second one from context 20, nothing is gained.
  hardest, _ = recl.effective(nll, (10, 20, 30), 0.5)
  assert hardest.gains == pytest.approx((1 - math.exp(-1), 0))


def test_a_model_whose_reach_ends():
  """By hand: contexts 10, 20, 30, two positions, model 1 reads 20 at most.

  It gains 1 - e^-1 from 20 tokens, as b(10) = 3 is its own; there its reach
  ends. With 20, b is the 2 of model 1; with 30 model 0 is at e^-0.5 of that.
  """
  nll = np.array(
    [[[4, 4], [4, 4], [1, 2]], [[3, 3], [2, 2], [math.nan] * 2]], np.float64
  )
  far, ended = recl.effective(nll, (10, 20, 30), 1.0)
  assert far.gains == pytest.approx((0, 1 - math.exp(-0.5)))
  assert (far.length, far.at_end, far.at_reach) == (10, False, False)
  assert ended.gains == pytest.approx((1 - math.exp(-1), math.nan), nan_ok=True)
  assert (ended.length, ended.at_end, ended.at_reach) == (20, False, True)
  # Without a context there is no length; the other is then the best itself.
  nll[1] = math.nan
  far, none = recl.effective(nll, (10, 20, 30), 1.0, 5)
  assert far.gains == pytest.approx((0, 1 - math.exp(-2.5)))
  assert (none.length, none.at_end, none.at_reach) == (None, False, False)
  assert (far.interval, none.interval) == ((10, 10), None)


def test_an_interval_is_that_of_resampled_tables():
  rng = np.random.default_rng(3)
  m, C, P, step, resamples = 3, 6, 25, 4, 60
  nll = 4 - 0.05 * np.arange(C)[:, None] + 0.3 * rng.normal(size=[m, C, P])
  nll[2, 4:] = np.nan
  lengths = range(step, step * C + 1, step)
  for r in (0.1, 0.5, 1.0):
    again, every = np.random.default_rng(0), []
    for _ in range(resamples):
      drawn = nll[:, :, np.sort(again.integers(P, size=P))]
      known = [dict(zip(lengths, x.tolist())) for x in drawn]
      known[2] = {c: known[2][c] for c in lengths[:4]}
      every.append(literal(known, step, r))
    found = recl.effective(nll, lengths, r, resamples)
    # Of 60 in order: at least 1.5 are at or below the first, 58.5 the second.
    ordered = [sorted(column) for column in zip(*every)]
    assert [x.interval for x in found] == [(x[1], x[58]) for x in ordered]
    assert any(low < high for low, high in (x.interval for x in found))


def test_positions():
  assert recl.positions(100, 20, 4).tolist() == [20, 46, 72, 99]
  for count in 10, 11, 1000, 10**15:
    assert recl.positions(30, 20, count).tolist() == [*range(20, 30)]


def make(name, **changes):
  """A small model, also one without memory, and its parameters."""
  if name == 'convolution':
    model = every.build(name, dtype='float32')
  else:
    fields = every.SETTINGS[name] | changes
    model = models.build({'name': name, **fields}, every.V)
  params = jax.tree.map(jnp.float32, direct.random_params(model))
  return model.at_test_time(), params


# With less memory than the context; with what it needs; and without.
CASES = ['transformer_xl', 'convolution', 'al_rfou']


@pytest.mark.thorough
@pytest.mark.parametrize('name', CASES)
def test_after_exactly_c_tokens(name):
  """Segments of 3 and contexts of 2, 3 and 7, on a mesh: as read alone."""
  model, params = make(name)
  tokens = np.random.default_rng(0).integers(0, every.V, 40).astype(np.uint8)
  at = np.array([7, 20, 21, 39])
  read = jax.jit(
    lambda tokens, memory: model.apply(
      {'params': params}, tokens, memory, method='logits'
    )
  )
  mesh = mesh_lib.make_mesh()
  placed = jax.device_put(params, placement.replicated(mesh))
  for c, B in (2, 3), (3, 3), (7, 3), (2, 10**15):
    found = recl.after_context(
      model, placed, tokens, at, c, batch_size=B, segment_len=3, mesh=mesh
    )
    for nll, t in zip(found, at, strict=True):
      memory = model.init_memory(1)
      context = tokens[None, t - c : t].astype(np.int32)
      T = 3 if model.remembers() else c
      for start in range(0, c, T):
        logits, memory = read(context[:, start : start + T], memory)
      logits = np.float64(logits[0, -1])
      expected = np.log(np.sum(np.exp(logits))) - logits[tokens[t]]
      assert nll == pytest.approx(expected, rel=1e-4)


@pytest.mark.thorough
def test_how_far_a_model_is_read():
  """As far as it was trained, if its positions are absolute; told T of that."""
  reach = {
    'al_rfou': 9,  # the rows of its table
    'vaswani': 20,
    'transformer_xl': math.inf,
    'shaw': math.inf,
    'lstm': math.inf,
  }
  assert {x: make(x)[0].reach(20) for x in reach} == reach
  for name in 'transformer_xl', 'shaw':
    assert make(name, mem_len=0)[0].reach(20) == math.inf


NONE = [('others', ('',)), ('others', (3,)), ('step', 501)]
NONE += [('shares', x) for x in ((), (0.5, 0.0), (1.1,), (math.nan,), (True,))]


@pytest.mark.parametrize('name, value', NONE)
def test_values_that_are_none(name, value):
  assert [k for k, _ in measurements.Recl(**{name: value}).problems()] == [name]
  assert not [*measurements.Recl(others=('a',), shares=(0.1, 1)).problems()]
