"""What orbax's CheckpointManager does, and why it does not keep our steps.

If one of these fails with a newer orbax, `Checkpoints` may need less.
"""

import itertools
import resource
import shutil
import threading

import numpy as np
import orbax.checkpoint as ocp
import pytest

ARGS = ocp.args.Composite(params=ocp.args.StandardSave({'x': np.arange(3)}))


def contents(folder):
  return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


def manager(folder, **options):
  options = ocp.CheckpointManagerOptions(**options)
  return ocp.CheckpointManager(folder, options=options)


def test_it_deletes_a_step_before_the_next_can_be_sealed(tmp_path):
  # There is one call of ours while a step is written. By then not all of its
  # files are.
  seen = []

  def hook():
    (folder,) = tmp_path.glob('2.*')
    seen.append(contents(folder))

  latest = ocp.checkpoint_managers.LatestN(1)
  with manager(tmp_path, preservation_policy=latest) as m:
    m.save(1, args=ARGS)
  options = ocp.AsyncOptions(post_finalization_callback=hook)
  with manager(
    tmp_path, preservation_policy=latest, async_options=options
  ) as m:
    m.save(2, args=ARGS)
    m.wait_until_finished()
    assert not (tmp_path / '1').exists()
  (before,), after = seen, contents(tmp_path / '2')
  assert after.keys() - before.keys() == {'commit_success.txt'}
  assert after['_CHECKPOINT_METADATA'] != before['_CHECKPOINT_METADATA']


def test_it_does_not_replace_a_step(tmp_path):
  with manager(tmp_path) as m:
    m.save(1, args=ARGS)
    with pytest.raises(ValueError, match='already exists'):
      m.save(1, args=ARGS, force=True)


def test_nothing_waits_for_its_clean_up(tmp_path, monkeypatch):
  left = tmp_path / '1.orbax-checkpoint-tmp'
  left.mkdir()
  may_delete, deleted = threading.Event(), threading.Event()
  rmtree = shutil.rmtree

  def delete(*args, **kwargs):
    may_delete.wait(60)
    rmtree(*args, **kwargs)
    deleted.set()

  monkeypatch.setattr(shutil, 'rmtree', delete)
  m = manager(tmp_path, cleanup_tmp_directories=True)
  m.wait_until_finished()
  m.close()
  assert left.exists()
  may_delete.set()
  assert deleted.wait(60) and not left.exists()


@pytest.mark.thorough
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_it_holds_an_error_back_until_all_processes_have_written(tmp_path):
  # The first two barriers are those before the write. At the next one it waits
  # for the others; they would be at one that this process does not come to.
  calls, others = itertools.count(), threading.Event()

  def barrier(**_):
    if next(calls) >= 2:
      others.wait(60)

  m = manager(tmp_path, async_options=ocp.AsyncOptions(barrier_sync_fn=barrier))
  raised = []

  def wait():
    try:
      m.wait_until_finished()
    except ValueError as e:
      raised.append(str(e))

  rng = np.random.default_rng(0)
  item = ocp.args.StandardSave({'x': rng.normal(size=100_000)})
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
  try:
    m.save(1, args=ocp.args.Composite(params=item))
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(2)
    assert thread.is_alive()
    m.check_for_errors()  # knows of none
    others.set()
    thread.join(60)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert len(raised) == 1 and 'File too large' in raised[0]
