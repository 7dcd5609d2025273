"""A Hub on this machine, and what is on it or is pushed to it."""

import json

import pytest
import safetensors.numpy
from huggingface_hub import constants

from tests import hub_server
from tests.convert import program
from tests.modes import runs
from txl_jax.convert import read_weights, write_weights
from txl_jax.convert.formats import torch_file
from txl_jax.data.vocabularies.words import Words

# For `pytestmark`.
WARNINGS = pytest.mark.filterwarnings(
  'ignore:Use .content=',  # of the client's own
  'ignore:not specified, guessed',  # T, which no file of Hugging Face has
)


@pytest.fixture(scope='module')
def door():
  with hub_server.serving() as made:
    yield made


@pytest.fixture
def server(door, monkeypatch, tmp_path):
  """The server without repositories, and this process as its client."""
  for each in (
    door.repositories,
    door.cut,
    door.swapped,
    door.asked,
    door.ranges,
  ):
    each.clear()
  door.status = 0
  for name, value in {
    'ENDPOINT': door.url,
    'HUGGINGFACE_CO_URL_TEMPLATE': (
      door.url + '/{repo_id}/resolve/{revision}/{filename}'
    ),
    'HF_HUB_CACHE': f'{tmp_path}/home/hub',
    'HF_HUB_DISABLE_XET': True,
    'HF_HUB_OFFLINE': False,
    'HF_TOKEN_PATH': f'{tmp_path}/home/token',
  }.items():
    monkeypatch.setattr(constants, name, value)
  monkeypatch.delenv('HF_TOKEN', raising=False)
  return door


@pytest.fixture
def signed_in(monkeypatch):
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
  """{name: bytes} of a published repository, with words, and more files."""
  folder = tmp_path_factory.mktemp('theirs')
  a, _ = program.write_state(folder, 'adaptive_div4')
  names = 'tgt_len', 'mem_len', 'clamp_len', 'same_length', 'pre_lnorm'
  weights = read_weights.read(folder / 'state.pt', {k: a[k] for k in names})
  words = [f'w{i}' for i in range(len(weights.vocabulary) - 2)]
  vocabulary = Words(('<eos>', '<unk>', *words), eos='<eos>', unk='<unk>')
  out = folder / 'out'
  write_weights.to_hugging_face(out, weights._replace(vocabulary=vocabulary))
  arrays = safetensors.numpy.load_file(out / 'model.safetensors')
  torch_file.write(out / 'pytorch_model.bin', arrays)
  (out / 'model.safetensors').unlink()
  (out / 'vocabulary.json').unlink()
  for name in 'corpus.bin', 'tf_model.h5', 'model-old/model.safetensors':
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes(b'not needed')
  paths = (path for path in out.rglob('*') if path.is_file())
  return {f'{x.relative_to(out)}': x.read_bytes() for x in paths}


@pytest.fixture
def run(tmp_path):
  """A run with a record of its training."""
  folder = tmp_path / 'mine'
  folder.mkdir()
  runs.write(folder)
  lines = [
    {'step': 3, 'split': 'validation', 'bpc': 3.5, 'time': 1.7e9},
    {'step': 7, 'split': 'validation', 'bpc': 2.25, 'time': 1.7e9 + 9},
  ]
  text = '\n'.join(map(json.dumps, lines)) + '\n'
  (folder / 'metrics.jsonl').write_text(text)
  return folder
