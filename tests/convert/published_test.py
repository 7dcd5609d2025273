"""Published models: checkpoints of TensorFlow, and lengths of the recipes."""

import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest

from tests.convert import bundle, program
from tests.convert.hugging_face_test import close
from tests.convert.original_test import refused
from txl_jax.configs import common  # noqa: F401  (the configs need it)
from txl_jax.convert import (
  lengths,
  published,
  reading,
  run,
  sources,
  tensorflow_file,
)
from txl_jax.convert.weights import Weights
from txl_jax.data.vocabularies.vocabulary import Vocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import config_file

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = pathlib.Path(__file__).parent / 'golden'
TENSORFLOW = sorted(x.stem for x in GOLDEN.glob('tf_*.npz'))


def tensorflow(name):
  """A checkpoint's prefix, its config as options, and its golden file."""
  golden = dict(np.load(GOLDEN / f'{name}.npz'))
  config = json.loads(str(golden['config']))
  said = ('mem_len', 'tgt_len', 'clamp_len', 'same_length')
  return GOLDEN / f'{name}.ckpt-0', {k: config[k] for k in said}, golden


@pytest.mark.parametrize('name', TENSORFLOW)
def test_checkpoints_of_tensorflow(name):
  prefix, told, golden = tensorflow(name)
  found = reading.read(prefix, told=told)
  fields = found.fields
  assert (fields['memory_init'], fields['ln_eps']) == ('zeros', 1e-12)
  span = 'M+1' if told['same_length'] else 'off'
  assert fields['same_length'] == span
  ids = golden['ids'].astype(np.int32)  # [segments, B, T + 1]
  text = np.concatenate([*ids[..., :-1], ids[-1][:, -1:]], axis=1)
  expected = np.concatenate([*golden['nll']], axis=1)
  close(found, text, expected, told['tgt_len'])


def test_one_command_for_tensorflow(tmp_path):
  prefix, told, _ = tensorflow('tf_div4')
  flags = [f'--{k}={int(x)}' for k, x in told.items() if k != 'same_length']
  done = program.run(prefix, tmp_path / 'run', '--same_length', *flags)
  assert done.returncode == 0, done.stderr
  origin = json.loads((tmp_path / 'run/origin.json').read_text())
  assert (
    'TensorFlow code, tf_div4.ckpt-0.data-00000-of-00001, sha256'
    in (origin['origin'])
  )
  value = origin['switches']['model.same_length']['value']
  assert value == 'M+1'
  for name in f'{prefix}.index', f'{prefix}.data-00000-of-00001':
    assert reading.read(pathlib.Path(name)).fields['n_layer'] == 2


def test_a_checkpoint_of_several_files_and_the_folder_that_names_it(tmp_path):
  items, data = {}, [b'', b'']
  arrays = tensorflow_file.read(GOLDEN / 'tf_plain.ckpt-0')
  for i, (name, x) in enumerate(arrays.items()):
    place, own = len(data[i % 2]), x.tobytes()
    items[name] = bundle.entry(x.shape, 1, i % 2, place, data=own)
    data[i % 2] += own
  prefix = bundle.write(tmp_path, items, data[0], shards=2)
  (tmp_path / 'model.ckpt-0.data-00001-of-00002').write_bytes(data[1])
  for path in GOLDEN.glob('tf_div4.ckpt-0.*'):
    shutil.copy(path, tmp_path)
  said = f'model_checkpoint_path: "{prefix.name}"\n'
  (tmp_path / 'checkpoint').write_text(said)
  found = reading.read(tmp_path)
  assert found.origin == reading.read(prefix).origin
  for i, part in enumerate(data):
    named = f'model.ckpt-0.data-0000{i}-of-00002, sha256 '
    assert named + hashlib.sha256(part).hexdigest() in found.origin


@pytest.mark.parametrize('one', published.ALL, ids=lambda one: one.name)
def test_lengths_are_those_of_our_configs(one):
  c = config_file.load(str(ROOT / f'configs/{one.name}.py'))
  N, D, H, K, F = one.sizes
  own = c.model
  same = (own.d_model, own.n_head, own.d_head) == (D, H, K)
  assert same and own.n_layer >= N and own.d_ff >= F
  assert one.train == (c.train.segment_len, own.mem_len)
  T, M, clamp_len = one.test
  assert (c.eval.segment_len, c.eval.model.mem_len) == (T, M)
  assert clamp_len == (c.eval.model.clamp_len or 0)
  assert one.rates == (own.dropout, own.dropatt)
  assert {k: c.data[k] for k in one.data} == one.data


