"""Runs that begin again: after a bad loss or a stop, or with other options."""

import contextlib
import dataclasses
import functools
import json
import signal
import types
from unittest import mock

import jax
import numpy as np
import pytest

from tests.refusing import refused
from tests.runs.checkpoint.saves import contents
from tests.training.fragile import B, Console, Corpus, M, config, record
from txl_jax.ops import matmul
from txl_jax.parallel import watchdog
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir
from txl_jax.training import host_state, loop, optim, plan, start


def test_rollback_passes_over_the_batches(make, tmp_path):
  trainer = make(Corpus(bad=[12]), nonfinite='rollback')
  trainer.train()
  read = trainer.batches
  at = next(i for i in range(1, len(read)) if read[i] != read[i - 1] + 1)
  assert read[:at] == [*range(at)] and 13 <= at <= 17
  assert read[at:] == [*range(13, 13 + 20)]
  lines = record(tmp_path)
  assert [r['step'] for r in lines] == [*range(4, 30, 4), 30]
  assert [r['rollbacks'] for r in lines] == [0, 0] + [1] * 6
  said = '\n'.join(trainer.console.said)
  assert 'not finite at step 13; rollback 1 of at most 2' in said
  assert 'continuing from step 10' in said


class EpochsOfTen:
  """Streams whose epochs end after every ten batches."""

  def __init__(self, streams):
    self._streams = streams

  def __getattr__(self, name):
    return getattr(self._streams, name)

  def locate(self, step):
    return divmod(step, 10)


def in_epochs_of_ten(make, figures, **more):
  """A Trainer that evaluates at their ends, and rolls back after batch 22."""
  options = dict(eval_every_epochs=1, nonfinite='rollback', figures=figures)
  trainer = make(Corpus(bad=[22]), **options, **more)
  trainer.streams = EpochsOfTen(trainer.streams)
  return trainer


@pytest.mark.thorough
def test_an_end_of_an_epoch_that_is_passed_over(make, tmp_path):
  """The step that the rollback returns to is evaluated instead."""
  figures = {10: 2.0, 20: 3.0, 16: 1.0, 23: 3.0, 30: 3.0}
  made = functools.partial(in_epochs_of_ten, make, figures, save_every=8)
  with pytest.raises(KeyboardInterrupt):
    made(crash=lambda t: t.progress.rollbacks and t.step == 18).train()
  trainer = made()
  assert (trainer.step, trainer.progress.passed_over) == (16, 7)
  assert trainer.state.memory.filled.tolist() == [0] * B
  trainer.train()
  assert trainer.batches == [*range(23, 37)]
  ends = [(r['step'], r['epochs']) for r in record(tmp_path, 'validation')]
  assert ends == [(10, 1), (16, 2), (23, 3), (30, 3)]


@pytest.mark.thorough
def test_a_rollback_to_an_evaluated_step(make, tmp_path):
  """The epoch whose end it passes over is evaluated a step later."""
  figures = {10: 1.0, 11: 2.0, 17: 2.0, 20: 2.0, 27: 2.0, 30: 2.0}
  trainer = in_epochs_of_ten(make, figures, save_every=100)
  trainer.train()
  assert trainer.batches[-20:] == [*range(23, 43)]
  ends = [(r['step'], r['epochs']) for r in record(tmp_path, 'validation')]
  assert ends == [(10, 1), (11, 2), (17, 3), (27, 4), (30, 4)]


@pytest.mark.slow
def test_a_rollback_is_made_again_after_a_crash(make, tmp_path):
  corpus = Corpus(bad=[12, 20])
  whole = tmp_path / 'whole'
  whole.mkdir()
  make(corpus, whole, nonfinite='rollback').train()
  assert record(whole)[-1]['rollbacks'] == 2
  for crash in 13, 21:
    trainer = make(
      corpus,
      crash=lambda t, at=crash: t.progress.rollbacks and t.step == at,
      nonfinite='rollback',
    )
    with pytest.raises(KeyboardInterrupt):
      trainer.train()
  make(corpus, nonfinite='rollback').train()
  assert record(tmp_path) == record(whole)


