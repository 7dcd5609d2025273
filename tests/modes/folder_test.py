"""The folder of a run: what is lost, copied, changed or in the way of it."""

import json
import shutil

import pytest

import txl_jax
from tests import programs
from tests.programs import assert_refused, record

OPTIONS = 'train.batch_size=8', 'train.log_every=2', 'model.dropout=0.1'
STEPS = 'train.steps=30'


def train(folder, *overrides, flags=(), **options):
  """In this process."""
  command = programs.command(folder, *OPTIONS, STEPS, *overrides, flags=flags)
  return programs.here(command, **options)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A finished run with checkpoints at 20 and 30."""
  folder = tmp_path_factory.mktemp('whole')
  programs.write_corpus(folder)
  done = train(folder)
  assert done.returncode == 0, done.stderr
  return folder


@pytest.fixture
def copied(whole, tmp_path):
  """The run, which has lost its last checkpoint and goes on from 20."""
  shutil.copytree(whole / 'run', tmp_path / 'run')
  shutil.copytree(whole / 'data', tmp_path / 'data')
  shutil.copy(whole / 'corpus.txt', tmp_path)
  shutil.rmtree(tmp_path / 'run/checkpoints/30')
  return tmp_path


@pytest.fixture
def fresh(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


def contents(folder):
  paths = [p for p in folder.rglob('*') if p.is_file()]
  return {p: p.read_bytes() for p in paths if p.name != 'lock'}


@pytest.mark.parametrize(
  'wrong, words',
  [
    ('model.cutoffs=(300,)', 'cutoffs'),
    ('train.segment_len=9000', 'train.segment_len (9000)'),
    ('train.batch_size=9', 'train.batch_size'),
  ],
)
def test_a_refused_start_leaves_nothing(fresh, wrong, words):
  assert_refused(train(fresh, wrong, devices=8), words)
  assert not (fresh / 'run').exists()


@pytest.mark.parametrize('name', ['a\\b', 'a\udc80', 'gs:/b'])
def test_a_workdir_that_could_not_be_read_again(fresh, name):
  flags = (f'--workdir={fresh / name}',)
  assert_refused(train(fresh, flags=flags), 'in UTF-8 without')
  assert sorted(x.name for x in fresh.iterdir()) == ['corpus.txt']


@pytest.mark.thorough
def test_a_folder_with_the_name_of_a_pattern(whole, tmp_path):
  """Trained, resumed and loaded as in any other folder."""
  folder = tmp_path / 'exp[1]*'
  folder.mkdir()
  shutil.copy(whole / 'corpus.txt', folder)
  assert train(folder).returncode == 0
  shutil.rmtree(folder / 'run/checkpoints/30')
  done = train(folder)
  assert done.returncode == 0, done.stderr
  assert 'continuing from step 20' in done.stderr
  assert record(folder) == record(whole)
  run = txl_jax.load(folder / 'run')
  text = (folder / 'corpus.txt').read_text()[:200]
  expected = txl_jax.load(whole / 'run').score(text)
  assert run.score(text).bits_per_byte == expected.bits_per_byte


@pytest.mark.thorough
@pytest.mark.parametrize('damage', [None, '{"optim": {"lr": '])
def test_the_config_of_the_checkpoint_counts(copied, whole, damage):
  path = copied / 'run/config.json'
  path.unlink() if damage is None else path.write_text(damage)
  for key in 'optim.average=ema', 'seed=1', 'model.d_ff=9':
    assert_refused(
      train(copied, key), f'holds a run with {key.split("=")[0]} ='
    )
  done = train(copied)
  assert done.returncode == 0, done.stderr
  assert record(copied) == record(whole)
  assert json.loads(path.read_text())['seed'] == 0


def test_a_copy_of_a_step_is_not_that_step(copied, whole):
  checkpoints = copied / 'run/checkpoints'
  shutil.copytree(checkpoints / '20', checkpoints / '30')
  (checkpoints / '24').symlink_to(checkpoints / '20')
  done = train(copied)
  assert done.returncode == 0, done.stderr
  assert (
    'checkpoint 30 is damaged and not used: it is a copy of 20' in done.stderr
  )
  assert 'continuing from step 20' in done.stderr
  assert record(copied) == record(whole)


@pytest.mark.thorough
def test_an_unsealed_copy_is_refused(copied):
  checkpoints = copied / 'run/checkpoints'
  (checkpoints / '20').rename(checkpoints / '30')
  (checkpoints / '30/seal.json').unlink()
  before = contents(copied)
  assert_refused(train(copied), 'holds checkpoints [30], none of which can be')
  assert contents(copied) == before


@pytest.mark.thorough
def test_checkpoints_that_are_gone(copied):
  """The run begins again, and its record is kept."""
  shutil.rmtree(copied / 'run/checkpoints')
  lines = (copied / 'run/metrics.jsonl').read_bytes()
  done = train(copied, 'train.steps=2')
  assert done.returncode == 0, done.stderr
  assert 'has no checkpoint of a run and is taken over' in done.stderr
  assert (copied / 'run/metrics.jsonl.kept-1').read_bytes() == lines


def test_a_file_in_the_place_of_the_checkpoints(copied):
  shutil.rmtree(copied / 'run/checkpoints')
  (copied / 'run/checkpoints').write_text('')
  before = contents(copied)
  assert_refused(train(copied), 'run/checkpoints is not a folder')
  assert contents(copied) == before


@pytest.mark.thorough
def test_a_damaged_record_is_kept(copied, whole):
  path = copied / 'run/metrics.jsonl'
  data = path.read_bytes()
  path.write_bytes(b'\xff' + data[1:])
  done = train(copied)
  assert done.returncode == 0, done.stderr
  assert record(copied) == record(whole)[10:]
  assert f'warning: {path} does not match' in done.stderr
  assert (copied / 'run/metrics.jsonl.kept-1').read_bytes()[1:] == data[1:]


@pytest.mark.slow
def test_the_vocabulary_of_the_checkpoint_counts(copied):
  path = copied / 'run/vocabulary.json'
  text = path.read_text()
  for damage in text.replace('97', '98', 1), '[' * 10_000, None:
    path.unlink() if damage is None else path.write_text(damage)
    printed = []
    for name in 'eval', 'generate':
      done = train(copied, flags=[f'--mode={name}'])
      assert done.returncode == 0, done.stderr
      printed.append(done.stdout)
  done = train(copied)
  assert done.returncode == 0, done.stderr
  assert path.read_text() == text
