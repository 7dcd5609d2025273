"""The record at Weights & Biases, with a package that stands in for it."""

import json
import sys
import types

import pytest

from tests import programs
from txl_jax.program.errors import UserError
from txl_jax.runs import wandb_run, workdir


class Error(Exception):
  """As wandb.Error."""


class Remote:
  """A run there, which outlives the program."""

  offline, url, dir = True, '', 'a folder'

  def __init__(self, **options):
    self.options, self.logged, self.step, self.finished = options, [], 0, 0

  def log(self, figures, step):
    assert step >= self.step
    self.step = step
    self.logged.append((step, figures))

  def finish(self):
    self.finished += 1


@pytest.fixture
def remote(monkeypatch):
  """{id: Remote} of a package that is there."""
  runs = {}

  def init(**options):
    if options['project'] == 'refused':
      raise Error('no key\nmore')
    return runs.setdefault(options['id'], Remote(**options))

  def settings(**options):
    return options

  fake = types.SimpleNamespace(Error=Error, init=init, Settings=settings)
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  return runs


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  wandb_run.check('')
  with pytest.raises(UserError, match=r"run: pip install 'txl_jax\[wandb\]'$"):
    wandb_run.check('mine')


def test_it_continues_by_the_id_in_the_folder(remote, tmp_path):
  asked = tmp_path, 'mine', {'train.steps': 3}
  made = wandb_run.Run(*asked)
  made.write({'step': 5, 'split': 'train', 'nats': 1.0, 'time': 9.0})
  made.write({'step': 5, 'split': 'validation', 'nats': 2.0, 'time': 9.0})
  made.close()
  ((key, run),) = remote.items()
  assert run.options == {
    'project': 'mine', 'id': key, 'name': tmp_path.name, 'resume': 'allow',
    'dir': str(tmp_path), 'config': {'train.steps': 3},
    'settings': {'silent': True, 'console': 'off'},
  }  # fmt: skip
  assert run.finished == 1 and len(key) == 8
  assert made.url == 'a folder'
  again = wandb_run.Run(*asked)
  # It has these already.
  again.write({'step': 4, 'split': 'train', 'nats': 2.0, 'time': 9.0})
  again.write({'step': 10, 'split': 'train', 'nats': 3.0, 'time': 9.0})
  assert [*remote] == [key]
  assert run.logged == [
    (5, {'train/nats': 1.0, 'train/time': 9.0}),
    (5, {'validation/nats': 2.0, 'validation/time': 9.0}),
    (10, {'train/nats': 3.0, 'train/time': 9.0}),
  ]
  wandb_run.Run(tmp_path, 'other', {})
  assert len(remote) == 2, 'another project has another run'


def test_what_is_damaged_is_begun_anew(remote, tmp_path):
  (tmp_path / workdir.WANDB).write_text('{"project": "mine", "id": 3}')
  wandb_run.Run(tmp_path, 'mine', {})
  assert len(remote) == 1 and isinstance(next(iter(remote)), str)


def test_a_refusal_is_one_line(remote, tmp_path):
  with pytest.raises(UserError, match="is 'refused': no key; allowed: ''"):
    wandb_run.Run(tmp_path, 'refused', {})
  assert not (tmp_path / workdir.WANDB).exists()


@pytest.mark.thorough
def test_a_run_that_goes_on(remote, tmp_path):
  programs.write_corpus(tmp_path)
  options = 'train.batch_size=8', 'train.wandb=mine', 'train.eval_every=20'
  for steps in 20, 30:
    more = f'train.steps={steps}'
    done = programs.here(programs.command(tmp_path, *options, more))
    assert done.returncode == 0, done.stderr
    assert 'wandb: a folder\n' in done.stderr
  ((_, run),) = remote.items()
  assert run.finished == 2
  lines = (tmp_path / 'run/metrics.jsonl').read_text().splitlines()
  records = [*map(json.loads, lines)]
  assert {r['split'] for r in records} == {'train', 'validation', 'changed'}
  expected = [
    (r.pop('step'), {f'{r["split"]}/{k}': x for k, x in r.items()})
    for r in records
  ]
  for _, figures in expected:
    split = next(iter(figures)).split('/')[0]
    del figures[f'{split}/split']
  # The last step that it has is told again, which changes nothing.
  sent = [pair for pair in run.logged if pair in expected]
  assert sent == run.logged
  assert all(pair in sent for pair in expected)


def test_a_run_without_the_package_is_refused(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  programs.write_corpus(tmp_path)
  options = 'train.batch_size=8', 'train.wandb=mine'
  done = programs.here(programs.command(tmp_path, *options))
  programs.assert_refused(done, "pip install 'txl_jax[wandb]'")
  assert not (tmp_path / 'run').exists()
