"""Dropout of a Transformer-XL, and the penalties on its final states."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import direct
from tests.models.small import B, N, T, V, apply, make, text
from txl_jax import attention
from txl_jax.models import base

# All dropout of the published model of Penn Treebank, at rates that differ.
PTB = dict(
  tie_positions=True, word_dropout=0.1, dropped_words='tiny', dropout_embed=0.6,
  dropout_table=0.7, locked_table=True, dropout_qkv=0.15, dropatt=0.3,
  dropout=0.2, dropout_final=0.5, locked_dropout=True,
)  # fmt: skip


@pytest.mark.default_cases('changes7')
@pytest.mark.parametrize(
  'changes',
  [
    dict(dropout=0.2, dropatt=0.3),
    dict(dropout=0.2, dropatt=0.3, pre_norm=True, untie_biases=True),
    dict(dropout=0.2, dropatt=0.3, locked_dropout=True, word_dropout=0.1),
    dict(dropout=0.2, dropout_embed=0.5, dropout_final=0.0),
    dict(dropout=0.0, dropout_final=0.4, locked_dropout=True, pre_norm=True),
    dict(dropout=0.0, dropout_qkv=0.3, locked_dropout=True),
    dict(dropout=0.1, dropout_qkv=0.3, tie_positions=True, unroll=N),
    PTB,
    dict(dropout_table=0.4, dropout_final=0.5, dropout_final_plain=0.2),
    dict(dropatt=0.3),
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
    'final states, plain': model.config.dropout_final_plain,
    'positions': changes.get('dropout_table', model.config.dropout),
  }
  of_heads = {f'position {x}' for x in ('queries', 'keys')}
  of_heads |= {'queries', 'keys', 'values'}
  own |= dict.fromkeys(of_heads, model.config.dropout_qkv)
  # r_0 is alone, so that nothing is shared.
  plain = {'probabilities', 'final states, plain', 'position queries'}
  locked = {'positions': model.config.locked_table}
  locked |= dict.fromkeys(plain, False)
  params = direct.random_params(model)
  tokens, targets = text(1, T)
  places = set()

  def drop(place, x):
    places.add(place)
    rate = own.get(place, model.config.dropout)
    if place == 'words':
      return x * (1 + rate * (1 + np.arange(V)[:, None]))
    if locked.get(place, model.config.locked_dropout):
      return x * (1 + rate * (1 + np.arange(x.shape[-1])))
    return x * (1 + rate)

  with jax.enable_x64(True):
    args = {'params': params}, tokens[0], targets[0], model.init_memory(B)
    out = apply(model, *args, train=True, rngs={'dropout': jax.random.key(0)})
  for b in range(B):
    memory = direct.init_memory(model)
    logits, _ = direct.segment(model, params, tokens[0, b], memory, drop)
    nll = direct.nll(logits, targets[0, b])
    np.testing.assert_allclose(out.nll[b], nll, rtol=0, atol=1e-10)
  assert len(places) == (14 if model.config.tie_positions else 12)


S, D, F, H, K = 9, 8, 10, 2, 3
# The shape and rate of each mask: those for all layers, those of each layer.
PLAIN = (
  [((V,), 0.1), ((1, S, D), 0.2), ((B, T, D), 0.2), ((B, T, D), 0.2)],
  [((B, H, T, S), 0.3), ((B, T, F), 0.2), *[((B, T, D), 0.2)] * 2],
)
LOCKED = (
  [((V,), 0.1), ((1, 1, D), 0.7), ((B, 1, D), 0.6), ((B, 1, D), 0.5)],
  # Queries, keys and values of words, then queries and keys of positions.
  [
    *[((B, 1, H, K), 0.15)] * 3,
    *(((H, K), 0.15), ((1, H, K), 0.15)),
    *(((B, H, T, S), 0.3), ((B, 1, F), 0.2)),
    *[((B, 1, D), 0.2)] * 2,
  ],
)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'changes, masks',
  [
    (dict(dropout=0.2, dropatt=0.3, word_dropout=0.1), PLAIN),
    (PTB, LOCKED),
    (
      dict(dropout=0.0, dropout_final=0.5, dropout_final_plain=0.2)
      | dict(dropout_qkv=0.2, locked_dropout=True),
      ([((B, T, D), 0.2), ((B, 1, D), 0.5)], [((B, 1, H, K), 0.2)] * 3),
    ),
  ],
)
def test_every_mask_has_its_own_key(changes, masks, monkeypatch):
  """And its shape and rate; the same when unrolled."""
  seen = []

  def watched(x, rate, key, shared=()):
    if rate:
      shape = tuple(1 if i in shared else n for i, n in enumerate(x.shape))
      note = lambda key: seen.append((shape, rate, tuple(np.ravel(key))))
      jax.debug.callback(note, jax.random.key_data(key))
    return x

  monkeypatch.setattr(attention, 'dropout', watched)
  model = make(**changes, dtype='float32')
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
  once, each = masks
  expected = sorted(once + each * N)
  assert [(shape, rate) for shape, rate, _ in runs[0]] == expected
  assert len({key for *_, key in runs[0]}) == len(expected)


@pytest.mark.thorough
def test_dropout_is_for_training():
  rates = dict(dropout=0.3, dropatt=0.3, word_dropout=0.3, dropout_qkv=0.3)
  rates |= dict(dropout_embed=0.4, dropout_final=0.4, dropout_final_plain=0.3)
  model = make(**rates, locked_dropout=True, dtype='float32')
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


def test_tiny_words_are_scaled_like_the_others():
  """A dropped row of the table is 1e-12, also that of a first position."""
  more = dict(word_dropout=0.999, dropped_words='tiny', dtype='float32')
  model = make(**more)
  params = jax.tree.map(np.float32, direct.random_params(model))
  (tokens,), _ = text(1, T)
  rngs = {'dropout': jax.random.key(0)}
  embed = lambda model: model.vocabulary.embed(tokens, train=True)
  x = model.apply({'params': params}, rngs=rngs, method=embed)
  np.testing.assert_allclose(x, 1e-12 * math.sqrt(D), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'memory_init', ['empty', pytest.param('zeros', marks=pytest.mark.slow)]
)
def test_gradient_of_a_deep_model_without_words(memory_init):
  """No state is exactly zero, however many words are dropped."""
  more = dict(word_dropout=0.9, memory_init=memory_init, dtype='float32')
  deep = functools.partial(make, d_model=64, d_head=32, d_ff=64, **more)
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


@pytest.mark.default_cases('lengths1-0.0-0.7-True')
@pytest.mark.parametrize(
  'size, change, dropped',
  [(0.5, 0.7, True), (0.5, 0.0, True), (0.0, 0.7, True), (0.5, 0.7, False)],
)
@pytest.mark.parametrize('lengths', [None, (T, 2)])
def test_aux(lengths, size, change, dropped, monkeypatch):
  """Of the direct formula's final states that are scored, entry by entry."""

  def fake(x, rate, key, shared=()):
    return x * (1 + rate)

  monkeypatch.setattr(attention, 'dropout', fake)
  weights = dict(activation_reg=size, temporal_activation_reg=change)
  model = make(dropout_final=0.4, activation_reg_dropped=dropped, **weights)
  params = direct.random_params(model)
  tokens, targets = text(1, T)
  scored = np.arange(T) < np.array(lengths or [T] * B)[:, None]
  segment = tokens[0], np.where(scored, targets[0], -1)
  real = np.array(lengths, np.int32) if lengths else None
  with jax.enable_x64(True):
    args = {'params': params}, *segment, model.init_memory(B)
    run = functools.partial(apply, model, *args)
    key = {'dropout': jax.random.key(0)}
    out = run(lengths=real, train=True, rngs=key)
    assert not run(lengths=real, train=False).aux.any()
  final = []

  def drop(place, x):
    if place == 'final states':
      final.append(x)
    return x

  for b, n in enumerate(lengths or [T] * B):
    memory = direct.init_memory(model)
    direct.segment(model, params, tokens[0, b, :n], memory, drop)
  squares = np.concatenate([((1.4 if dropped else 1) * x) ** 2 for x in final])
  changes = np.concatenate([(x[1:] - x[:-1]) ** 2 for x in final])
  expected = size * squares.mean() + change * changes.mean()
  aux = np.asarray(out.aux) / np.array([scored.sum(), scored[:, 1:].sum()])
  np.testing.assert_allclose(aux.sum(), expected, rtol=1e-10)
