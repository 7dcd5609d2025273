"""The recipe of configs/ptb.py against an independent program.

See `tests/training/golden/make_penn_treebank.py`; letters are those of there.
"""

import pathlib

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import small
from txl_jax import models
from txl_jax.models import base
from txl_jax.training import averaging, optim
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib
from txl_jax.training.state import Sums

GOLDEN = pathlib.Path(__file__).parent / 'golden' / 'penn_treebank.npz'
V, B, n, E, T, STEPS = 13, 3, 31, 4, 6, 20
WIDTH = 7  # a segment has at most 7 tokens
MODEL = small.FIELDS | dict(mem_len=0, dropout=0.0, tie_positions=True)
MODEL |= dict(activation_reg=0.2, temporal_activation_reg=0.1)
MODEL |= dict(activation_reg_dropped=False)
OPTIM: dict = dict(lr=3e-4, lr_table=6e-4, lr_floor=1 / 3, clip=1.7, l2=0.01)
OPTIM |= dict(schedule='annealing', warmup=5, cosine_end=13)
OPTIM |= dict(average='swa', average_start=14, average_factor=0.5)
CONFIG = optim.Optim(**OPTIM)


def batches(text, drawn):
  """The batch of each step: context, segment, padding."""
  i = 0
  for asked in drawn:
    length, first = min(asked, n - 1 - i), max(i - E, 0)
    inputs = np.zeros([B, E + WIDTH], np.int32)
    targets = np.full([B, WIDTH], -1, np.int32)
    inputs[:, : i + length - first] = text[:, first : i + length]
    targets[:, :length] = text[:, i + 1 : i + 1 + length]
    yield dict(
      inputs=inputs,
      targets=targets,
      context=np.full(B, i - first, np.int32),
      lengths=None,
      reset=np.zeros(B, bool),
      rate_scale=np.float32(asked / T),
    )
    i = i + length if n - 1 - i - length > 1 else 0


def by_name(params):
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  return [(name, flat[name]) for name in sorted(flat)]


def test_rates():
  golden = np.load(GOLDEN)
  rates = [optim.schedule(CONFIG, STEPS, table=x) for x in (False, True)]
  found = [rate(jnp.arange(STEPS)) for rate in rates]
  np.testing.assert_allclose(np.stack(found, 1), golden['rates'], rtol=1e-6)


@pytest.mark.thorough
def test_twenty_steps():
  """Losses, the last parameters, and their mean over the last six steps."""
  golden = np.load(GOLDEN)
  drawn, start = golden['drawn'], golden['start']
  model = models.build(MODEL, V)
  optimiser = optim.optimiser(CONFIG, STEPS, model.NOT_DECAYED)
  averager = averaging.averager(CONFIG)
  params, at = {}, 0
  for name, x in by_name(base.param_shapes(model)):
    params[name] = jnp.float32(start[at : at + x.size].reshape(x.shape))
    at += x.size
  assert at == len(start)
  params = flax.traverse_util.unflatten_dict(params, sep='/')
  state = state_lib.TrainState(
    step=jnp.int32(0),
    params=params,
    opt_state=optimiser.init(params),
    memory=(),
    sums=Sums.zeros(),
    lr_scale=jnp.float32(1),
    average=averager.init(params),
  )

  @jax.jit
  def step(state, batch):
    given = batch['inputs'], batch['targets'], ()
    more = dict(train=True, rngs={'dropout': jax.random.key(0)})
    more['context'] = batch['context']
    out = model.apply({'params': state.params}, *given, **more)
    loss = out.nll.sum() / (batch['targets'] >= 0).sum()
    loss += (out.aux / base.counts(batch['targets'])).sum()
    new = step_lib.train_step(
      state,
      batch,
      model=model,
      optimiser=optimiser,
      key=jax.random.key(0),
      steps=STEPS,
      accumulate=1,
      averager=averager,
    )
    return new, loss

  losses = []
  for batch in batches(golden['text'], drawn):
    state, loss = step(state, batch)
    losses.append(loss)
  np.testing.assert_allclose(losses, golden['losses'], rtol=0, atol=1e-5)

  def flat(params):
    return np.concatenate([np.ravel(x) for _, x in by_name(params)])

  assert averaging.count(state.average) == STEPS - averager.start
  mean = flat(state.average.params)
  np.testing.assert_allclose(mean, golden['mean'], rtol=0, atol=1e-6)
  end = flat(state.params)
  np.testing.assert_allclose(end, golden['end'], rtol=0, atol=1e-6)
  # The steps were no small ones.
  assert np.abs(mean - start).max() > 1e-3
