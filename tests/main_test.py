"""The program as its users meet it: what it prints, and what it refuses."""

import importlib.util
import os
import re
import shutil
import sys

import numpy as np
import pytest

import txl_jax
from tests import programs
from tests.programs import assert_refused
from txl_jax.data.prepared import load as load_prepared
from txl_jax.runs import weights_file


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a corpus and a finished run."""
  folder = tmp_path_factory.mktemp('trained')
  programs.write_corpus(folder)
  done = here(folder)
  assert done.returncode == 0, done.stderr
  folder.joinpath('printed').write_text(done.stdout)
  return folder


@pytest.fixture
def corpus(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


def mode(folder, name, *overrides, flags=(), run=programs.here):
  flags = (f'--mode={name}', *flags)
  return run(programs.command(folder, *overrides, flags=flags))


def here(folder, *overrides, **options):
  """Trains in this process."""
  overrides = ('train.batch_size=8', *overrides)
  return programs.here(programs.command(folder, *overrides, **options))


@pytest.mark.thorough
def test_training_ends_with_figures_and_commands(trained):
  lines = (trained / 'printed').read_text().splitlines()
  assert lines[0].startswith('best validation: ')
  text = (trained / 'corpus.txt').read_bytes()
  # Words at random: no model gets below their entropy, log2(9) bits a word.
  floor = np.log2(9) * len(text.split()) / len(text)
  assert floor < float(lines[1].split()[5]) < 8
  (command,) = (s for s in lines if s.startswith('evaluate:'))
  arguments = [sys.executable, *command.split()[2:]]
  done = programs.run(arguments)
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('validation: ')


def with_its_own_config(trained, *more):
  """The command of a run without --config: what it has written is used."""
  arguments = [sys.executable, '-m', 'txl_jax.main']
  arguments += [f'--workdir={trained}/run']
  return [*arguments, *more]


def test_the_run_continues_with_its_own_config(trained):
  done = programs.here(with_its_own_config(trained))
  assert done.returncode == 0, done.stderr
  assert 'continuing from step 60' in done.stderr
  begun = f'--config.train.init_from={trained}/run'
  done = programs.here([sys.executable, '-m', 'txl_jax.main', begun])
  assert_refused(done, '--workdir is missing: name a folder for the new run')


@pytest.mark.thorough
def test_keys_that_are_unset_can_be_set(trained):
  """The program of `trained` set mem_len alone."""
  names = ('mem_len=4', 'same_length=M', 'clamp_len=3')
  own = [f'--config.eval.model.{name}' for name in names]
  overridden = programs.here(with_its_own_config(trained, '--mode=eval', *own))
  overrides = [f'eval.model.{name}' for name in names]
  of_common = mode(trained, 'eval', *overrides)
  for done in overridden, of_common:
    assert done.returncode == 0, done.stderr
    assert '(T 8, mem_len 4, same_length M, clamp_len 3, ' in done.stdout
  unset = programs.here(with_its_own_config(trained, '--mode=eval'))
  assert '(T 8, mem_len 16, 1 streams)' in unset.stdout
  figures = [d.stdout.split(',')[0] for d in (overridden, of_common, unset)]
  assert figures[0] == figures[1] != figures[2]


def test_evaluation_scores_every_token_once(trained, tmp_path):
  path = tmp_path / 'nll.npy'
  more = 'eval.split=test', f'eval.nll_file={path}'
  done = mode(trained, 'eval', *more)
  assert done.returncode == 0, done.stderr
  # The rule of corpus text: 90 / 5 / 5 by bytes, each cut after a newline.
  text = (trained / 'corpus.txt').read_bytes()
  cut = text.index(b'\n', len(text) * 95 // 100 - 1) + 1
  n = len(text) - cut
  assert f'{n} tokens, {n - 1} scored' in done.stdout
  nll = np.load(path)
  assert nll.shape == (n - 1,) and np.all(nll > 0)
  assert f'({nll.mean(dtype=np.float64):.5f} nats)' in done.stdout


@pytest.mark.thorough
def test_generation_from_standard_input_and_a_file(trained, tmp_path):
  few = 'generate.max_new_tokens=40'
  command = programs.command(
    trained, few, 'generate.prompt_file=-', flags=['--mode=generate']
  )
  piped = programs.run(command, input='ségment')
  assert piped.returncode == 0, piped.stderr
  assert piped.stdout.startswith('ségment')
  (tmp_path / 'prompt').write_text('ségment')

  def from_file(seed):
    more = (
      few,
      f'generate.prompt_file={tmp_path}/prompt',
      f'generate.seed={seed}',
    )
    done = mode(trained, 'generate', *more)
    return done.stdout.splitlines()  # a pipe makes \n of \r

  assert from_file(0) == piped.stdout.splitlines() != from_file(1)


def test_export_and_load(trained, tmp_path):
  path = tmp_path / 'model.npz'
  flags = [f'--export_file={path}']
  done = mode(trained, 'export', flags=flags)
  assert done.returncode == 0, done.stderr
  model, params, vocabulary = weights_file.load(path)
  assert model.config.n_layer == 2 and len(vocabulary) == 256
  assert params['layers_1']['ff']['w1']['kernel'].shape == (16, 32)


FLAG = '--xla_gpu_deterministic_ops'


@pytest.mark.parametrize(
  'plugin, given, deterministic, expected',
  [
    ('jax_cuda12_plugin', None, True, [f'{FLAG}=true']),
    ('jax_cuda12_plugin', '--a --b=3', True, ['--a', '--b=3', f'{FLAG}=true']),
    ('jax_cuda12_plugin', '--a', False, ['--a']),
    ('jax_cuda12_plugin', f'{FLAG}=false', True, [f'{FLAG}=false']),
    ('jax_cuda13_plugin', None, True, [f'{FLAG}=true']),
    ('jax_rocm7_plugin', None, True, [f'{FLAG}=true']),
    ('libtpu', '--a', True, ['--a']),
    ('', None, True, []),
  ],
)
def test_gpus_are_deterministic(
  corpus, monkeypatch, plugin, given, deterministic, expected
):
  monkeypatch.setenv('XLA_FLAGS', given or '')
  if given is None:
    monkeypatch.delenv('XLA_FLAGS')

  def find_spec(name):
    return name if name == plugin else None

  monkeypatch.setattr(importlib.util, 'find_spec', find_spec)
  command = programs.command(
    corpus, f'deterministic={deterministic}', flags=['--process_id=0']
  )
  for _ in range(2):  # and never twice
    done = programs.here(command)  # which ends after that
    assert_refused(done, '--process_id=0')
    assert os.environ.get('XLA_FLAGS', '').split() == expected


def test_a_folder_of_another_run(trained):
  done = here(trained, 'model.d_ff=48')
  assert_refused(done, 'model.d_ff = 32', 'has 48')
  done = here(trained, 'train.resume=never')
  assert_refused(done, 'train.resume is never', 'step 60')


def test_a_folder_of_another_corpus(trained, tmp_path):
  shutil.copytree(trained / 'run', tmp_path / 'run')
  programs.write_corpus(tmp_path, 19_000)
  done = here(tmp_path)
  assert_refused(done, 'holds a run on another corpus', 'found text-corpus')
  done = mode(tmp_path, 'eval')
  assert done.returncode == 0
  assert 'was trained on another corpus (sha256 ' in done.stderr
  assert 'the split validation may contain training text' in done.stderr


def test_a_text_is_not_overwritten_by_nll(trained, tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('some text')
  done = mode(trained, 'eval', f'eval.nll_file={path}')
  assert_refused(done, 'eval.nll_file is ', 'a name that ends in .npy')
  assert path.read_text() == 'some text'


START = 'generate.prompt=the'


@pytest.mark.thorough
def test_another_config_than_that_of_the_run(trained, tmp_path):
  few = START, 'generate.max_new_tokens=3', 'train.batch_size=8'
  head = 'from txl_jax.configs import common\n\n\ndef get_config():\n'
  text = (
    f'{head}  c = common.get_config()\n  c.train.varlen = True\n  return c\n'
  )
  (tmp_path / 'mine.py').write_text(text)
  more: dict = dict(config=tmp_path / 'mine.py', flags=['--mode=generate'])
  done = programs.here(programs.command(trained, *few, **more))
  assert done.returncode == 0, done.stderr
  assert 'another config: train.varlen is True, not False; with' in done.stderr
  assert 'warning' not in mode(trained, 'generate', *few, 'optim.lr=9').stderr


@pytest.mark.thorough
def test_what_is_not_there(trained, tmp_path):
  def refused(folder, name, *overrides):
    return mode(folder, name, *overrides)

  assert_refused(refused(trained, 'eval', 'checkpoint=7'), "'7'", '60')
  assert_refused(refused(tmp_path, 'eval'), f'{tmp_path}/run holds no run')
  file = f'generate.prompt_file={tmp_path}/none'
  assert_refused(refused(trained, 'generate', file), 'prompt_file', 'none')
  for name, override, word in (
    ('eval', 'eval.batch_size=5000', 'eval.batch_size is 5000'),
    ('eval', 'eval.model.mem_len=1000000000', 'out of memory: '),
    ('generate', 'generate.model.mem_len=1000000000', 'out of memory: '),
    ('generate', 'generate.samples=1000000000', 'at most 1000000'),
  ):
    assert_refused(refused(trained, name, override, START), word)


@pytest.mark.slow
def test_a_loss_that_is_not_finite(corpus):
  options = ('optim.lr=1e38', 'optim.warmup=40', 'optim.schedule=constant')
  done = programs.run(programs.command(corpus, *options, 'train.save_every=1'))
  assert_refused(done, 'not finite at step', 'the last good checkpoint is step')
  step = int(done.stderr.split('not finite at step ')[1].split(';')[0])
  good = int(done.stderr.split('checkpoint is step ')[1].split()[0])
  assert 1 <= good < step
  file = corpus / 'good.npz'
  flags = [f'--export_file={file}']
  done = mode(corpus, 'export', *options, 'train.save_every=1', flags=flags)
  assert done.returncode == 0, done.stderr
  weights_file.load(file)  # whose numbers are finite


@pytest.mark.slow
def test_a_full_disk(corpus):
  command = programs.command(corpus, 'train.steps=20', 'model.d_ff=2048')
  done = programs.run(programs.limited(command, 200))
  assert_refused(done, 'run', 'cannot be written')
  # The same command, with space again; it removes what a thread that was
  # still writing may have left.
  done = programs.run(command)
  assert done.returncode == 0, done.stderr
  after = sorted(p.name for p in (corpus / 'run/checkpoints').iterdir())
  assert after == ['10', '20']


@pytest.mark.slow
def test_a_split_as_a_file_has_the_same_figure(trained, tmp_path):
  (prepared,) = (trained / 'data').glob('*/manifest.json')
  corpus = load_prepared(prepared.parent)
  text = corpus.vocabulary.decode(corpus.tokens('validation'))
  (tmp_path / 'split.txt').write_bytes(text)
  flags = [f'--text={tmp_path}/split.txt', f'--score_file={tmp_path}/nll.jsonl']
  done = mode(trained, 'score', flags=flags)
  assert done.returncode == 0, done.stderr
  there = mode(trained, 'eval')
  assert 'warning' not in there.stderr
  found = re.search(r': (\S+ bpc \(\S+ nats\)), (\S+) bits', done.stdout)
  assert found[1] in there.stdout and found[1].startswith(found[2])
  lines = (tmp_path / 'nll.jsonl').read_text().splitlines()
  assert len(lines) == len(text) - 1
  run = txl_jax.load(trained / 'run')
  score = run.score(text, segment_len=8, mem_len=16)
  assert f'{score.bits_per_byte:.5f} bpc' == found[1].split(' (')[0]
  done = mode(trained, 'score')
  assert_refused(done, '--text=FILE is missing: the text to score')


def test_a_text_is_not_overwritten_by_its_score(trained, tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('some text')
  flags = [f'--text={path}', f'--score_file={tmp_path}/./a.txt']
  done = mode(trained, 'score', flags=flags)
  assert_refused(done, '--score_file is ', 'a file other than --text')
  assert path.read_text() == 'some text'