def test_rollback_has_a_limit_and_needs_a_checkpoint(make, tmp_path):
  trainer = make(Corpus(bad=[12, 14, 16]), nonfinite='rollback')
  with pytest.raises(loop.NotFinite, match='not finite at step'):
    trainer.train()
  assert (trainer.progress.rollbacks, trainer.progress.passed_over) == (2, 5)
  assert 'step 12; rollback 2 of at most 2' in '\n'.join(trainer.console.said)
  lowered = make(Corpus(bad=[12]), nonfinite='rollback', nonfinite_limit=1)
  lowered.progress = dataclasses.replace(lowered.progress, rollbacks=2)
  with pytest.raises(loop.NotFinite, match='not finite at step'):
    lowered.train()
  other = tmp_path / 'other'
  other.mkdir()
  trainer = make(Corpus(bad=[2]), other, nonfinite='rollback')
  message = 'step 3; no checkpoint was .*a higher train.nonfinite_limit'
  with pytest.raises(loop.NotFinite, match=message):
    trainer.train()


@pytest.mark.thorough
def test_weights_that_are_not_finite_are_not_evaluated(make, tmp_path):
  """Nor where no line of the log comes before; to stop is the default."""
  trainer = make(Corpus(bad=[12]), log_every=20, eval_every=14)
  with pytest.raises(loop.NotFinite, match='not finite at step 13; the last'):
    trainer.train()
  assert not (tmp_path / 'metrics.jsonl').read_text()
  assert trainer.checkpoints.newest() == 10
  assert trainer.checkpoints.steps() == [10, 5]


@pytest.mark.slow
def test_another_batch_size_empties_the_memory(make, tmp_path):
  corpus = Corpus(batches=40)
  with pytest.raises(KeyboardInterrupt):
    make(corpus, crash=lambda t: t.step == 10).train()
  same = make(corpus)
  assert same.state.memory.filled.tolist() == [M] * B
  assert same.console.said == ['continuing from step 10']
  trainer = make(corpus, batch_size=2 * B)
  assert trainer.console.said == [
    'continuing from step 10; the memory starts empty',
    f'changed: train.batch_size {2 * B}, was {B}',
  ]
  assert trainer.state.memory.filled.tolist() == [0] * 2 * B
  jax.tree.map(
    np.testing.assert_array_equal, trainer.state.params, same.state.params
  )
  trainer.train()
  lines = record(tmp_path)
  assert [r['step'] for r in lines] == [*range(4, 30, 4), 30]
  assert lines[-1]['epoch'] == 1, 'the streams are half as long'


@pytest.mark.thorough
def test_a_rate_that_changes_on_resume(make, tmp_path):
  """As if the schedule had lowered it; the log has the old and new value."""
  corpus, folders = Corpus(), [tmp_path / 'one', tmp_path / 'two']
  for folder in folders:
    folder.mkdir()
  drop = dict(schedule='drop', drop_at=10, drop_factor=0.5, lr=2.0**-6)
  whole = make(corpus, folders[0], steps=20, optim=drop)
  whole.train()
  first, then = ({'schedule': 'constant', 'lr': 2.0**-k} for k in (6, 7))
  make(corpus, folders[1], steps=10, optim=first).train()
  cut = make(corpus, folders[1], steps=20, optim=then)
  text = 'optim.lr 0.0078125, was 0.015625; train.steps 20, was 10'
  assert cut.console.said[1] == f'changed: {text}'
  cut.train()
  same = np.testing.assert_array_equal
  jax.tree.map(same, *map(jax.device_get, (whole.state, cut.state)))
  lines = (folders[1] / 'metrics.jsonl').read_text().splitlines()
  (line,) = (r for r in map(json.loads, lines) if r['split'] == 'changed')
  assert (line['step'], line['text']) == (10, text)


