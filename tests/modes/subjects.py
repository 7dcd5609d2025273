"""A run that the evaluation programs measure, and what they write of it."""

import json
import sys
import time

import numpy as np
import pytest

from tests import plain
from tests.modes import runs
from txl_jax.data.corpora import preparation

# What every record has, and what it has that is of a text.
ALWAYS = {'program', 'run', 'checkpoint_step', 'averaged_over_steps', 'config'}
ALWAYS |= {'experiment', 'origin', 'trained_on'}
ALWAYS |= {'options', 'eval', 'seconds', 'hardware'}
OF_TEXT = {'corpus', 'split', 'split_tokens', 'tokens', 'unit'}


class Corpus(plain.Corpus):
  """A corpus of the run's vocabulary."""

  vocabulary = runs.VOCABULARY

  def tokens(self, split):
    del split
    return text(80)


def text(n):
  """uint8 [n] of the three symbols."""
  return np.random.default_rng(0).integers(3, size=n).astype(np.uint8)


def config(**model):
  """That of the run; trained, it says, in segments of 6 tokens."""
  c = runs.config(**model)
  c.train.segment_len = 6
  c.eval.update(segment_len=5, segments_per_call=2)
  c.eval.model.update({k: model[k] for k in model.keys() & {'mem_len'}})
  return c


def write(folder, **model):
  """Writes a run whose tokens matter; its parameters."""
  folder.mkdir(exist_ok=True)
  return runs.write(folder, segment_len=6, init_std=0.7, **model)


def measure(mode, config, folder, name, fields=ALWAYS | OF_TEXT):
  """Runs a mode; what it has written, and that all is as always."""
  begin = time.monotonic()
  mode.run(runs.job(config, folder))
  written = (folder / f'analysis/{name}.json').read_text()
  assert str(folder) not in written and '"/' not in written
  record = json.loads(written)
  assert record.keys() >= fields and record['program'] == name
  assert record['run'] == folder.name and record['checkpoint_step'] == runs.STEP
  assert record['hardware']['device'] and record['hardware']['devices'] == 8
  assert record['config']['model.n_layer'] == config.model.n_layer
  assert record['config']['train.segment_len'] == 6
  assert 0 < record['seconds'] <= time.monotonic() - begin
  assert not list(folder.glob('analysis/*.tmp'))
  return record


def assert_picture(path):
  """That there is a PNG of a size for a page."""
  data = path.read_bytes()
  assert data.startswith(b'\x89PNG') and 5_000 < len(data) < 100_000


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
  """That of a run with memory."""
  folder = tmp_path_factory.mktemp('runs') / 'xl'
  write(folder)
  return folder


@pytest.fixture(scope='session')
def plain(tmp_path_factory):
  """That of a run without memory."""
  folder = tmp_path_factory.mktemp('runs') / 'plain'
  write(folder, mem_len=0)
  return folder


@pytest.fixture(scope='session')
def absolute(tmp_path_factory):
  """The same with absolute positions."""
  folder = tmp_path_factory.mktemp('runs') / 'absolute'
  write(folder, name='vaswani', mem_len=0)
  return folder


@pytest.fixture(scope='session')
def naive(tmp_path_factory):
  """With absolute positions and a memory."""
  folder = tmp_path_factory.mktemp('runs') / 'naive'
  write(folder, name='vaswani', mem_len=4)
  return folder


@pytest.fixture
def corpus(monkeypatch):
  locate = lambda data: Corpus()
  monkeypatch.setattr(preparation, 'locate_or_prepare', locate)
  return Corpus()


@pytest.fixture
def without_matplotlib(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
