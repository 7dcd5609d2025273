"""The program as its users meet it: what it prints, and what it refuses."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import txl_jax
from tests import programs
from txl_jax.runs import metrics_log, weights_file


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a corpus and a finished run."""
  folder = tmp_path_factory.mktemp('trained')
  programs.write_corpus(folder)
  done = programs.run(programs.command(folder))
  assert done.returncode == 0, done.stderr
  folder.joinpath('printed').write_text(done.stdout)
  return folder


@pytest.fixture
def corpus(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


def mode(folder, name, *overrides, flags=()):
  flags = (f'--mode={name}', *flags)
  return programs.run(programs.command(folder, *overrides, flags=flags))


def assert_refused(done, *words):
  """One line on standard error, a status, no traceback."""
  assert done.returncode == 1, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith('error: ')
  assert 'Traceback' not in done.stderr
  for word in words:
    assert word in last


def test_training_ends_with_figures_and_commands(trained):
  lines = (trained / 'printed').read_text().splitlines()
  assert lines[0].startswith('best validation: ')
  text = (trained / 'corpus.txt').read_bytes()
  packed = [line.split() for line in lines if line.startswith('  ')]
  assert [p[0] for p in packed] == ['this', 'gzip', 'xz']
  # Words at random: no model and no compressor gets below their entropy,
  # log2(9) bits a word.
  floor = np.log2(9) * len(text.split()) / len(text)
  assert floor < float(packed[1][2]) < 8
  assert floor < float(packed[0][2]) < 8
  (command,) = (s for s in lines if s.startswith('evaluate:'))
  arguments = [sys.executable, *command.split()[2:]]
  done = programs.run(arguments)
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('validation: ')


def test_the_run_continues_with_its_own_config(trained):
  arguments = [sys.executable, '-m', 'txl_jax.main']
  arguments += [f'--config={trained}/run/config.py', f'--workdir={trained}/run']
  done = programs.run(arguments)
  assert done.returncode == 0, done.stderr
  assert 'continuing from step 60' in done.stderr


def test_evaluation_scores_every_token_once(trained, tmp_path):
  path = tmp_path / 'nll.npy'
  done = mode(trained, 'eval', 'eval.split=test', f'eval.nll_file={path}')
  assert done.returncode == 0, done.stderr
  # The rule of corpus text: 90 / 5 / 5 by bytes, each cut after a newline.
  text = (trained / 'corpus.txt').read_bytes()
  cut = text.index(b'\n', len(text) * 95 // 100 - 1) + 1
  n = len(text) - cut
  assert f'{n} tokens, {n - 1} scored' in done.stdout
  nll = np.load(path)
  assert nll.shape == (n - 1,) and np.all(nll > 0)
  assert f'({nll.mean(dtype=np.float64):.5f} nats)' in done.stdout


def test_generation_streamed_or_not_is_the_same(trained):
  prompt = 'generate.prompt=the mem'
  streamed = mode(trained, 'generate', prompt, 'generate.seed=3')
  assert streamed.returncode == 0, streamed.stderr
  assert streamed.stdout.startswith('the mem')
  whole = mode(
    trained, 'generate', prompt, 'generate.seed=3', 'generate.stream=False'
  )
  assert whole.stdout == streamed.stdout
  other = mode(trained, 'generate', prompt, 'generate.seed=4')
  assert other.stdout != streamed.stdout


def test_prompt_from_file_and_standard_input(trained, tmp_path):
  (tmp_path / 'prompt').write_text('ségment')
  file = mode(trained, 'generate', f'generate.prompt_file={tmp_path}/prompt')
  command = programs.command(
    trained, 'generate.prompt_file=-', flags=['--mode=generate']
  )
  piped = programs.run(command, input='ségment')
  assert file.stdout.startswith('ségment')
  assert piped.stdout == file.stdout


def test_several_samples(trained):
  done = mode(trained, 'generate', 'generate.samples=2')
  assert done.returncode == 0, done.stderr
  assert '=== sample 2 of 2' in done.stdout


def test_export_and_load(trained, tmp_path):
  path = tmp_path / 'model.npz'
  done = mode(trained, 'export', flags=[f'--export_file={path}'])
  assert done.returncode == 0, done.stderr
  model, params, vocabulary = weights_file.load(path)
  assert model.n_layer == 2 and len(vocabulary) == 256
  assert params['layers_1']['ff']['w1']['kernel'].shape == (16, 32)


def test_version():
  done = programs.run([sys.executable, '-m', 'txl_jax.main', '--version'])
  assert done.stdout == f'txl_jax {txl_jax.__version__}\n'
  assert done.returncode == 0


@pytest.mark.parametrize(
  ('override', 'words'),
  [
    ('train.stepz=3', ['stepz']),
    ('train.steps=many', ['steps', 'many']),
    ('train.steps=0', ['train.steps is 0', 'at least 1']),
    ('data.path=/no/such', ['/no/such']),
    ('train.segment_len=90000', ['360001', 'train.segment_len (90000)']),
    ('train.resume=must', ['no checkpoint', 'train.resume is must']),
    (
      'data.corpus=enwik8',
      ['data.path'],
    ),
  ],
)
def test_refused_values(corpus, override, words):
  assert_refused(programs.run(programs.command(corpus, override)), *words)


def test_a_corpus_that_is_to_be_prepared(tmp_path):
  done = programs.run(
    [
      sys.executable,
      '-m',
      'txl_jax.main',
      '--config=configs/enwik8_12l.py',
      f'--workdir={tmp_path}/run',
      f'--config.data.dir={tmp_path}/data',
    ]
  )
  assert_refused(
    done,
    'python -m txl_jax.prepare --dataset=enwik8 --newline=drop '
    f'--data_dir={tmp_path}/data',
  )


def test_an_empty_corpus(tmp_path):
  (tmp_path / 'corpus.txt').touch()
  done = programs.run(programs.command(tmp_path))
  assert_refused(done, 'corpus.txt', 'empty')


def test_rows_that_the_devices_cannot_share(corpus):
  done = subprocess.run(
    programs.command(corpus),
    cwd=programs.ROOT,
    env=programs.environment()
    | {'XLA_FLAGS': '--xla_force_host_platform_device_count=8'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert_refused(done, 'train.batch_size is 4', 'multiples of 8')


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ((), ['--config is missing']),
    (('--config=nowhere.py',), ['nowhere.py']),
    (('--config=configs/common.py', '--mode=test'), ['--mode=test', 'eval']),
    (('--config=configs/common.py', 'eval'), ["'eval' is not expected"]),
    (('--config=configs/common.py', '--worker=3'), ['worker']),
  ],
)
def test_refused_flags(arguments, words):
  command = [sys.executable, '-m', 'txl_jax.main', *arguments]
  assert_refused(programs.run(command), *words)


# The program, and at its end how often a compiled program was found.
COUNTED = """
import atexit, collections, sys
from jax import monitoring
from txl_jax import main
counts = collections.Counter()
monitoring.register_event_listener(lambda name, **_: counts.update([name]))
found = lambda kind: counts[f'/jax/compilation_cache/cache_{kind}']
atexit.register(lambda: print('cache', found('hits'), found('misses')))
sys.argv[0] = 'main'
main.entry()
"""


@pytest.mark.slow
def test_a_second_run_compiles_nothing(tmp_path):
  environment = programs.environment()
  del environment['JAX_COMPILATION_CACHE_DIR']
  steps = 'train.steps=5', 'train.log_every=5'
  cache = tmp_path / 'made/cache'

  def run(name, *overrides):
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    programs.write_corpus(folder)
    arguments = programs.command(folder, *steps, *overrides)
    done = subprocess.run(
      [sys.executable, '-c', COUNTED, *arguments[3:]],
      cwd=programs.ROOT,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    hits, misses = map(
      int, re.search(r'cache (\d+) (\d+)', done.stdout).groups()
    )
    record = [
      {k: v for k, v in r.items() if k not in metrics_log.CLOCK}
      for r in metrics_log.read(folder / 'run/metrics.jsonl')
    ]
    return hits, misses, record

  key = f'train.compilation_cache={cache}'
  first, second = run('first', key), run('second', key)
  assert first[1] > 0 and len(list(cache.iterdir())) > 0
  assert second[0] > 0 and second[1] == 0
  assert first[2] == second[2]


def test_a_cache_that_cannot_be_made(corpus):
  (corpus / 'file').touch()
  cache = f'{corpus}/file/cache'
  done = programs.run(
    programs.command(corpus, f'train.compilation_cache={cache}')
  )
  assert_refused(
    done, f"train.compilation_cache is '{cache}', which cannot be made"
  )


def test_a_config_file_with_a_mistake(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from configs import common\n\n\ndef get_config():\n'
    '  c = common.get_config()\n  c.model.layers = 3\n  return c\n'
  )
  command = [sys.executable, '-m', 'txl_jax.main', f'--config={path}']
  assert_refused(programs.run(command), 'layers')


def test_a_folder_of_another_run(trained):
  done = programs.run(programs.command(trained, 'model.d_ff=48'))
  assert_refused(done, 'model.d_ff = 32', 'has 48')
  done = programs.run(programs.command(trained, 'train.resume=never'))
  assert_refused(done, 'train.resume is never', 'step 60')


def test_a_folder_of_another_corpus(trained, tmp_path):
  shutil.copytree(trained / 'run', tmp_path / 'run')
  programs.write_corpus(tmp_path, 19_000)
  done = programs.run(programs.command(tmp_path))
  assert_refused(done, 'holds a run on corpus text-corpus', 'found text-corpus')


def test_another_model(trained):
  done = mode(trained, 'eval', 'model.d_ff=48')
  assert_refused(done, 'model.d_ff = 32', 'has 48', 'run/config.py')


def test_what_is_not_there(trained, tmp_path):
  assert_refused(mode(trained, 'eval', 'checkpoint=7'), "'7'", '60')
  assert_refused(mode(tmp_path, 'eval'), f'{tmp_path}/run holds no run')
  file = f'generate.prompt_file={tmp_path}/none'
  assert_refused(mode(trained, 'generate', file), 'prompt_file', 'none')
  assert_refused(
    mode(trained, 'eval', 'eval.batch_size=5000'), 'eval.batch_size 5000'
  )


@pytest.mark.slow
def test_a_loss_that_is_not_finite(corpus):
  options = ('optim.lr=1e38', 'optim.warmup=40', 'optim.schedule=constant')
  done = programs.run(programs.command(corpus, *options, 'train.save_every=1'))
  assert_refused(done, 'not finite at step', 'the last good checkpoint is step')
  step = int(done.stderr.split('not finite at step ')[1].split(';')[0])
  good = int(done.stderr.split('checkpoint is step ')[1].split()[0])
  assert 1 <= good < step
  done = mode(corpus, 'eval', *options, 'train.save_every=1')
  assert done.returncode == 0, done.stderr


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
