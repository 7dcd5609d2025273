"""Programs that forbid implicit promotion compile the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import promotions
from tests.models import cases
from tests.training.small import B, T, V, make_batch, mesh_of, sgd
from txl_jax import attention, kernels, models
from txl_jax.program import target_device
from txl_jax.training import averaging
from txl_jax.training import state as state_lib
from txl_jax.training import step as step_lib


def assert_same(function, *args):
  """A function is one program, under the default and the strict promotion."""
  expected = jax.jit(function).lower(*args).as_text()
  jax.clear_caches()
  with promotions.forbidden():
    assert jax.jit(function).lower(*args).as_text() == expected


def inputs(dtype, M=3, H=2, K=4):
  rng = np.random.default_rng(0)
  S = M + T
  shapes = dict(
    q=(2, T, H, K), k=(2, S, H, K), v=(2, S, H, K), r=(S, H, K), u=(H, K),
    v_bias=(H, K), b=(S, H),
  )  # fmt: skip
  return {n: jnp.array(rng.normal(size=s), dtype) for n, s in shapes.items()}


@pytest.mark.thorough
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_attention_and_its_gradient(dtype):
  """All of the functions that people copy, on the way."""
  x = inputs(dtype)
  key = jax.random.key(1)
  filled = jnp.array([1, 3], jnp.int32)

  def copied(x):
    d = attention.distances(3 + T, clamp_len=4)
    table = attention.sinusoid(d, 6)
    mask = attention.visibility(T, 3, filled, span=5)
    out = attention.relative_attention(
      **x, mask=mask, dropout_rate=0.2, dropout_key=key
    )
    memory = attention.update_memory(x['v'][:, :3], out, filled)
    return jnp.sum(out.astype(float)) + jnp.sum(table), (memory, mask)

  def fused(x):
    out = kernels.relative_attention(
      **x, filled=filled, span=5, dropout_rate=0.2, dropout_key=key,
      implementation='xla',
    )  # fmt: skip
    return jnp.sum(out.astype(float)), out

  for function in copied, fused:
    assert_same(jax.value_and_grad(function, has_aux=True), x)


@pytest.mark.thorough
@pytest.mark.parametrize('name', models.MODELS)
def test_a_training_step(name):
  model = models.build({'name': name, **cases.CASES[name].small}, V)
  optimiser, mesh = sgd(clip=0.25, momentum=0.9, l2=0.01), mesh_of(1)

  def train(state):
    abstract = jax.eval_shape(lambda: state)
    step = step_lib.jit_train_step(
      mesh, abstract, model=model, optimiser=optimiser,
      key=jax.random.key(0), steps=10,
      accumulate=2, half_loss=True,
    )  # fmt: skip
    return step(state, make_batch(1, padded=True))

  create = lambda: state_lib.create(model, optimiser, B, jax.random.key(0))
  assert_same(train, jax.eval_shape(create))


@pytest.mark.default_cases('device0-transformer_xl', 'device1-shaw')
@pytest.mark.parametrize('name', models.MODELS)
@pytest.mark.parametrize(
  'device', [('gpu', 'NVIDIA H100 80GB HBM3'), ('tpu', 'TPU v5 lite')]
)
def test_a_step_in_bfloat16_on_other_devices(name, device, monkeypatch):
  """Traced: states are bfloat16 there, too, and a GPU has a kernel."""
  other = target_device.Device(*device)
  monkeypatch.setattr(target_device, 'device', lambda: other)
  sizes = dict(cases.CASES[name].small, dtype='bfloat16')
  model = models.build({'name': name, **sizes}, V)
  assert model.config.state_dtype == jnp.bfloat16
  optimiser, mesh = sgd(state_dtype='bfloat16', momentum=0.9), mesh_of(1)
  averager = averaging.Averager(0.9, 0)
  kinds = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  with promotions.forbidden():
    initial = model, optimiser, B, jax.random.key(0), averager
    abstract = jax.eval_shape(functools.partial(state_lib.create, *initial))
    step = step_lib.jit_train_step(
      mesh, abstract, model=model, optimiser=optimiser,
      key=jax.random.key(0), steps=10,
      accumulate=1, averager=averager,
    )  # fmt: skip
    found = jax.eval_shape(step, abstract, make_batch(1, padded=True))
  assert kinds(found) == kinds(abstract)
