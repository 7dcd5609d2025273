"""--mode=eval_speed of a tiny run, and of none."""

import json

import pytest

from tests import compilations
from tests.modes import runs, subjects
from txl_jax.paper import eval_speed
from txl_jax.program.errors import UserError


def config():
  c = subjects.config()
  c.eval_speed.update(lengths=(8, 9), tokens=1, repeats=2)
  return c


def measure(c, folder):
  return subjects.measure(eval_speed, c, folder, 'eval_speed', subjects.ALWAYS)


@pytest.mark.thorough
def test_a_run(folder, monkeypatch):
  monkeypatch.setitem(eval_speed.PAPER, 9, 363)
  record = measure(config(), folder)
  assert record['parameters'] == 'trained'
  for row, paper in zip(record['lengths'], (None, 363), strict=True):
    ms = row['memory_seconds_per_token'], row['window_seconds_per_token']
    assert min(ms) > 0
    assert row['times_slower'] == pytest.approx(ms[1] / ms[0])
    assert row['paper_times_slower'] == paper


def test_timed_calls_do_not_compile(folder, monkeypatch):
  """Only the first call of each model compiles, and it is not timed."""
  calls = []
  score = eval_speed.scoring.jit_score
  counting = lambda *args, **how: calls.append(0) or score(*args, **how)
  monkeypatch.setattr(eval_speed.scoring, 'jit_score', counting)
  c = config()
  c.eval_speed.lengths, c.eval_speed.tokens = (7,), 3
  with compilations.counted() as compiled:
    measure(c, folder)
  # With a memory, and with a window.
  assert compiled.count('jit(score_segments)') == 2
  assert len(calls) == 2 * (1 + 2)


@pytest.mark.thorough
def test_no_run(tmp_path, capfd):
  """enwik8 need not be there: its number of symbols is known."""
  c = config()
  c.data.corpus = 'enwik8'
  c.experiment = 'enwik8_12l'
  c.eval_speed.lengths, c.eval_speed.window = (5,), 'al_rfou'
  eval_speed.run(runs.job(c, tmp_path / 'new', silent=False))
  told = capfd.readouterr()
  assert ', window: al_rfou, on one device' in told.out
  assert 'fresh parameters' in told.out and 'no run in the folder' in told.err
  path = tmp_path / 'new/analysis/eval_speed.json'
  record = json.loads(path.read_text())
  assert record['experiment'] == 'enwik8_12l'
  assert record['averaged_over_steps'] == 0 and not record['checkpoint_step']


def test_one_device_of_one_process(folder, monkeypatch):
  def load(config, folder, mesh):
    raise UserError(f'size {mesh.size}')

  monkeypatch.setattr(eval_speed.saved_model, 'load', load)
  with pytest.raises(UserError, match=r'^size 1$'):
    eval_speed.run(runs.job(config(), folder))
  monkeypatch.setattr(eval_speed.processes, 'count', lambda: 2)
  with pytest.raises(UserError, match='for one process; there are 2'):
    eval_speed.run(runs.job(config(), folder))