@pytest.mark.thorough
def test_what_a_checkpoint_is_taken_for(make, tmp_path):
  trainer, folder = make(Corpus(), steps=2), tmp_path / 'checkpoints'
  trainer.train()
  run, said = trainer.run, trainer.console.said
  host = host_state.HostState.read(run.checkpoints, 2)
  host.versions['jax'] = '0.1'
  assert not start.restore(run, start.Saved(2, host)).converted
  assert said[-2] == 'continuing from step 2'
  assert said[-1].startswith('warning: jax was 0.1, is now ')
  weights = dataclasses.replace(host, corpus='')
  position = start.restore(run, start.Saved(2, weights))
  assert (position.converted, position.state.step) == (True, 0)
  items = 'optimiser, average, memory (empty), step, schedule, log'
  assert said[-1] == f'beginning with converted weights; fresh: {items}'
  same = np.testing.assert_array_equal
  jax.tree.map(same, position.state.params, trainer.state.params)
  for before, step in ('2', 1), ('1', 3):
    (folder / before).rename(folder / str(step))
    with pytest.raises(UserError, match=f'/{step} holds the state of step 2$'):
      start.restore(run, start.Saved(step, host))


def test_a_run_that_began_with_weights_has_their_words(monkeypatch):
  monkeypatch.setattr(workdir, 'vocabulary', lambda folder, step: step)
  fields = types.SimpleNamespace
  corpus = fields(digest='b', encoded_with=str, ordered_like=float)
  host = fields(trained=True, corpus='c', config={'train.init_from': '/a'})
  saved = start.Saved(3, host)
  for now, expected in ('/a', '3'), ('', 3.0), ('/b', 3.0):
    given = fields(train=fields(init_from=now)), 'run', corpus, saved
    assert start._encoded_as_saved(*given) == expected
  host.trained = False
  with pytest.raises(UserError, match='run already holds initial weights'):
    start._encoded_as_saved(*given)


@pytest.mark.thorough
def test_a_cut_of_a_plateau_ends_with_it(make):
  corpus, plateau = Corpus(), dict(schedule='plateau', plateau_factor=0.5)
  trainer = make(corpus, steps=10, optim=plateau)
  progress = dataclasses.replace(
    trainer.progress, plateau=optim.Plateau(scale=0.25)
  )
  trainer.progress = progress
  trainer.state = start.decided(trainer.run, trainer.state, progress)
  trainer.train()
  for schedule, scale in ('plateau', 0.25), ('constant', 1.0):
    again = make(corpus, steps=20, optim={'schedule': schedule})
    assert float(again.state.lr_scale) == scale


@pytest.mark.thorough
@pytest.mark.parametrize(
  'values', [dict(clip=0.0), dict(l2=0.1, weight_decay=0.1, clip=1.0)]
)
def test_steps_of_the_optimiser_may_come_and_go(make, values):
  corpus = Corpus()
  trainer = make(corpus, steps=10)
  trainer.train()
  before = jax.tree.leaves(jax.device_get(trainer.state.opt_state))
  other = make(corpus, steps=20, optim=values)
  after = jax.tree.leaves(jax.device_get(other.state.opt_state))
  jax.tree.map(np.testing.assert_array_equal, before, after)
  other.train()
  assert other.progress.evaluated == 20
  back = make(corpus, steps=21)
  assert back.step == 20


@pytest.mark.thorough
def test_a_run_goes_on_in_another_dtype(make, monkeypatch):
  """As on a GPU, where the memory is in model.dtype."""
  monkeypatch.setattr(matmul, 'state_dtype', np.dtype)
  trainer = make(Corpus(), steps=5)
  trainer.train()
  for steps, dtype in (10, 'bfloat16'), (15, 'float32'):
    then = jax.device_get(trainer.state.memory)
    trainer = make(Corpus(), steps=steps, dtype=dtype)
    now = trainer.state.memory
    assert now.states.dtype == dtype != then.states.dtype
    same = np.testing.assert_array_equal
    same(np.float32(now.states), np.float32(then.states.astype(dtype)))
    assert trainer.train().evaluated == steps
    texts = (x for x in trainer.console.said if x.startswith('changed:'))
    assert f"model.dtype '{dtype}', was" in next(texts)


