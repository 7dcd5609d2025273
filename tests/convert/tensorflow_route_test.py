"""Checkpoints of TensorFlow in our model, against the formulas written out.

golden/make_tensorflow.py wrote the checkpoints with TensorFlow and computed the
nll in float64: zero memory that is attended to, M + 1 keys, its epsilon.
"""

import jax
import numpy as np
import pytest

from tests.convert.tensorflow_test import CASES, GOLDEN, load
from txl_jax import models
from txl_jax.convert import read_weights
from txl_jax.convert.formats import torch_file
from txl_jax.convert.versions import layout, original, tensorflow


def told(c):
  """What flags say of a model."""
  names = 'tgt_len', 'mem_len', 'clamp_len', 'same_length'
  return {name: c[name] for name in names}


def convert(name):
  c = load(name)[1]
  return c, read_weights.read(GOLDEN / f'{name}.ckpt-0', flag_options=told(c))


def nll(found, name, **fields):
  """float32 [segments, B, T], memory carried from segment to segment."""
  ids = np.load(GOLDEN / f'{name}.npz')['ids'].astype(np.int32)
  model = models.build({**found.fields, **fields}, len(found.vocabulary))
  memory, out = model.init_memory(ids.shape[1]), []
  run = jax.jit(
    lambda *args: model.apply({'params': found.params}, *args, train=False)
  )
  for segment in ids:
    made = run(segment[:, :-1], segment[:, 1:], memory)
    memory = made.memory
    out.append(made.nll)
  return np.array(out)


# What the figures of the TensorFlow code take, by its own source.
SWITCHES = {
  'memory_init': 'zeros',
  'same_length': 'M+1',
  'tail_order': 'ascending',
  'ln_eps': 1e-12,
}


@pytest.mark.default_cases('tf_plain')
@pytest.mark.parametrize('name', CASES)
def test_figures_are_those_of_the_formulas(name):
  c, found = convert(name)
  expected = np.load(GOLDEN / f'{name}.npz')['nll']
  np.testing.assert_allclose(nll(found, name), expected, rtol=1e-6, atol=1e-5)
  switches = dict(SWITCHES)
  if not c['same_length']:
    del switches['same_length']
  if not c['cutoffs']:
    del switches['tail_order']
  assert {k: found.fields[k] for k in switches} == switches


# Bins of their own, and of one table.
@pytest.mark.thorough
@pytest.mark.parametrize('name', ['tf_div4', 'tf_one_width'])
def test_the_pytorch_route_has_the_same_parameters(name, tmp_path):
  """A state dict in a .pt, its tails in the order of the PyTorch code."""
  c, found = convert(name)
  variables, _ = load(name)
  state = tensorflow.to_original(variables)
  # As its whole state dicts have it.
  for tensor, of in layout.copies(found.section).items():
    state.setdefault(tensor, state[of])
  path = tmp_path / 'model.pt'
  torch_file.write(path, original.turn_tails(state))
  more = {'cutoffs': c['cutoffs']} if c['cutoffs'] else {}
  other = read_weights.read(path, flag_options={**told(c), **more})
  assert other.fields['tail_order'] == (
    'descending' if c['cutoffs'] else 'ascending'
  )
  here, there = (
    jax.tree_util.tree_flatten_with_path(x.params)[0] for x in (found, other)
  )
  assert [path for path, _ in here] == [path for path, _ in there]
  for (path, x), (_, y) in zip(here, there):
    turned = path[-1].key.startswith('tail_')
    np.testing.assert_array_equal(x, y[::-1] if turned else y, f'{path}')
  # With the switches of the TensorFlow code it has the same figures.
  same = {k: found.fields[k] for k in SWITCHES}
  same['tail_order'] = other.fields['tail_order']
  here, there = nll(found, name), nll(other, name, **same)
  np.testing.assert_allclose(here, there, rtol=1e-6, atol=1e-6)
