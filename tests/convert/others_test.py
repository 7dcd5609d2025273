"""Weights as users of Hugging Face, Lightning and fairseq have saved them."""

import json
import pathlib
import pickle
import shutil

import numpy as np
import pytest
import safetensors.numpy

from tests.convert import program
from tests.convert.golden import make_back
from tests.convert.hugging_face_test import change, close, copy
from tests.convert.original_test import nll
from tests.refusing import refused
from txl_jax.convert import read_weights, vocabularies, write_weights
from txl_jax.convert import weights as convert_weights
from txl_jax.convert.formats import safe_file, torch_file
from txl_jax.convert.versions import hugging_face
from txl_jax.data.vocabularies import subwords
from txl_jax.data.vocabularies.words import Words
from txl_jax.runs import workdir

GOLDEN = pathlib.Path(__file__).parent / 'golden'
HF = GOLDEN / 'hf_div4'
FLAGS = {'mem_len': 6, 'clamp_len': 4, 'same_length': True, 'pre_lnorm': False}
# `losses` of TransfoXLLMHeadModel (4.35.2, torch 2.13), with the labels being
# the first 12 ids of hf_div4/expected.npz, row 0.
LOSSES = (
  2.39557, 3.93097, 7.4904, 4.89147, 8.46308, 8.07504, 7.0652, 9.55649,
  9.21421, 9.78928, 6.66993,
)  # fmt: skip


def tensors():
  return safetensors.numpy.load_file(HF / 'model.safetensors')


@pytest.mark.parametrize(
  'prefix', ['', '_orig_mod.', 'decoder.model.', 'model._orig_mod.module.']
)
def test_a_bare_state_dict_with_flags_and_a_prefix(prefix, tmp_path):
  state = {f'{prefix}{name}': x for name, x in tensors().items()}
  torch_file.write(tmp_path / 'x.pt', state)
  found = read_weights.read(tmp_path / 'x.pt', FLAGS)
  assert found.warnings[-1] == 'not specified, guessed: tgt_len'
  assert found.fields['memory_init'] == 'zeros'
  if prefix == 'decoder.model.':
    expected = dict(np.load(HF / 'expected.npz'))
    close(found, expected['ids'][:1], expected['nll'][:1])
  table = found.params['vocabulary']['table_0']
  expected = tensors()['transformer.word_emb.emb_layers.0.weight']
  np.testing.assert_array_equal(table, expected)


def test_files_beside_a_state_dict_that_are_not_its_own(tmp_path):
  program.write_state(tmp_path, 'default')
  (tmp_path / 'config.json').write_text('{"model_type": "bert"}')
  (tmp_path / 'state.pt.index').touch()
  found = read_weights.read(tmp_path / 'state.pt', FLAGS)
  assert found.origin.startswith('the original PyTorch code, state.pt, sha')


def test_a_model_of_the_original_within_another_is_not_hugging_faces(tmp_path):
  state = {x.removeprefix('transformer.'): y for x, y in tensors().items()}
  for name in [x for x in state if 'emb_layers' in x]:
    state[name.replace('word_emb.emb', 'crit.out')] = state[name]
  for i in range(1, 3):
    state[f'crit.out_projs.{i}'] = state[f'word_emb.emb_projs.{i}']
  bare = {f'transformer.{name}': x for name, x in state.items()}
  torch_file.write(tmp_path / 'x.pt', bare)
  found = read_weights.read(tmp_path / 'x.pt', FLAGS)
  assert found.fields['tail_order'] == 'descending'
  assert found.fields['memory_init'] == 'empty'


def test_what_is_not_of_the_model_is_named(tmp_path):
  state = {f'model.{name}': x for name, x in tensors().items()}
  torch_file.write(tmp_path / 'x.pt', state | {'loss.weight': np.ones(2)})
  said = refused(read_weights.read, tmp_path / 'x.pt', FLAGS)
  assert said.endswith('unexpected: loss.weight')


def sharded(folder, of):
  items, index = [*tensors().items()], {}
  stem, ending = of.split('.')
  write = torch_file.write if ending == 'bin' else safe_file.write
  for i in range(2):
    part = dict(items[i::2])
    file = f'{stem}-{i + 1:05}-of-00002.{ending}'
    write(folder / file, part)
    index |= dict.fromkeys(part, file)
  path = folder / f'{of}.index.json'
  path.write_text(json.dumps({'metadata': {}, 'weight_map': index}))
  return path


