import json
import pathlib

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import direct, programs
from tests.refusing import refused
from tests.training import small
from txl_jax import models
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.runs import weights_file

FIELDS = small.FIELDS | dict(untie_biases=True, clamp_len=3)
VOCABULARY = Bytes((32, 97, 98), (5, 3, 2), (10,))


def random_params():
  params = direct.random_params(models.build(FIELDS, 3))
  return jax.tree.map(jnp.float32, params)


@pytest.fixture
def saved(tmp_path):
  path = tmp_path / 'model.npz'
  weights_file.save(path, random_params(), FIELDS, VOCABULARY.to_json())
  return path


def test_what_is_saved_comes_back(saved):
  model, params, vocabulary = weights_file.load(str(saved))
  assert model == models.build(FIELDS, 3)
  assert vocabulary == VOCABULARY
  jax.tree.map(np.testing.assert_array_equal, params, random_params())
  assert all(x.dtype == np.float32 for x in jax.tree.leaves(params))
  assert [p.name for p in saved.parent.iterdir()] == ['model.npz']


def test_numpy_alone_reads_it(saved):
  flat = flax.traverse_util.flatten_dict(random_params(), sep='/')
  with np.load(saved, allow_pickle=False) as file:
    header = json.loads(str(file['__model__']))
    assert set(file) == {*flat, '__model__'}
    for name, x in flat.items():
      np.testing.assert_array_equal(file[name], x)
  assert header == {'model': FIELDS, 'vocabulary': VOCABULARY.to_json()}


def test_saving_replaces_a_file(saved):
  params = jax.tree.map(lambda x: x + 1, random_params())
  weights_file.save(saved, params, FIELDS, VOCABULARY.to_json())
  jax.tree.map(
    np.testing.assert_array_equal, weights_file.load(saved)[1], params
  )


def damaged(path):
  data = bytearray(path.read_bytes())
  at = data.index(b'\x93NUMPY') + 200  # in the first array
  data[at : at + 8] = bytes(255 - x for x in data[at : at + 8])
  path.write_bytes(data)


def array(path):
  with path.open('wb') as f:
    np.save(f, np.zeros(3))


def pipe(path):
  path.unlink()
  programs.make_pipe(path)


def incomplete(path):
  header = {'model': {'name': 'rnn'}, 'vocabulary': VOCABULARY.to_json()}
  np.savez(path, __model__=np.array(json.dumps(header)))


SPOILED = {
  'text': lambda path: path.write_text('no such thing'),
  'empty': lambda path: path.write_bytes(b''),
  'missing': pathlib.Path.unlink,
  'truncated': lambda path: path.write_bytes(path.read_bytes()[:-100]),
  'damaged': damaged,
  'array': array,
  'pickled': lambda path: np.savez(path, __model__=np.array([{}], object)),
  'foreign': lambda path: np.savez(path, weights=np.zeros(3)),
  'other JSON': lambda path: np.savez(path, __model__=np.array('[1]')),
  'incomplete': incomplete,
  'pipe': pipe,
}


@pytest.mark.parametrize('kind', SPOILED)
def test_loading_another_file(saved, kind):
  SPOILED[kind](saved)
  message = refused(lambda: weights_file.load(saved))
  why = 'No such file or directory' if kind == 'missing' else ''
  assert message.startswith(f'{saved} is not an export of parameters: {why}')


def arrays_of(path):
  with np.load(path) as file:
    return dict(file)


TABLE = 'vocabulary/table'  # float32 [3, 8]


@pytest.mark.parametrize(
  'array, found',
  [
    (None, 'is missing'),
    (np.zeros([3, 7], 'f4'), 'is float32 [3, 7]; expected float32 [3, 8]'),
    (np.zeros([24], 'f4'), 'is float32 [24]; expected float32 [3, 8]'),
    (np.zeros([3, 8], 'i4'), 'is int32 [3, 8]; expected float32 [3, 8]'),
    (np.zeros([3, 8]), 'is float64 [3, 8]; expected float32 [3, 8]'),
    (np.zeros([3, 8], '>f4'), 'is >f4 [3, 8]; expected float32 [3, 8]'),
    (np.full([3, 8], np.nan, 'f4'), 'has values that are not finite'),
    (np.full([3, 8], np.inf, 'f4'), 'has values that are not finite'),
    (np.zeros(16_376, 'f4'), 'is float32 [16376]; expected float32 [3, 8]'),
    (np.zeros(16_377, 'f4'), 'has 65,636 bytes; expected 96'),
  ],
)
def test_a_parameter_that_is_not_as_the_model_says(saved, array, found):
  arrays = arrays_of(saved)
  del arrays[TABLE]
  if array is not None:
    arrays[TABLE] = array
  np.savez(saved, **arrays)
  message = refused(lambda: weights_file.load(saved))
  assert message.endswith(f'parameters: {TABLE} {found}')


