"""Published models: checkpoints of TensorFlow, and lengths of the recipes."""

import hashlib
import json
import pathlib

import numpy as np
import pytest

from tests.convert import bundle, originals, program
from tests.refusing import refused
from txl_jax.convert import __main__ as convert
from txl_jax.convert import lengths, read_weights, weights, write_weights
from txl_jax.convert.formats import tensorflow_file
from txl_jax.convert.versions import sources
from txl_jax.convert.weights import Weights
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words

GOLDEN = pathlib.Path(__file__).parent / 'golden'


def tensorflow(name):
  """A checkpoint's prefix, its config as options, and its golden file."""
  golden = dict(np.load(GOLDEN / f'{name}.npz'))
  config = json.loads(str(golden['config']))
  said = ('mem_len', 'tgt_len', 'clamp_len', 'same_length')
  return GOLDEN / f'{name}.ckpt-0', {k: config[k] for k in said}, golden


def test_one_command_for_tensorflow(tmp_path):
  prefix, told, _ = tensorflow('tf_div4')
  flags = [f'--{k}={int(x)}' for k, x in told.items() if k != 'same_length']
  program.converted(prefix, tmp_path / 'run', '--same_length', *flags)
  config = json.loads((tmp_path / 'run/config.json').read_text())
  named = 'TensorFlow code, tf_div4.ckpt-0.data-00000-of-00001, sha256'
  assert named in config['origin']
  assert config['model']['same_length'] == 'M+1'
  for name in f'{prefix}.index', f'{prefix}.data-00000-of-00001':
    assert read_weights.read(pathlib.Path(name)).fields['n_layer'] == 2


def test_a_checkpoint_of_several_files_by_its_folder(tmp_path):
  items, data = {}, [b'', b'']
  arrays = tensorflow_file.read(GOLDEN / 'tf_plain.ckpt-0')
  for i, (name, x) in enumerate(arrays.items()):
    place, own = len(data[i % 2]), x.tobytes()
    items[name] = bundle.entry(x.shape, 1, i % 2, place, data=own)
    data[i % 2] += own
  prefix = bundle.write(tmp_path, items, data[0], shards=2)
  (tmp_path / 'model.ckpt-0.data-00001-of-00002').write_bytes(data[1])
  found = read_weights.read(tmp_path)
  assert found.origin == read_weights.read(prefix).origin
  for i, part in enumerate(data):
    named = f'model.ckpt-0.data-0000{i}-of-00002, sha256 '
    assert named + hashlib.sha256(part).hexdigest() in found.origin


# N, D, H, K, F and V of the paper's scripts, and those of train and test: T
# and M, or T, M and clamp_len.
SIZES = {
  'enwik8_12l': (12, 512, 8, 64, 2048, 204, (512, 512), (80, 2100, 820)),
  'text8_24l': (24, 1024, 8, 128, 3072, 27, (768, 768), (128, 3800, 1000)),
  'wt103_base': (16, 410, 10, 41, 2100, 267_735, (150, 150), (64, 640, 400)),
  'wt103_large': (
    18, 1024, 16, 64, 4096, 267_735, (384, 384), (128, 1600, 1000)
  ),
  'lm1b_base': (20, 1024, 8, 128, 6144, 793_471, (32, 32), (32, 128, 0)),
  'lm1b_large': (24, 1280, 16, 80, 8192, 793_470, (32, 32), (32, 128, 0)),
}  # fmt: skip


def with_sizes(sizes):
  names = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff'
  return {'name': 'transformer_xl', **dict(zip(names, sizes))}


@pytest.mark.parametrize('name', SIZES)
def test_a_published_model_is_known_by_its_sizes(name):
  *sizes, V, train, test = SIZES[name]
  fields = with_sizes(sizes)
  c = lengths.published(fields, V)
  assert c.experiment == name
  assert (c.train.segment_len, c.model.mem_len) == train
  own = c.eval.model
  assert (c.eval.segment_len, own.mem_len, own.clamp_len or 0) == test
  assert lengths.published(fields, 100) is None
  assert lengths.published(fields | {'d_ff': 1}, V) is None
  assert lengths.published(fields | {'name': 'shaw'}, V) is None


