"""--mode=sliding_window of a tiny run."""

import pytest

from tests.modes import runs, subjects
from txl_jax.modes import evaluate
from txl_jax.modes.measurements import sliding_window
from txl_jax.program.errors import UserError


def config(**model):
  c = subjects.config(**model)
  c.sliding_window.update(tokens=60)
  return c


def test_both_ways(plain, corpus, capfd):
  c = config(mem_len=0)
  record = subjects.measure(sliding_window, c, plain, 'sliding_window')
  assert record['window_tokens'] == 6  # of training
  assert record['tokens'] == 60 and record['scored_tokens'] == 59
  rows = record['positions']
  assert [(r['first'], r['last']) for r in rows] == [
    (1, 1), (2, 2), (3, 4), (5, 6),
  ]  # fmt: skip
  assert sum(r['tokens'] for r in rows) == 59
  for way in 'segments', 'window':
    mean = sum(r['tokens'] * r[f'{way}_nats'] for r in rows) / 59
    assert record[way]['nats'] == pytest.approx(mean, rel=1e-5)
  out = capfd.readouterr().out
  assert f'{record["window"]["bpc"]:.4f}' in out
  # The same as --mode=eval gives, of all tokens.
  c.sliding_window.update(tokens=0, window=4)
  record = subjects.measure(sliding_window, c, plain, 'sliding_window')
  c.eval.update(segment_len=4)
  segments = evaluate.run(runs.job(c, plain))
  c.eval.update(window=4)
  window = evaluate.run(runs.job(c, plain))
  assert record['segments']['nats'] == pytest.approx(segments.nats, rel=1e-5)
  assert record['window']['nats'] == pytest.approx(window.nats, rel=1e-5)


def test_a_model_with_memory_is_refused(folder, corpus):
  with pytest.raises(UserError, match=r'allowed: .*eval.model.mem_len=0'):
    sliding_window.run(runs.job(config(), folder))


def test_a_memory_that_cannot_be_taken_away(folder, corpus):
  job = runs.job(config(), folder)
  with job.config.eval.unlocked():
    job.config.eval.model = {}  # as of a recurrent model
  with pytest.raises(UserError, match=r'allowed: such a model$'):
    sliding_window.run(job)