def test_a_parameter_that_no_model_has(saved):
  np.savez(saved, **arrays_of(saved), more=np.zeros(3, np.float32))
  message = refused(lambda: weights_file.load(saved))
  assert message.endswith('more is not in the model')


@pytest.mark.parametrize(
  'model, found',
  [
    ({'d_model': 10**9}, 'model.d_model is 1000000000; allowed: at least 1'),
    ({'d_model': 10**6}, 'expected float32 ['),
    ({'d_model': '6'}, "model.d_model is '6'; allowed: a whole number"),
    ({'d_model': True}, 'model.d_model is True; allowed: a whole number'),
    ({'d_model': -6}, 'model.d_model is -6; allowed: at least 1'),
    ({'n_layer': None}, 'model.n_layer is None'),
    ({'cutoffs': [2, 1]}, 'model.cutoffs is (2, 1); allowed: whole numbers'),
    ({'cutoffs': [3, 5]}, 'model.cutoffs is (3, 5); allowed: '),
    ({'cutoffs': {'a': 1}}, 'there is no such key'),
    ({'dropout': float('nan')}, 'model.dropout is nan'),
    ({'colour': 1}, 'model.colour = 1: there is no such key'),
    ({'name': ['transformer_xl']}, 'model.name is'),
    ({'name': 'rnn'}, "model.name is 'rnn'; allowed: transformer_xl"),
  ],
)
def test_a_model_that_cannot_be(saved, model, found):
  arrays = arrays_of(saved)
  header = {'model': {**FIELDS, **model}, 'vocabulary': VOCABULARY.to_json()}
  np.savez(saved, **arrays | {'__model__': np.array(json.dumps(header))})
  message = refused(lambda: weights_file.load(saved))
  assert found in message and len(message) < 1000


@pytest.mark.parametrize(
  'header',
  [
    '[' * 100_000,
    '{"model": [], "vocabulary": {}}',
    json.dumps({'model': [], 'vocabulary': VOCABULARY.to_json()}),
    json.dumps({'model': FIELDS, 'vocabulary': 'abc'}),
    json.dumps({'model': FIELDS, 'vocabulary': {'kind': ['bytes']}}),
    json.dumps({'model': FIELDS, 'vocabulary': Bytes(()).to_json()}),
    json.dumps({'model': FIELDS}),
    '{"model": ' + '9' * 5000 + '}',
  ],
)
def test_a_header_of_other_types(saved, header):
  np.savez(saved, **arrays_of(saved) | {'__model__': np.array(header)})
  message = refused(lambda: weights_file.load(saved))
  assert len(message) < 1000 and ' bytes; expected' not in message


def test_a_file_of_an_older_version_has_the_defaults(saved):
  arrays = arrays_of(saved)
  header = json.loads(str(arrays['__model__']))
  assert 'dropout' not in header['model']
  assert weights_file.load(saved)[0].config.dropout == 0.1


def test_paths_that_cannot_be_written(tmp_path):
  save = lambda path: (
    lambda: weights_file.save(path, {'x': jnp.ones(2)}, {}, {})
  )
  (tmp_path / 'folder.npz').mkdir()
  (tmp_path / 'file').touch()
  for name in (
    'no/model.npz',
    'folder.npz',
    'file/model.npz',
    'm.bin',
    'm.zip',
  ):
    path = tmp_path / name
    assert refused(save(path)).startswith(f'--export_file={path}')
  with pytest.raises(ValueError, match='allow_pickle'):
    weights_file.save(tmp_path / 'm.npz', {'x': np.array({})}, {}, {})
  names = sorted(p.name for p in tmp_path.iterdir())
  assert names == ['file', 'folder.npz']