def with_sizes(one):
  names = ('n_layer', 'd_model', 'n_head', 'd_head', 'd_ff')
  return {'name': 'transformer_xl', **dict(zip(names, one.sizes))}


@pytest.mark.parametrize('one', published.ALL, ids=lambda one: one.name)
def test_a_published_model_is_known_by_its_sizes(one):
  fields = with_sizes(one)
  for V in one.vocab_sizes:
    assert published.like(fields, V) == one
  assert published.like(fields, 100) is None
  assert published.like(fields | {'d_ff': 1}, one.vocab_sizes[0]) is None


def test_a_published_model_has_the_lengths_of_its_figure():
  one = next(x for x in published.ALL if x.name == 'enwik8_24l')
  source = sources.SOURCES['tensorflow']
  found, notes = lengths.of(with_sizes(one), {}, one, source)
  assert found['model.mem_len'] == found['train.segment_len'] == 768
  assert found['eval.segment_len'] == found['generate.segment_len'] == 128
  assert found['eval.model.mem_len'] == 3800
  assert found['eval.model.clamp_len'] == 1000
  assert found['eval.model.same_length'] == 'M+1'
  assert 'enwik8_24l' in notes['model.mem_len']
  told = {'mem_len': 10, 'tgt_len': 5}
  found, _ = lengths.of(with_sizes(one), told, one, source)
  # All else is still as in the recipe.
  assert found == {
    'model.mem_len': 10,
    'train.segment_len': 5,
    **{
      f'{mode}.{key}': value
      for mode in ('eval', 'generate')
      for key, value in {
        'segment_len': 5,
        'model.clamp_len': 1000,
        'model.same_length': 'M+1',
      }.items()
    },
  }


@pytest.mark.parametrize(
  'vocabulary, data',
  [
    (Vocabulary(tuple(range(204))), ('enwik8', 'drop', 'byte')),
    (Vocabulary(tuple(range(205))), ('enwik8', 'keep', 'byte')),
    (Vocabulary((32, *range(97, 123))), ('text8', 'keep', 'byte')),
    (Vocabulary.all_bytes(), ('text', 'keep', 'byte')),
    (Words(('<eos>', 'a')), ('text', 'keep', 'word')),
    (Words(tuple(f'w{i}' for i in range(10_000))), ('ptb', 'keep', 'byte')),
  ],
  ids=lambda x: str(x)[:10],
)
def test_the_corpus_is_that_of_the_vocabulary(vocabulary, data, tmp_path):
  fields = reading.read(*tensorflow('tf_plain')[:1]).fields
  found = Weights(fields, {}, vocabulary)
  c = run.config_of(tmp_path / 'run', found)
  assert (c.data.corpus, c.data.newline, c.data.level) == data


def test_a_vocabulary_of_another_size(tmp_path):
  path = tmp_path / 'vocab.txt'
  path.write_text('a\nb\n<unk>\n')
  prefix, told, _ = tensorflow('tf_plain')
  said = refused(reading.read, prefix, 'auto', told, str(path))
  assert '3 symbols, the model 11' in said
  path.write_text('\n'.join('abcdefghij') + '\n<eos>\n')
  found = reading.read(prefix, 'auto', told, str(path))
  assert found.vocabulary.eos == '<eos>' and len(found.vocabulary) == 11


@pytest.mark.parametrize('lower, eos', [(True, '<eos>'), (False, '')])
def test_a_text_is_split_as_the_vocabulary_says(lower, eos, tmp_path):
  words = Words(('<eos>', 'a', '<unk>'), (), eos, '<unk>', lower)
  fields = reading.read(*tensorflow('tf_plain')[:1]).fields
  c = run.config_of(tmp_path / 'run', Weights(fields, {}, words))
  assert (c.data.lower, c.data.eos) == (lower, bool(eos))
