"""Recurrent models by hand: one row, one position, one layer after the other.

`draws` are the factors of dropout, in the order in which a model draws them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests import direct
from tests.models.every import B, V
from txl_jax import attention
from txl_jax.models import base

# All kinds of dropout at once.
DROPS = dict(dropout=0.3, dropout_embed=0.2, dropout_final=0.4)
DROPS |= dict(word_dropout=0.25, weight_drop=0.5)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


class Row:
  """One row of a batch, as it is read by hand.

  `step` is a function (parameters of a layer, its input [J], its state, what
  it draws, position) -> h [H], state; a state of None is that of the start.
  `kinds` are what every layer draws.
  """

  def __init__(self, model, params, step, kinds, b=0, draws=()):
    self.params, self.step, self.b = params, step, b
    self.states = [None] * model.config.n_layer
    names = ['words', 'embeddings']
    for n in range(len(self.states)):
      names += [f'between {n}'] * (n > 0) + [f'{kind} {n}' for kind in kinds]
    names += ['final']
    assert len(draws) in (0, len(names))
    self.draws = dict(zip(names, draws))

  def drop(self, name, t):
    """Factors of what is [B, T, any]."""
    return self.draws[name][self.b, t] if self.draws else 1.0

  def read(self, tokens):
    """int [T] -> logits [T, V]."""
    p, out = self.params['vocabulary'], []
    for t, token in enumerate(tokens):
      x = p['table'][token] * self.drop('embeddings', t)
      if self.draws and t:  # the first word is never dropped
        x = x * self.draws['words'][token]
      for n, state in enumerate(self.states):
        if n:
          x = x * self.drop(f'between {n}', t)
        of_layer = self.params[f'layers_{n}']
        own = {
          k.split()[0]: x for k, x in self.draws.items() if k[-1] == f'{n}'
        }
        x, self.states[n] = self.step(of_layer, x, state, own, t, self.b)
      x = x * self.drop('final', t)
      out.append(x @ p['table'].T + p['bias'])
    return np.array(out)


def assert_as_by_hand(model, params, step, kinds):
  """Three segments, the second with padding, are one text for every row."""
  rng = np.random.default_rng(0)
  parts = []
  for T, lengths in (3, None), (5, (5, 2, 0)), (1, None):
    tokens, targets = rng.integers(0, V, [2, B, T], np.int32)
    lengths = None if lengths is None else np.array(lengths, np.int32)
    parts.append((tokens, targets, lengths))
  run = jax.jit(functools.partial(model.apply, {'params': params}, train=False))
  memory, found = model.init_memory(B), []
  for tokens, targets, lengths in parts:
    out = run(tokens, targets, memory, lengths=lengths)
    memory = out.memory
    found.append(out.nll)
  for b in range(B):
    row = Row(model, params, step, kinds, b)
    for (tokens, targets, lengths), got in zip(parts, found):
      n = tokens.shape[1] if lengths is None else lengths[b]
      if n:
        expected = direct.nll(row.read(tokens[b, :n]), targets[b, :n])
        np.testing.assert_allclose(got[b, :n], expected, rtol=0, atol=1e-10)
    cells = [state.cell[b] for state in memory]
    for cell, state in zip(cells, row.states, strict=True):
      np.testing.assert_allclose(cell, state[0], rtol=0, atol=1e-10)


def assert_draws(model, params, step, kinds, monkeypatch):
  """Training is as by hand with the masks that it drew; they are returned."""
  tokens, targets = np.random.default_rng(1).integers(0, V, [2, B, 6], np.int32)
  traced, dropout = [], attention.dropout

  def watched(x, rate, key, shared=()):
    traced.append(dropout(jnp.ones(x.shape), rate, key, shared))
    return dropout(x, rate, key, shared)

  monkeypatch.setattr(attention, 'dropout', watched)

  @jax.jit
  def run(memory):
    out = model.apply(
      {'params': params}, tokens, targets, memory, train=True,
      rngs={'dropout': jax.random.key(5)},
    )  # fmt: skip
    return out.nll, traced

  found, draws = jax.tree.map(np.asarray, run(model.init_memory(B)))
  for b in range(B):
    logits = Row(model, params, step, kinds, b, draws).read(tokens[b])
    expected = direct.nll(logits, targets[b])
    np.testing.assert_allclose(found[b], expected, rtol=0, atol=1e-10)
  return Row(model, params, step, kinds, 0, draws).draws


def assert_gradient(model, params):
  """By finite differences, each parameter along a direction of its own."""
  rng = np.random.default_rng(2)
  tokens, targets = rng.integers(0, V, [2, B, 5], np.int32)
  memory = jax.tree.map(
    lambda x: rng.normal(size=x.shape), model.init_memory(B)
  )
  lengths = np.array([5, 3, 4], np.int32)

  @jax.jit
  @jax.value_and_grad
  def loss(params):
    out = model.apply(
      {'params': params}, tokens, targets, memory, train=False, lengths=lengths
    )
    return jnp.sum(jnp.where(np.arange(5) < lengths[:, None], out.nll, 0))

  value = lambda params: loss(params)[0]
  gradients = loss(params)[1]
  assert all(np.any(x) for x in jax.tree.leaves(gradients))
  direct.assert_slopes(value, params, gradients, step=1e-5, rtol=1e-6)


def assert_slow_steps_add_up(model, gates, expected):
  """In bfloat16, where the steps of a state are too small for it.

  The one layer has these biases and else zeros; `expected` is its state after
  400 positions.
  """
  shapes = base.param_shapes(model)
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params['layers_0']['bias'] += np.array(gates, np.float32)[:, None]
  tokens, memory = np.zeros([B, 400], np.int32), model.init_memory(B)
  run = jax.jit(functools.partial(model.apply, method='states'))
  _, new = run({'params': params}, tokens, memory)
  for x, y in zip(*map(jax.tree.leaves, (memory, new)), strict=True):
    assert x.dtype == y.dtype
  np.testing.assert_allclose(new[0].cell, expected, rtol=1e-3)
