"""A run that is stopped and started again has the record of one that is not.

Real processes, killed for real.
"""

import signal
import time

import pytest

from tests import kills, programs
from tests.programs import record
from tests.runs.metrics_log_test import events

pytestmark = pytest.mark.thorough

OPTIONS = 'train.steps=80', 'train.accumulate=2', 'train.varlen=True'
OPTIONS += 'train.log_every=7', 'train.eval_every=20', 'train.save_every=15'
OPTIONS += 'model.dropout=0.2', 'model.dropatt=0.1', 'optim.lr=3e-2'
OPTIONS += 'optim.schedule=plateau', 'optim.warmup=10'
OPTIONS += ('optim.state_dtype=bfloat16',)


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole')
  programs.write_corpus(folder)
  done = programs.run(programs.command(folder, *OPTIONS))
  assert done.returncode == 0, done.stderr
  return folder


@pytest.fixture
def fresh(tmp_path):
  programs.write_corpus(tmp_path)
  return tmp_path


def start(folder, *options):
  (begun,) = programs.together(programs.command(folder, *options), 1, 1)
  return begun


def wait_for_lines(process, folder, count):
  """Waits until the log has that many lines, or the process ends."""
  path = folder / 'run/metrics.jsonl'
  deadline = time.monotonic() + 120
  while process.poll() is None and time.monotonic() < deadline:
    if path.exists() and path.read_bytes().count(b'\n') >= count:
      return
    time.sleep(0.002)


def test_the_record_is_complete(uninterrupted):
  steps = [r['step'] for r in record(uninterrupted) if r['split'] == 'train']
  assert steps == [*range(7, 80, 7), 80]
  steps = [r['step'] for r in record(uninterrupted) if r['split'] != 'train']
  assert steps == [20, 40, 60, 80]
  late = (r for r in record(uninterrupted) if r['step'] > 20 and 'lr' in r)
  rates = {r['lr'] for r in late}
  assert len(rates) > 1, 'the plateau schedule has not acted'


def stop(folder, lines, options=OPTIONS, number=signal.SIGTERM):
  """Starts a run, and asks it to stop after some lines of its log."""
  process = start(folder, *options)
  wait_for_lines(process, folder, lines)
  process.send_signal(number)
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 128 + number, errors
  assert 'Traceback' not in errors
  assert 'the same command continues' in errors.splitlines()[-1]


@pytest.mark.slow  # of SIGTERM the next test
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGHUP])
def test_asked_to_stop(uninterrupted, fresh, number):
  stop(fresh, 5, number=number)
  done = programs.run(programs.command(fresh, *OPTIONS))
  assert done.returncode == 0, done.stderr
  assert 'continuing from step' in done.stderr
  assert record(fresh) == record(uninterrupted)


def test_asked_to_stop_and_killed_again_and_again(uninterrupted, fresh):
  """A few kills as in `tests.kills`, which makes a hundred."""
  stop(fresh, 5)
  said = record(fresh)
  assert said and said == record(uninterrupted)[: len(said)]
  run = kills.Run(fresh, OPTIONS, record(uninterrupted), save_every=15)
  for step, delay, aimed in kills.plan(2, 80, seed=0):
    run.kill(step, delay, aimed)
  # A crash may tear the last line; and these lines are of a later step.
  with (fresh / 'run/metrics.jsonl').open('a') as f:
    f.write('{"step": 119, "split": "train", "time": 0, "nats": 9}\n{"step": 2')
  run.finish()
  assert not run.problems
  assert 'continuing from step' in (fresh / 'errors.txt').read_text()
  assert len(run.rows) == 2 and run.in_saves >= 1
  found = [events(folder / 'run') for folder in (fresh, uninterrupted)]
  steps, others = ([(step, tag) for step, tag, _ in x] for x in found)
  assert steps == others


@pytest.mark.slow
def test_an_evaluation_cut_short_is_run_again(fresh):
  # Evaluation takes seconds here, and comes at steps 20 and 40 alone.
  slow = ('train.steps=40', 'train.eval_every=20', 'train.eval_batch_size=1')
  slow += ('train.eval_tokens=0', 'eval.segments_per_call=1')
  programs.write_corpus(fresh, 400_000)
  process = start(fresh, *slow)
  wait_for_lines(process, fresh, 4)  # steps 5, 10, 15, 20
  time.sleep(0.3)
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM
  assert [r['split'] for r in record(fresh)] == ['train'] * 4
  done = programs.run(programs.command(fresh, *slow))
  assert done.returncode == 0, done.stderr
  order = [(r['step'], r['split'] == 'train') for r in record(fresh)]
  train = [(s, True) for s in range(5, 41, 5)]
  assert order == [*train[:4], (20, False), *train[4:], (40, False)]
  # The final checkpoint knows of the evaluation that was made up for.
  done = programs.run(programs.command(fresh, *slow, flags=['--mode=eval']))
  assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('average', ['ema', 'nt'])
def test_averages_continue(tmp_path, average):
  """Stopped before and after the mean has started; then evaluated."""
  options = f'optim.average={average}', 'optim.ema_decay=0.9'
  options += 'optim.average_patience=1', 'optim.weight_decay=0.1'
  # Evaluation goes up and down.
  options += 'optim.schedule=constant', 'optim.lr=0.4', 'model.dropout=0.2'
  options += 'model.locked_dropout=True', 'model.word_dropout=0.1'
  options += 'model.activation_reg=0.1', 'train.steps=120'
  options += 'train.log_every=10', 'train.eval_every=10', 'train.eval_tokens=0'
  options += 'eval.batch_size=2', 'eval.model.mem_len=8', 'checkpoint=latest'
  folders = tmp_path / 'whole', tmp_path / 'stopped'
  for folder in folders:
    folder.mkdir()
    programs.write_corpus(folder)
  whole, stopped = folders
  done = programs.run(programs.command(whole, *options))
  assert done.returncode == 0, done.stderr
  for lines in (3, 17):
    stop(stopped, lines, options)
  done = programs.run(programs.command(stopped, *options))
  assert done.returncode == 0, done.stderr
  assert record(stopped) == record(whole)

  evaluations = [r for r in record(whole) if r['split'] == 'validation']
  counts = [r['averaged'] for r in evaluations]
  if average == 'ema':
    assert counts == list(range(10, 121, 10))
  else:
    start_ = 120 - counts[-1]  # the step that the trigger has found
    assert 30 <= start_ <= 80, 'stopped on one side of it alone'
    assert counts == [max(n - start_, 0) for n in range(10, 121, 10)]
  # What the last evaluation has scored is what a checkpoint is used with.
  command = programs.command(stopped, *options, flags=['--mode=eval'])
  done = programs.run(command)
  assert f'weights averaged over {counts[-1]} steps' in done.stderr
  assert f'({evaluations[-1]["nats"]:.5f} nats)' in done.stdout
