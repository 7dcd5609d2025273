"""Our model with Hugging Face weights against what Hugging Face computed.

golden/make_hf.py made the files and says what is in them.
"""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax import models
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


def our_model(config):
  fields = dict(
    name='transformer_xl',
    n_layer=config['n_layer'],
    d_model=config['d_model'],
    n_head=config['n_head'],
    d_head=config['d_head'],
    d_ff=config['d_inner'],
    mem_len=config['mem_len'],
    untie_biases=config['untie_r'],
    pre_norm=config['pre_lnorm'],
    same_length='M' if config['same_length'] else 'off',
    clamp_len=max(config['clamp_len'], 0),
    memory_init='zeros',
    ln_eps=1e-5,
    tie_weights=config.get('tie_word_embeddings', True),
    cutoffs=tuple(config['cutoffs']),
    d_embed=config['d_embed'],
    div_val=config['div_val'],
    tie_projs=tuple(config['tie_projs']),
    tail_order='ascending',
  )
  return models.build(fields, config['vocab_size'])


def our_layer(config, weights, n):
  """Parameters of layer n; torch keeps its matrices as [out, in]."""
  D, H, K = config['d_model'], config['n_head'], config['d_head']
  get = lambda name: weights[f'transformer.layers.{n}.{name}']
  q, k, v = np.split(get('dec_attn.qkv_net.weight'), 3)
  heads = lambda w: {'kernel': w.T.reshape(D, H, K)}
  dense = lambda name: {
    'kernel': get(f'{name}.weight').T,
    'bias': get(f'{name}.bias'),
  }
  norm = lambda name: {
    'norm': {'scale': get(f'{name}.weight'), 'bias': get(f'{name}.bias')}
  }
  layer = {
    'attention': {
      'q': heads(q),
      'k': heads(k),
      'v': heads(v),
      'r': heads(get('dec_attn.r_net.weight')),
      'o': {'kernel': get('dec_attn.o_net.weight').T.reshape(H, K, D)},
    },
    'ff': {'w1': dense('pos_ff.CoreNet.0'), 'w2': dense('pos_ff.CoreNet.3')},
    'norm1': norm('dec_attn.layer_norm'),
    'norm2': norm('pos_ff.layer_norm'),
  }
  if config['untie_r']:
    layer['biases'] = {
      'u': get('dec_attn.r_w_bias'),
      'v': get('dec_attn.r_r_bias'),
    }
  return layer


def our_vocabulary(config, weights):
  """Parameters of the embedding and the softmax."""
  tables = 'transformer.word_emb.emb_layers'
  if not config['cutoffs']:
    return {
      'table': weights[f'{tables}.0.weight'],
      'bias': weights['crit.out_layers.0.bias'],
    }
  edges = [0, *config['cutoffs'], config['vocab_size']]
  params = {
    'tail_weights': weights['crit.cluster_weight'],
    'tail_biases': weights['crit.cluster_bias'],
  }
  for i, (start, stop) in enumerate(itertools.pairwise(edges)):
    # Words of one width lie in one matrix there.
    whole = config['div_val'] == 1
    part = lambda name, i=i, start=start, stop=stop, whole=whole: (
      weights[name.format(0)][start:stop] if whole else weights[name.format(i)]
    )
    params[f'table_{i}'] = part(tables + '.{}.weight')
    params[f'bias_{i}'] = part('crit.out_layers.{}.bias')
    if not config.get('tie_word_embeddings', True):
      params[f'output_{i}'] = part('crit.out_layers.{}.weight')
    for ours, theirs in (
      ('proj', 'transformer.word_emb.emb_projs'),
      ('out_proj', 'crit.out_projs'),
    ):
      if f'{theirs}.{i}' in weights:
        params[f'{ours}_{i}'] = weights[f'{theirs}.{i}'].T
  return params


def our_params(config, weights):
  params = {'vocabulary': our_vocabulary(config, weights)}
  for n in range(config['n_layer']):
    params[f'layers_{n}'] = our_layer(config, weights, n)
  if not config['untie_r']:
    params['biases'] = {
      'u': weights['transformer.r_w_bias'],
      'v': weights['transformer.r_r_bias'],
    }
  return params


def test_files_of_all_cases():
  assert len(FILES) == 10


@pytest.mark.default_cases('hf_untied')
@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_hugging_face(file):
  header, weights, golden = load(file)
  model = our_model(header['config'])
  params = our_params(header['config'], weights)
  B = golden['ids'].shape[1]
  memory = model.init_memory(B)
  # Same tree as a fresh model: no weight is missing or left over.
  tokens = jnp.zeros([B, 1], jnp.int32)
  fresh = jax.eval_shape(
    lambda: model.init(jax.random.key(0), tokens, tokens, memory, train=False)
  )['params']
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(params) == shapes(fresh)

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
def over_ring():
  """A model whose memory is a ring, its variables, and a text far longer."""
  (file,) = (file for file in FILES if file.stem == 'hf_ring')
  header, weights, golden = load(file)
  segments, B, T, _ = golden['log_probs'].shape
  model = our_model(header['config']).at_test_time(longest=T)
  slots = model.init_memory(B).states[0][0].shape[1]
  assert segments * T > 3 * slots and len(golden['more_ids']) > 3 * slots
  params = our_params(header['config'], weights)
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
