"""Our model with Hugging Face weights against what Hugging Face computed.

golden/make_hf.py made the files and says what is in them.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from txl_jax import models
from txl_jax.convert import read_weights
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base
from txl_jax.models.transformer_xl import Memory

FILES = sorted((pathlib.Path(__file__).parent / 'golden').glob('hf_*.npz'))


def load(file):
  """Header, weights by name, and the arrays of a golden file."""
  arrays = dict(np.load(file))
  header = json.loads(str(arrays.pop('header')))
  sizes = [int(np.prod(shape)) for shape in header['shapes'].values()]
  pieces = np.split(arrays.pop('weights'), np.cumsum(sizes)[:-1])
  weights = {
    name: piece.reshape(shape).astype(np.float32)
    for (name, shape), piece in zip(header['shapes'].items(), pieces)
  }
  return header, weights, arrays


def converted(file, folder):
  """Our model with the parameters of a golden file, and its arrays."""
  header, weights, arrays = load(file)
  safetensors.numpy.save_file(weights, folder / 'model.safetensors')
  (folder / 'config.json').write_text(json.dumps(header['config']))
  found = read_weights.read(folder)
  model = models.build(found.fields, header['config']['vocab_size'])
  return model, found.params, arrays


def test_files_of_all_cases():
  assert len(FILES) == 10


@pytest.mark.default_cases('hf_untied')
@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_hugging_face(file, tmp_path):
  model, params, golden = converted(file, tmp_path)
  memory = model.init_memory(golden['ids'].shape[1])
  # Same tree as a fresh model: no weight is missing or left over.
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(params) == shapes(base.param_shapes(model))

  @jax.jit
  def score(inputs, targets, memory):
    variables = {'params': params}
    out = model.apply(variables, inputs, targets, memory, train=False)
    logits, _ = model.apply(variables, inputs, memory, method='logits')
    return jax.nn.log_softmax(logits), out

  ids = golden['ids'].astype(np.int32)
  inputs, targets = ids[..., :-1], ids[..., 1:]
  nll = -np.take_along_axis(golden['log_probs'], targets[..., None], -1)
  for s, log_probs in enumerate(golden['log_probs']):
    ours, out = score(inputs[s], targets[s], memory)
    np.testing.assert_allclose(ours, log_probs, rtol=0, atol=1e-5)
    np.testing.assert_allclose(out.nll, nll[s, ..., 0], rtol=0, atol=1e-5)
    memory = out.memory
  np.testing.assert_allclose(memory.states, golden['memory'], rtol=0, atol=1e-5)
  # The stored numbers need attended zero states: empty memory misses them.
  empty = Memory(memory.states * 0, memory.filled * 0)
  ours, _ = score(inputs[0], targets[0], empty)
  assert np.abs(ours - golden['log_probs'][0]).max() > 0.01


@pytest.fixture(scope='module')
def over_ring(tmp_path_factory):
  """A model whose memory is a ring, its variables, and a text far longer."""
  (file,) = (file for file in FILES if file.stem == 'hf_ring')
  model, params, golden = converted(file, tmp_path_factory.mktemp('hf_ring'))
  segments, _, T, _ = golden['log_probs'].shape
  model = model.at_test_time(longest=T)
  slots = model.init_memory(1).states[0][0].shape[1]
  assert segments * T > 3 * slots and len(golden['more_ids']) > 3 * slots
  return model, base.freeze(model, params), golden


def close(logits, log_probs):
  found = jax.nn.log_softmax(logits)
  np.testing.assert_allclose(found, log_probs, rtol=0, atol=1e-5)


@pytest.mark.default_cases('11')
@pytest.mark.parametrize('together', [1, 11])
def test_scoring_while_the_ring_turns(over_ring, together):
  """A segment in each call, or all of them in one."""
  model, variables, golden = over_ring
  segments, B, T, V = golden['log_probs'].shape

  @jax.jit
  def read(tokens, memory):
    return model.apply(variables, tokens, memory, method='logits')

  rows = np.moveaxis(golden['ids'][..., :-1], 0, 1).reshape(B, -1)
  expected = np.moveaxis(golden['log_probs'], 0, 1).reshape(B, -1, V)
  memory, n = model.init_memory(B), together * T
  for start in range(0, segments * T, n):
    part = slice(start, start + n)
    logits, memory = read(rows[:, part].astype(np.int32), memory)
    close(logits, expected[:, part])


@pytest.mark.thorough
@pytest.mark.parametrize('chunk', [1, 5, 16])
def test_writing_while_the_ring_turns(over_ring, chunk):
  """In chunks that a ring takes back tokens of, and in longer ones."""
  model, variables, golden = over_ring
  T = golden['log_probs'].shape[2]
  rows = np.concatenate(golden['ids'][..., :-1], axis=1)
  state = decoding.prefill(model, variables, rows, segment_len=T)
  close(state.logits, golden['log_probs'][-1, :, -1])
  n, at = len(golden['more_ids']), 0
  settings = dict(max_new_tokens=n, seed=0, chunk=chunk)
  greedy = Sampling(temperature=0)
  for tokens, after in decoding.decode(
    model, variables, state, sampling=greedy, **settings
  ):
    expected = golden['more_ids'][at : at + chunk].T
    np.testing.assert_array_equal(tokens, expected)
    at += tokens.shape[1]
    close(after.logits, golden['more_log_probs'][at - 1])
  assert at == n