@pytest.mark.parametrize('of', ['model.safetensors', 'pytorch_model.bin'])
def test_shards(of, tmp_path):
  path = sharded(tmp_path, of)
  shutil.copy(HF / 'config.json', tmp_path)
  found = read_weights.read(tmp_path)
  assert found.origin.count('sha256') == 2
  whole = read_weights.read(HF)
  biases = (x.params['vocabulary']['bias_2'] for x in (found, whole))
  assert np.array_equal(*biases)
  index = json.loads(path.read_text())
  for file in '../x.safetensors', '/x.bin', '', 3, None:
    index['weight_map']['x'] = file
    path.write_text(json.dumps(index))
    assert 'weight_map is' in refused(read_weights.read, path)
  path.write_text('{}')
  assert 'weight_map is None' in refused(read_weights.read, path)
  path.write_text('{"weight_map": {"x": "gone.safetensors"}}')
  said = refused(read_weights.read, path)
  assert '/gone.safetensors cannot be read: No such file' in said


@pytest.mark.parametrize(
  'name, value, right',
  [
    ('n_head', 3, '2'),
    ('d_head', 4, '6'),
    ('d_model', 12, '16'),
    ('d_inner', 5, '24'),
    ('d_embed', 8, '16'),
    ('div_val', 2, '4'),
    ('vocab_size', 32, '31'),
    ('cutoffs', [6, 16], '[6, 15]'),
    ('cutoffs', [6, 15, 40], '[6, 15]'),
    ('d_head', '6', '6'),
  ],
)
def test_a_config_that_contradicts_the_weights(name, value, right, tmp_path):
  folder = copy('hf_div4', tmp_path)
  change(folder, **{name: value})
  said = refused(read_weights.read, folder)
  allowed = f'{right}, by the shapes of the weights'
  where = folder / 'config.json'
  assert said == f'{where}: {name} is {value!r}; allowed: {allowed}'


def test_flags_that_contradict_the_weights():
  said = refused(read_weights.read, HF, {'n_head': 3})
  assert said.startswith('--n_head is 3; allowed: 2')


def test_what_a_file_says_of_a_model_without_cutoffs():
  call = convert_weights.check_options, make_back.weights('plain')
  kinds = dict.fromkeys(('d_embed', 'n_token'), -1) | {'attn_type': 0}
  call[0](call[1], kinds | {'div_val': 4, 'cutoffs': [31], 'n_layer': None}, '')
  for name, right in ('d_head', 6), ('n_layer', 2):
    said = refused(*call, {name: 3}, '--')
    assert said.startswith(f'--{name} is 3; allowed: {right}, by the shapes')


def test_untied_biases_that_are_shared(tmp_path):
  folder = copy('hf_div1', tmp_path)
  change(folder, untie_r=True)
  assert 'though untie_r is true' in refused(read_weights.read, folder)


@pytest.mark.parametrize('bias', ['r_w_bias', 'r_r_bias'])
def test_biases_that_are_to_be_shared_and_differ(bias):
  layers = [f'layers.{n}.dec_attn.{bias}' for n in range(3)]
  x = np.ones([2, 3], np.float32)
  call = hugging_face.to_original
  for own in {}, {bias: x}:
    same = call({layers[0]: x, **own}, {'untie_r': False})
    assert [*same] == [bias]
    other = {**dict.fromkeys(layers, x), layers[2]: x + 1, **own}
    said = refused(call, other, {'untie_r': False})
    assert said == f'{layers[2]} and {bias} differ; untie_r is not true'


def test_an_old_config_of_untied_weights_names_the_flag(tmp_path):
  folder = copy('hf_narrow_bin', tmp_path)
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  assert config.pop('tie_word_embeddings') is False
  path.write_text(json.dumps(config | {'tie_weight': False}))
  said = refused(read_weights.read, folder)
  assert said.startswith('tied weights differ: crit.out_layers.0.wei')
  assert '--tie_weight=false' in said
  found = read_weights.read(folder, {'tie_weight': False})
  assert not found.fields['tie_weights']


