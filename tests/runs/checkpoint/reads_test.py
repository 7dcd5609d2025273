"""How much of the checkpoints is read to verify them."""

import collections
import pathlib

import pytest

from tests.runs.checkpoint.saves import (
  HOST,
  PARAMS,
  abstract,
  cut,
  files,
  flip,
  save,
  whole,
)
from txl_jax.runs import checkpoint, checkpoint_folder
from txl_jax.training import start


@pytest.fixture
def reads(monkeypatch):
  """{path below the folder: how often its contents were verified}."""
  counts = collections.Counter()
  fingerprint = checkpoint_folder.fingerprint

  def count(path):
    counts['/'.join(path.parts[path.parts.index('checkpoints') + 1 :])] += 1
    return fingerprint(path)

  monkeypatch.setattr(checkpoint_folder, 'fingerprint', count)
  return counts


def once(c, step, item='', name=None):
  """As `reads`, if each file of a step was read once, under that name."""
  folder = c.folder / str(step)
  found = [f.relative_to(folder) for f in files(folder / item)]
  found = [f for f in found if f != pathlib.Path(checkpoint_folder.SEAL)]
  assert found
  return {f'{name or step}/{f.as_posix()}': 1 for f in found}


@pytest.mark.parametrize('asynchronous', [False, True])
def test_a_save_reads_what_it_has_written(c, reads, asynchronous):
  c = checkpoint.Checkpoints(c.folder, asynchronous)
  for step in (3, 4, 5):
    reads.clear()
    save(c, step, keep=(1,))
    c.wait()
    assert reads == once(c, step, name=f'{step}.new')
  assert whole(c) == [5, 4, 1]


def test_a_resumed_run_reads_the_newest_step_once(c, reads):
  assert start.newest(c, c.folder, 'auto') == 2
  assert reads == once(c, 2)
  assert c.host(2) == HOST
  c.restore(2, params=abstract(PARAMS))
  c.clean(2)
  save(c, 2)  # which is there
  assert reads == once(c, 2)
  reads.clear()
  save(c, 2, {'best': 0.5})
  assert reads == once(c, 2, name='2.new')
  reads.clear()
  for _ in range(2):  # what this process has written is not read again
    save(c, 3)
    assert reads == once(c, 3, name='3.new')
  assert whole(c) == [3, 2]


def test_damage_since_it_was_verified(c, reads):
  assert c.newest() == 2
  cut(max(files(c.folder / '2' / 'params')))
  assert c.newest() == 1


def test_only_steps_down_to_the_one_that_is_used_are_read(c, reads):
  save(c, 3, keep=(1,))
  flip(max(files(c.folder / '3' / 'params')), 0)
  c = checkpoint.Checkpoints(c.folder)
  reads.clear()
  assert c.newest() == 2
  assert not [name for name in reads if name.startswith('1/')]
  assert {k: n for k, n in reads.items() if k.startswith('2/')} == once(c, 2)
  reads.clear()
  assert c.usable(1)
  assert reads == once(c, 1)


def test_one_item_alone(c, reads):
  flip(max(files(c.folder / '2' / 'params')), 0)
  assert c.newest('host') == 2
  assert reads == once(c, 2, 'host')
  assert c.newest() == 1
  flip(c.folder / '2/host/metadata', 0)
  assert c.newest('host') == 1
