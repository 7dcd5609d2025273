"""Nll of segments against `direct`, which reads them row by row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct
from tests.models.cases import CASES
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import target_device

V, T = 11, 4
G, R = 3, 8  # segments in a call, rows
FIELDS = dict(CASES['transformer_xl'].small, name='transformer_xl')


def transformer(longest=0):
  return models.build(FIELDS, V).at_test_time(longest)


@functools.cache
def weights():
  """float64, large enough that everything matters."""
  return direct.random_params(transformer())


def calls(padded):
  """Two calls of G segments: inputs, targets, and the length of each row.

  A padded row ends anywhere, and padding alone follows it: a stream that is
  shorter than the others, or empty.
  """
  rng = np.random.default_rng(0)
  real = np.full([R], 2 * G * T)
  if padded:
    real = rng.integers(0, 2 * G * T + 1, [R])
    real[:2] = 0, 2 * T
  for call in range(2):
    inputs, targets = rng.integers(0, V, [2, G, R, T], np.int32)
    start = T * (call * G + np.arange(G))[:, None]
    lengths = np.clip(real - start, 0, T)
    targets[np.arange(T) >= lengths[..., None]] = -1
    yield inputs, targets, lengths


@pytest.mark.default_cases('0-True-8')
@pytest.mark.parametrize('devices', [1, 8])
@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('longest', [0, T])
def test_score(devices, padded, longest):
  model = transformer(longest)
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:devices])
  everywhere = placement.replicated(mesh)
  params = jax.device_put(jax.tree.map(jnp.float32, weights()), everywhere)
  variables = base.freeze(model, params)
  memory = jax.tree.map(
    lambda axis, x: jax.device_put(x, placement.by_rows(mesh, axis)),
    model.row_axes(),
    model.init_memory(R),
  )
  got, segments = [], []
  for inputs, targets, lengths in calls(padded):
    arrays = jax.device_put((inputs, targets), placement.by_rows(mesh, 1))
    given = memory
    memory, nll = scoring.jit_score(
      variables, memory, *arrays, model=transformer(longest), mesh=mesh
    )
    assert all(x.is_deleted() for x in jax.tree.leaves(given))
    assert nll.dtype == jnp.float32 and nll.shape == (G, R, T)
    got.extend(np.asarray(nll))
    for g in range(G):
      never = np.zeros(R, bool)
      segments.append((inputs[g], targets[g], lengths[g], never))
  expected, memories = direct.score_rows(model, weights(), segments)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
  if not padded and not longest:
    direct.assert_memory(jax.device_get(memory), memories)


@pytest.mark.parametrize(
  'longest, G, rows, n',
  [(T, 6, 1, 6), (T, 6, 32, 3), (T, 4, 32, 4), (T, 5, 32, 1), (T, 6, 999, 1),
   (T + 1, 6, 1, 1), (0, 6, 1, 1)],
)  # fmt: skip
def test_how_many_segments_are_read_together(longest, G, rows, n):
  """As many as share products of 512 tokens, if the model has such segments."""
  assert scoring._joined(transformer(longest), G, rows, T, top=0) == n


@pytest.mark.thorough
@pytest.mark.parametrize(
  'same_length, clamp_len, platform',
  [
    pytest.param('off', 0, 'cpu', marks=pytest.mark.slow),
    ('M', 1, 'cpu'),
    ('M', 1, 'tpu'),
  ],
)
def test_segments_that_attend_to_a_ring_at_once(
  same_length, clamp_len, platform, monkeypatch
):
  """As with a memory of states, one by one, over three turns of the ring."""
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  T, G, B = 2, 8, 2
  M = 64 if platform == 'cpu' else 72
  keys = dict(mem_len=M, same_length=same_length, clamp_len=clamp_len)
  keys['attention'] = 'xla'  # a TPU's kernel is not for the device that is here
  plain = models.build(FIELDS, V, **keys)
  params = jax.tree.map(jnp.float32, weights())
  tokens = np.random.default_rng(0).integers(V, size=[25, 2, G, B, T])
  found, slots = [], []
  for longest, several in (0, True), (T, False), (T, True):
    model = plain.at_test_time(longest, several)
    variables, memory = base.freeze(model, params), model.init_memory(B)
    parts = []
    for inputs, targets in tokens.astype(np.int32):
      memory, nll = scoring.jit_score(
        variables, memory, inputs, targets, model=model
      )
      parts.append(nll)
    found.append(np.asarray(parts))
    if longest:
      slots.append(memory.states[0][0].shape[1])
  assert slots == ([M + T, M + 3 * T] if platform == 'cpu' else [128, 128])
  assert tokens[:, 0, :, 0].size > 3 * slots[1]
  for ring in found[1:]:
    np.testing.assert_allclose(ring, found[0], rtol=1e-4, atol=1e-5)


def test_score_is_compiled_once_for_equal_models():
  params = jax.tree.map(jnp.float32, weights())
  inputs, targets, _ = next(calls(False))
  sizes = []
  for _ in range(2):
    model = transformer()
    memory = model.init_memory(R)
    variables = base.freeze(model, params)
    scoring.jit_score(variables, memory, inputs, targets, model=model)
    sizes.append(scoring.jit_score._cache_size())
  assert sizes[0] == sizes[1] > 0
