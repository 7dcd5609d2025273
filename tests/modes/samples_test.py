"""What a model writes while it is trained; the training is as without."""

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests import programs
from tests.models import every
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data.vocabularies.byte_values import Vocabulary
from txl_jax.models import base
from txl_jax.modes import generate
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log

BYTES = Vocabulary.all_bytes()
OPTIONS = (
  'train.batch_size=8',
  'train.steps=24',
  'train.save_every=8',
  'train.eval_every=12',
  'model.dropout=0.1',
  'optim.average=ema',
)
SAMPLED = 'train.sample_every=6', 'train.sample_tokens=9', 'generate.prompt=é'


def make(name='transformer_xl', **generate):
  """(config, parameters) of a model that writes."""
  c = common.get_config(name)
  c.model.update(every.SETTINGS[name])
  c.train.update(sample_every=5, sample_tokens=7, segment_len=8)
  c.generate.update({'prompt': 'ab', 'segment_len': 4} | generate)
  model = models.build(c.model, 256)
  return c, model.inference_params(base.init_params(model, jax.random.key(0)))


# Others write in tests/api/every_model_test.py.
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (name != 'transformer_xl'))
    for name in models.MODELS
  ],
)
def test_every_model_writes(name):
  config, params = make(name)
  shapes = jax.eval_shape(lambda: params)
  sample = generate.sampler(config, BYTES, shapes)
  text = sample(params)
  assert text.startswith('ab') and len(text) > 3
  assert sample(params) == text
  # Those of the section, but for the number of tokens.
  assert config.generate.max_new_tokens == 400


def test_nothing_is_written_unless_it_is_asked_for():
  config, params = make()
  config.train.sample_every = 0
  assert generate.sampler(config, BYTES, params) is None


def test_what_cannot_be_followed_is_refused():
  config, params = make(prompt_file='/nowhere')
  with pytest.raises(UserError, match='/nowhere'):
    generate.sampler(config, BYTES, params)


def arrays(folder, step):
  """Every array of a checkpoint."""
  path = folder / f'run/checkpoints/{step}'
  items = sorted(x.name for x in path.iterdir() if (x / '_METADATA').exists())
  assert 'params' in items
  with ocp.StandardCheckpointer() as reader:
    return [x for i in items for x in jax.tree.leaves(reader.restore(path / i))]


@pytest.fixture(scope='module')
def without(tmp_path_factory):
  folder = tmp_path_factory.mktemp('without')
  programs.write_corpus(folder)
  done = programs.here(programs.command(folder, *OPTIONS))
  assert done.returncode == 0, done.stderr
  return folder


def test_training_is_the_same_bit_for_bit(without, tmp_path):
  programs.write_corpus(tmp_path)
  done = programs.here(programs.command(tmp_path, *OPTIONS, *SAMPLED))
  assert done.returncode == 0, done.stderr
  record = programs.record(tmp_path)
  sampled = [r for r in record if r['split'] == 'sample']
  assert [r['step'] for r in sampled] == [6, 12, 18, 24]
  assert all(r['text'].startswith('é') for r in sampled)
  assert f'step 6: sample: {sampled[0]["text"]!r}\n' in done.stderr
  kept = [r for r in record if r['split'] != 'sample']
  assert kept == programs.record(without)
  for a, b in zip(arrays(tmp_path, 24), arrays(without, 24), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_run_that_goes_on_has_the_same_record(tmp_path):
  """From a step that was sampled, and from one that was not."""
  folders = [tmp_path / name for name in ('whole', 'parts')]
  for folder, stops in zip(folders, ([8], [2, 4, 8])):
    folder.mkdir()
    programs.write_corpus(folder)
    for steps in stops:
      # A constant rate does not depend on the length.
      own = f'train.steps={steps}', 'optim.schedule=constant'
      own += ('train.eval_every=2', 'train.save_every=2', 'train.log_every=2')
      own += (*SAMPLED, 'train.sample_every=4')
      done = programs.here(programs.command(folder, *OPTIONS, *own))
      assert done.returncode == 0, done.stderr
  whole, parts = map(programs.record, folders)
  last = {'step': 2, 'split': 'sample'}  # where the first part ended
  parts = [r for r in parts if not last.items() <= r.items()]
  assert parts == whole
  path = folders[1] / 'run/metrics.jsonl'
  assert path.read_bytes().count(b'\n') == len(metrics_log.read(path))
