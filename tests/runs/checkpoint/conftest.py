import shutil

import pytest

from tests.runs.checkpoint import saves
from txl_jax.runs import checkpoint


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A folder with steps 1 and 2."""
  folder = tmp_path_factory.mktemp('saved') / 'checkpoints'
  for step in (1, 2):
    saves.save(checkpoint.Checkpoints(folder), step)
  return folder


@pytest.fixture
def c(saved, tmp_path):
  folder = tmp_path / 'checkpoints'
  shutil.copytree(saved, folder)
  return checkpoint.Checkpoints(folder)