@pytest.mark.thorough
def test_a_checkpoint_that_nothing_was_added_to(make, tmp_path):
  """With another batch the memory is empty, and must not replace the saved."""
  corpus, folder = Corpus(bad=[12]), tmp_path / 'checkpoints'
  make(corpus, steps=10).train()
  before = contents(folder)
  make(corpus, steps=10, batch_size=2 * B).train()
  assert contents(folder) == before
  for steps in 10, 30:
    trainer = make(corpus, steps=steps, batch_size=2 * B, save_every=2)
    trainer.watch.stopping = lambda: signal.SIGINT
    with contextlib.suppress(watchdog.Stopped):
      trainer.train()
    assert trainer.step == 10 and contents(folder) == before

  # Nor after going back to it, which empties the memory as well.
  trainer = make(corpus, save_every=10, nonfinite='rollback')
  go_to = trainer._go_to

  def then_stop(position):
    go_to(position)
    trainer.watch.stopping = lambda: signal.SIGINT

  trainer._go_to = then_stop
  with pytest.raises(watchdog.Stopped):
    trainer.train()
  assert trainer.console.said[-2] == (
    'continuing from step 10; the memory starts empty'
  )
  assert trainer.progress.rollbacks == 1 and contents(folder) == before


@pytest.mark.thorough
def test_an_evaluation_that_was_missing_leaves_the_memory(make):
  """The step is evaluated with another batch, so with an empty memory."""
  corpus = Corpus()
  trainer = make(corpus)

  def stop():
    trainer._save()
    raise watchdog.Stopped(signal.SIGTERM, 30)

  trainer._evaluate = stop
  with pytest.raises(watchdog.Stopped):
    trainer.train()
  state = jax.device_get(trainer.state)
  assert make(corpus, batch_size=2 * B).train().best_step == 30
  again = make(corpus)
  assert again.console.said == ['continuing from step 30']
  assert again.train().best_step == 30
  assert again.state.memory.filled.tolist() == [M] * B
  jax.tree.map(np.testing.assert_array_equal, again.state.memory, state.memory)
  jax.tree.map(np.testing.assert_array_equal, again.state.params, state.params)


def test_the_step_to_continue_from():
  for steps, found, resume, text in (
    ([], None, 'auto', ''),
    ([], None, 'never', ''),
    ([9, 4], 9, 'never', 'a holds checkpoints (newest: step 9) and train'),
    ([9, 4], None, 'auto', 'b holds checkpoints [9, 4], none of which'),
    ([], None, 'must', 'a holds no checkpoint and train.resume is must'),
  ):
    saved = mock.Mock(folder='b', steps=lambda steps=steps: steps)
    saved.newest.return_value = found
    if text:
      assert refused(start.newest, saved, 'a', resume).startswith(text)
    else:
      assert start.newest(saved, 'a', resume) == found


def test_how_a_run_begins(monkeypatch, tmp_path):
  def make(config, corpus, mesh, done, *_):
    raise UserError(f'{config.origin} after {done}')

  corpus = Corpus()
  saved = host_state.HostState.of(None, None, config(), corpus.digest)
  saved.config['origin'] = 'there'
  monkeypatch.setattr(plan, 'make', make)
  monkeypatch.setattr(host_state.HostState, 'read', lambda *_: saved)
  fewer = 'train.steps is 30; allowed: at least 31, which the run in '
  for step, said in (None, ' after 0'), (30, 'there after 30'), (31, fewer):
    monkeypatch.setattr(start, 'newest', lambda *_, step=step: step)
    given = config(), tmp_path, corpus, None, Console(), None
    assert refused(start.begin, *given).startswith(said)