def test_a_published_model_has_the_lengths_of_its_figure():
  fields = with_sizes((24, 1024, 8, 128, 3072))
  fields |= {'clamp_len': 0, 'same_length': 'off'}
  one = lengths.published(fields, 204)
  source = sources.SOURCES['tensorflow']
  found = lengths.of(fields, {}, one, source)
  assert found['model.mem_len'] == found['train.segment_len'] == 768
  assert found['eval.segment_len'] == found['generate.segment_len'] == 128
  assert found['eval.model.mem_len'] == 3800
  assert found['eval.model.clamp_len'] == 1000
  assert found['eval.model.same_length'] == 'M+1'
  told = {'mem_len': 10, 'tgt_len': 5}
  found = lengths.of(fields, told, one, source)
  expected = {'model.mem_len': 10, 'train.segment_len': 5}
  for mode in 'eval', 'generate':
    expected[f'{mode}.segment_len'] = 5
    # Still as in the recipe.
    expected[f'{mode}.model.clamp_len'] = 1000
    expected[f'{mode}.model.same_length'] = 'M+1'
  assert found == expected


def test_a_published_model_is_evaluated_as_in_the_paper(monkeypatch):
  monkeypatch.setattr(lengths, '_SIZES', ())
  state = originals.state(originals.arguments('default'))
  for name, source, boundaries, dropout in (
    ('lm1b_base', 'tensorflow', 2, 0.0),
    ('lm1b_base', 'original', None, 0.0),
    ('wt103_base', 'tensorflow', None, 0.1),
    ('enwik8_12l', 'tensorflow', None, 0.1),
  ):
    monkeypatch.setitem(lengths.PUBLISHED, 31, (name,))
    found = weights.of_state(state, {}, source, None)
    assert found.fields['dropout'] == dropout
    keys = found.keys['eval.split'], found.keys.get('data.boundaries')
    assert keys == ('test', boundaries)
    assert ('eval.model.clamp_len' in found.keys) == (name != 'lm1b_base')
    assert len(found.warnings) == 1  # of no vocabulary


IDS = tuple(map(str, range(10_000)))


class Large(Words):
  """As many words as the count of the only one."""

  def __len__(self):
    return sum(self.counts)


@pytest.mark.parametrize(
  'vocabulary, data',
  [
    (Bytes(tuple(range(204))), ('enwik8', 'drop', 'byte')),
    (Bytes(tuple(range(205))), ('enwik8', 'keep', 'byte')),
    (Bytes((32, *range(97, 123))), ('text8', 'keep', 'byte')),
    (Bytes.all_bytes(), ('text', 'keep', 'byte')),
    (Bytes((97, 98)), ('text', 'keep', 'byte')),
    (Words(('<eos>', 'a')), ('text', 'keep', 'word')),
    (Large(('"',), (10_000,)), ('ptb', 'keep', 'byte')),
    (Large(('w',), (33_278,)), ('wt2', 'keep', 'byte')),
    (Large(('w',), (267_735,)), ('wt103', 'keep', 'byte')),
    (Large(('w',), (793_471,)), ('lm1b', 'keep', 'byte')),
    (Words(IDS, (1,) * len(IDS)), ('text', 'keep', 'word')),
  ],
  ids=lambda x: str(x)[:10],
)
def test_the_corpus_is_that_of_the_vocabulary(
  vocabulary, data, tmp_path, monkeypatch, capsys
):
  fields = read_weights.read(*tensorflow('tf_plain')[:1]).fields
  found = Weights(fields, {}, vocabulary, keys={'data.boundaries': 2})
  c = write_weights.config_of(tmp_path / 'run', found)
  assert (c.data.corpus, c.data.newline, c.data.level) == data
  assert (c.data.boundaries == 2) == (data[0] == 'lm1b')
  monkeypatch.setattr(write_weights, 'to_workdir', write_weights.config_of)
  convert._write('workdir', tmp_path / 'run', None, found)
  labels = [x.split(':')[0] for x in capsys.readouterr().out.splitlines()]
  assert ('text' in labels) == (data[0] == 'text')
  assert ('your text' in labels) == isinstance(vocabulary, Words)


def test_a_vocabulary_of_another_size(tmp_path):
  path = tmp_path / 'vocab.txt'
  prefix, told, _ = tensorflow('tf_plain')
  for n in 3, 12:
    path.write_text('\n'.join('abcdefghijkl'[:n]))
    said = refused(read_weights.read, prefix, told, str(path))
    assert f'{n} symbols, the model 11' in said
  path.write_text('\n'.join('abcdefghij') + '\n<eos>\n')
  found = read_weights.read(prefix, told, str(path))
  assert found.vocabulary.eos == '<eos>' and len(found.vocabulary) == 11


@pytest.mark.parametrize('lower, eos', [(True, '<eos>'), (False, '')])
def test_a_text_is_split_as_the_vocabulary_says(lower, eos, tmp_path):
  words = Words(('<eos>', 'a', '<unk>'), (), eos, '<unk>', lower)
  fields = read_weights.read(*tensorflow('tf_plain')[:1]).fields
  c = write_weights.config_of(tmp_path / 'run', Weights(fields, {}, words))
  assert (c.data.lower, c.data.eos) == (lower, bool(eos))