def test_one_bin_with_a_projection(tmp_path):
  """As with cutoffs=[] and the div_val of 4 that is its default.

  Beside one whose projections are folded into the tables, by hand.
  """
  folder = copy('hf_div1', tmp_path)
  rng = np.random.default_rng(0)
  state = safetensors.numpy.load_file(folder / 'model.safetensors')
  del state['crit.cluster_weight'], state['crit.cluster_bias']
  table = state.pop('transformer.word_emb.emb_layers.0.weight')
  tables = (
    'transformer.word_emb.emb_layers.0.weight',
    'crit.out_layers.0.weight',
  )
  plain = {**state, **dict.fromkeys(tables, table)}
  mixed = {**plain}
  for name in tables:
    turn, _ = np.linalg.qr(rng.normal(size=[16, 16]))
    projection = name.replace('_layers.0.weight', '_projs.0')
    mixed[projection] = turn.astype(np.float32)
    mixed[name] = np.ascontiguousarray((table @ turn).astype(np.float32))
  ids = np.arange(11, dtype=np.int32)
  found = []
  for state, div_val in (plain, 1), (mixed, 4):
    safetensors.numpy.save_file(state, folder / 'model.safetensors')
    change(folder, cutoffs=[], div_val=div_val, tie_word_embeddings=False)
    change(folder, tie_projs=[False])
    found.append(nll(read_weights.read(folder), ids, 5))
  np.testing.assert_allclose(*found, rtol=0, atol=1e-5)


def tokenizer(size=29):
  """A byte-level BPE and its text."""
  text = 'a cat, a naïve cat\n' * 9
  made = subwords.learn([text.encode()], 256 + size)
  return json.loads(made.tokenizer), text


def added(content, i):
  more = dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)
  return {'id': i, 'content': content, 'special': True, **more}


def test_a_byte_level_bpe(tmp_path):
  fields, text = tokenizer()
  V = len(fields['model']['vocab'])
  fields['added_tokens'] = [added('<|end|>', V), added('[PAD]', V + 1)]
  (tmp_path / 'tokenizer.json').write_text(json.dumps(fields))
  (tmp_path / 'vocab.txt').write_text('a\nb\n')  # of another tokenizer
  found, warned = vocabularies.of_folder(tmp_path, V + 1)
  assert not warned and found is not None and len(found) == V + 1
  import tokenizers

  theirs = tokenizers.Tokenizer.from_str(json.dumps(fields))
  whole = text + '<|end|>' + text
  expected = theirs.encode(whole).ids
  assert V in expected
  assert found.encode(whole.encode(), 'x').tolist() == expected
  for size, n in (V, V), (V + 2, V + 2), (V + 9, V + 2):
    assert len(vocabularies.read(tmp_path / 'tokenizer.json', size)) == n


def test_tokenizers_that_are_not_read(tmp_path):
  config = tmp_path / 'tokenizer_config.json'
  config.write_text('{"tokenizer_class": "BertTokenizer"}')
  (tmp_path / 'vocab.txt').write_text('[UNK]\nplay\n##ing\n')
  found, (line,) = vocabularies.of_folder(tmp_path, 3)
  assert found is None and line.endswith('json: BertTokenizer is not supported')
  pieces = {'model': {'type': 'WordPiece', 'vocab': {'a': 1}}, 'decoder': None}
  (tmp_path / 'tokenizer.json').write_text(json.dumps(pieces))
  found, (line,) = vocabularies.of_folder(tmp_path, 3)
  assert found is None and 'its ids are not 0, 1, 2' in line
  pieces['model']['vocab'] = {'[UNK]': 0, 'play': 1, '##ing': 2}
  (tmp_path / 'tokenizer.json').write_text(json.dumps(pieces))
  found, warned = vocabularies.of_folder(tmp_path, 3)
  assert found is not None and len(found) == 3 and not warned
  text = workdir.vocabulary_text(Words(('a', 'b', 'c')))
  (tmp_path / 'vocabulary.json').write_text(text)
  found, _ = vocabularies.of_folder(tmp_path, 3)
  assert found is not None and found.symbols == ('a', 'b', 'c')
  (tmp_path / 'vocabulary.json').unlink()
  (tmp_path / 'tokenizer.json').unlink()
  for fields in '{}', '{"tokenizer_class": null}':
    config.write_text(fields)
    found, warned = vocabularies.of_folder(tmp_path, 3)
    assert found is not None and not warned


def test_files_that_are_not_read_or_written(tmp_path):
  for name in 'model.ckpt-0.index', 'model.ckpt-1.index', 'vocab.pkl':
    (tmp_path / name).write_bytes(b'x')
  assert 'nor one *.index' in refused(read_weights.read, tmp_path)
  assert 'vocab.pkl' in refused(vocabularies.of_folder, tmp_path, 3)
  for kind in 'float64', 'float16':
    said = refused(safe_file.write, tmp_path / 'x', {'a': np.ones(2, kind)})
    assert said == f'a is {kind}; allowed: finite float32'
  call = safe_file.write, tmp_path / 'no/x', {'a': np.ones(2, np.float32)}
  assert refused(*call).startswith(f'{tmp_path}/no/x cannot be written: ')


