"""The folder of a run of version 1.0.0 is continued and used by this one."""

import json
import shutil

import pytest

import txl_jax
from tests.golden.make_release import FOLDER, STEPS, figures, use


@pytest.fixture
def folder(tmp_path):
  """A copy of the run after step 4, and its text."""
  return shutil.copytree(FOLDER, tmp_path / 'copy')


def test_it_goes_on_as_if_it_had_never_stopped(folder):
  done = use(folder, f'--config.train.steps={STEPS}')
  assert 'run: run\n' in done.stderr
  assert 'continuing from step 4' in done.stderr
  assert 'memory starts empty' not in done.stderr
  expected = json.loads((folder / 'figures.json').read_text())
  assert figures(folder) == pytest.approx(expected, rel=1e-5)


@pytest.mark.thorough
def test_it_is_evaluated_and_loaded(folder):
  expected = json.loads((folder / 'figures.json').read_text())['validation 4']
  done = use(folder, '--mode=eval', '--config.eval.segment_len=8')
  assert f'({expected:.5f} nats)' in done.stdout
  run = txl_jax.load(folder / 'run')
  assert run.step == 4 and run.config.model.d_model == 8
  assert len(run.generate('the ', max_new_tokens=5)) > len('the ')
  assert run.score('the memory of a segment').nats < 6
