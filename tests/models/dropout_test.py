"""Dropout of a Transformer-XL, and the penalties on its final states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import direct
from tests.models.small import B, N, T, V, apply, make, text
from txl_jax import attention
from txl_jax.models import base


@pytest.mark.parametrize(
  'changes',
  [
    dict(dropout=0.2, dropatt=0.3),
    dict(dropout=0.2, dropatt=0.3, pre_norm=True, untie_biases=True),
    dict(dropout=0.2, dropatt=0.3, locked_dropout=True, word_dropout=0.1),
    dict(dropout=0.2, dropout_embed=0.5, dropout_final=0.0),
    dict(dropout=0.0, dropout_final=0.4, locked_dropout=True, pre_norm=True),
  ],
)
def test_places_of_dropout(changes, monkeypatch):
  """With a plain factor instead of dropout the direct formula still holds.

  A place left out, added or moved past a sum or a norm would show: the
  factor is 1 + rate; where a mask is shared, it depends on the feature; for
  words, on the word.
  """

  def fake(x, rate, key, shared=()):
    if shared or x.ndim == 1:
      return x * (1 + rate * (1 + jnp.arange(x.shape[-1])))
    return x * (1 + rate)

  monkeypatch.setattr(attention, 'dropout', fake)
  model = make(**changes)
  own = {
    'words': model.config.word_dropout,
    'probabilities': model.config.dropatt,
    'embeddings': changes.get('dropout_embed', model.config.dropout),
    'final states': changes.get('dropout_final', model.config.dropout),
  }
  params = direct.random_params(model)
  tokens, targets = text(1, T)
  places = set()

  def drop(place, x):
    places.add(place)
    rate = own.get(place, model.config.dropout)
    if place == 'words':
      return x * (1 + rate * (1 + np.arange(V)[:, None]))
    if model.config.locked_dropout and place not in (
      'positions',
      'probabilities',
    ):
      return x * (1 + rate * (1 + np.arange(x.shape[-1])))
    return x * (1 + rate)

  with jax.enable_x64(True):
    out = apply(
      model,
      {'params': params},
      tokens[0],
      targets[0],
      model.init_memory(B),
      train=True,
      rngs={'dropout': jax.random.key(0)},
    )
  for b in range(B):
    memory = direct.init_memory(model)
    logits, _ = direct.segment(model, params, tokens[0, b], memory, drop)
    nll = direct.nll(logits, targets[0, b])
    np.testing.assert_allclose(out.nll[b], nll, rtol=0, atol=1e-10)
  assert len(places) == 8


def test_every_dropout_has_its_own_key(monkeypatch):
  """Four places outside the layers, four in each; the same when unrolled."""
  seen = []
  note = lambda shape, key: seen.append((shape, tuple(np.ravel(key))))

  def watched(x, rate, key, shared=()):
    if rate:
      record = functools.partial(note, x.shape)
      jax.debug.callback(record, jax.random.key_data(key))
    return x

  monkeypatch.setattr(attention, 'dropout', watched)
  model = make(dropout=0.2, dropatt=0.3, word_dropout=0.1, dtype='float32')
  params = jax.tree.map(np.float32, direct.random_params(model))
  tokens, targets = text(1, T)
  args = {'params': params}, tokens[0], targets[0], model.init_memory(B)
  runs = []
  for unroll in 1, N:
    seen.clear()
    keys = {'dropout': jax.random.key(0)}
    unrolled = model.clone(config=model.config.replace(unroll=unroll))
    apply(unrolled, *args, train=True, rngs=keys)
    jax.effects_barrier()
    runs.append(sorted(seen))
  assert runs[0] == runs[1]
  S, D, F, H = (
    T + model.config.mem_len,
    model.config.d_model,
    model.config.d_ff,
    model.config.n_head,
  )
  # Embeddings and final states; attention and feed-forward output.
  expected = [(B, T, D)] * (2 + 2 * N)
  expected += [(V,), (S, D)] + [(B, H, T, S)] * N + [(B, T, F)] * N
  assert [shape for shape, _ in runs[0]] == sorted(expected)
  assert len({key for _, key in runs[0]}) == 4 + 4 * N


def test_dropout_is_for_training():
  model = make(
    dropout=0.3,
    dropatt=0.3,
    word_dropout=0.3,
    dropout_embed=0.4,
    dropout_final=0.4,
    locked_dropout=True,
    dtype='float32',
  )
  plain = make(dtype='float32')
  params = jax.tree.map(np.float32, direct.random_params(model))
  tokens, targets = text(1, T)
  args = {'params': params}, tokens[0], targets[0], model.init_memory(B)
  nll = apply(plain, *args, train=False).nll
  np.testing.assert_array_equal(apply(model, *args, train=False).nll, nll)

  @jax.jit
  def run(key):
    return model.apply(*args, train=True, rngs={'dropout': key}).nll

  one, two = run(jax.random.key(1)), run(jax.random.key(2))
  np.testing.assert_array_equal(one, run(jax.random.key(1)))
  assert (one != nll).all() and (one != two).all()


@pytest.mark.parametrize(
  'memory_init', ['empty', pytest.param('zeros', marks=pytest.mark.slow)]
)
def test_gradient_of_a_deep_model_without_words(memory_init):
  """No state is exactly zero, however many words are dropped."""
  deep = functools.partial(
    make,
    d_model=64,
    d_head=32,
    d_ff=64,
    word_dropout=0.9,
    memory_init=memory_init,
    dtype='float32',
  )
  layers = 14
  model = deep(n_layer=layers)
  tokens, targets = text(1, T)
  memory = model.init_memory(B)
  # By layers: all draws in one program take longer than all that follows.
  init = jax.jit(functools.partial(base.init_params, deep(n_layer=1)))
  drawn = [init(jax.random.key(i)) for i in range(layers)]
  params = drawn[0] | {
    f'layers_{i}': x['layers_0'] for i, x in enumerate(drawn)
  }

  @jax.jit
  def norm(key):
    def loss(params):
      args = {'params': params}, tokens[0], targets[0], memory
      return model.apply(*args, train=True, rngs={'dropout': key}).nll.mean()

    return optax.tree.norm(jax.grad(loss)(params))

  norms = [float(norm(jax.random.key(i))) for i in range(5)]
  assert max(norms) < 100, norms


@pytest.mark.parametrize('size, change', [(2.0, 3.0), (2.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize('lengths', [None, (T, 2)])
def test_aux(lengths, size, change, monkeypatch):
  """Of the direct formula's final states that are scored, entry by entry."""

  def fake(x, rate, key, shared=()):
    return x * (1 + rate)

  monkeypatch.setattr(attention, 'dropout', fake)
  weights = dict(activation_reg=size, temporal_activation_reg=change)
  model = make(dropout_final=0.4, **weights)
  params = direct.random_params(model)
  tokens, targets = text(1, T)
  scored = np.arange(T) < np.array(lengths or [T] * B)[:, None]
  run = functools.partial(
    apply,
    model,
    {'params': params},
    tokens[0],
    np.where(scored, targets[0], -1),
    lengths=None if lengths is None else np.array(lengths, np.int32),
  )
  with jax.enable_x64(True):
    memory = model.init_memory(B)
    out = run(memory, train=True, rngs={'dropout': jax.random.key(0)})
    assert not run(memory, train=False).aux.any()
  final = []

  def drop(place, x):
    if place == 'final states':
      final.append(x)
    return x

  for b, n in enumerate(lengths or [T] * B):
    memory = direct.init_memory(model)
    direct.segment(model, params, tokens[0, b, :n], memory, drop)
  squares = np.concatenate([(1.4 * x) ** 2 for x in final])
  changes = np.concatenate([(x[1:] - x[:-1]) ** 2 for x in final])
  expected = size * squares.mean() + change * changes.mean()
  aux = out.aux / [scored.sum(), scored[:, 1:].sum()]
  np.testing.assert_allclose(aux.sum(), expected, rtol=1e-10)