WORDS = '<eos>', 'the', '<unk>', 'of'
ADDED = {'<eos>': 0, '<unk>': 2, '<formula>': 4, 'a b': 5}


@pytest.mark.parametrize(
  'name, loaded',
  [('_added_tokens_encoder', False), ('added_tokens_encoder', True)],
)
def test_added_tokens(name, loaded, tmp_path):
  """As transformers 4.35.2 saves a tokenizer; once loaded, without idx2sym."""
  sym2idx = dict(zip(WORDS, range(4)))
  symbols = [] if loaded else [*WORDS]
  fields = {'idx2sym': symbols, 'sym2idx': sym2idx, name: ADDED}
  path = tmp_path / 'vocab.pkl'
  path.write_bytes(pickle.dumps(fields))
  every = *WORDS, '<formula>', r'a\x20b'
  for size, n in (4, 4), (5, 5), (6, 6), (None, 6):
    expected = Words(every[:n], (), '<eos>', '<unk>')
    assert vocabularies.read(path, size) == expected
  fields['counter'] = dict.fromkeys(WORDS, 2)
  path.write_bytes(pickle.dumps(fields))
  for n in 4, 5, 6:
    counts = (2, 2, 2, 2, 0, 0)[:n]
    assert vocabularies.read(path, n).counts == counts
  path.write_bytes(pickle.dumps(fields | {name: {'x': 7}}))
  assert '0, 1, 2 and so on' in refused(vocabularies.read, path)


def test_an_empty_symbol(tmp_path):
  """Of the original code with delimiter=' ', which has it in blank lines."""
  symbols = ['<eos>', '', "''", *(f'w{i}' for i in range(28))]
  path = tmp_path / 'vocab.pkl'
  path.write_bytes(pickle.dumps({'idx2sym': symbols}))
  found = read_weights.read(HF, None, f'{path}')
  assert found.vocabulary.symbols[:3] == ('<eos>', r'\N{EMPTY}', "''")
  assert 'empty symbol' in found.warnings[0]
  assert found.vocabulary.decode([3, 1, 4]) == rb'w0 \N{EMPTY} w1'


def test_losses_are_in_the_order_of_the_bins():
  """The line of docs/hugging_face.md that sorts."""
  found = read_weights.read(HF)
  ids = np.load(HF / 'expected.npz')['ids'][0, :12]
  scores = nll(found, ids, 11)
  bins = np.searchsorted(found.fields['cutoffs'], ids[1:], side='right')
  losses = scores[np.argsort(bins, kind='stable')]
  np.testing.assert_allclose(losses, LOSSES, rtol=0, atol=2e-5)
  assert np.abs(scores - LOSSES).max() > 1


def test_the_original_code_has_the_same_buffer_and_turned_tails():
  state = write_weights.state_dict(read_weights.read(HF), 'original')
  buffer = tensors()['transformer.pos_emb.inv_freq']
  np.testing.assert_array_equal(state['pos_emb.inv_freq'], buffer)
  for name in 'crit.cluster_weight', 'crit.cluster_bias':
    np.testing.assert_array_equal(state[name], tensors()[name][::-1])


def test_differences_are_told():
  own, pre = {'name': 'transformer_xl', 'mem_len': 4}, {'pre_norm': True}
  zeros = {'memory_init': 'zeros'}
  for target, fields, said in (
    ('original', zeros, 'the original PyTorch code the memory starts empty'),
    ('original', zeros | {'mem_len': 0}, ''),
    ('hugging_face', {'ln_eps': 1e-12}, '; start with mems of length 0'),
    ('hugging_face', zeros | {'same_length': 'M+1'}, ''),
    ('original', {'ln_eps': 1e-12}, 'PyTorch code has 1e-05'),
    ('original', {'ln_eps': 0.5}, 'PyTorch code has 1e-05'),
    ('original', {'same_length': 'M+1'}, 'PyTorch code has M'),
    ('nvidia', {'same_length': 'M'}, "NVIDIA's version has M+1"),
    ('original', {'untie_biases': True}, 'a pair per layer; Hugging Face can'),
    ('original', pre, ''),
    ('original', {'name': 'vaswani'}, ''),
    ('original', {'name': 'vaswani'} | pre, 'not normalise the queries'),
  ):
    made = convert_weights.Weights(own | fields, {}, Words(('a',)))
    lines = [*write_weights.differences(made, target)]
    assert ''.join(lines).endswith(said) and len(lines) == bool(said)
