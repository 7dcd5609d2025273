"""What is set, compared and told before a mode begins."""

import os
import types

import pytest

from tests.modes import runs
from txl_jax.convert import pretrained
from txl_jax.experiment import sections
from txl_jax.modes import opening

SET = '--a --xla_gpu_deterministic_ops=true'


@pytest.mark.parametrize(
  'deterministic, plugin, flags, expected',
  [
    (True, 'jax_cuda12_plugin', '--a', SET),
    (False, 'jax_cuda12_plugin', '--a', '--a'),
    (True, 'none', '--a', '--a'),
    (True, 'jax_rocm7_plugin', SET.replace('true', 'false'), None),
  ],
)
def test_flags_of_gpus(monkeypatch, deterministic, plugin, flags, expected):
  util = types.SimpleNamespace(find_spec=lambda name: name == plugin)
  monkeypatch.setattr(opening, 'importlib', types.SimpleNamespace(util=util))
  monkeypatch.setenv('XLA_FLAGS', flags)
  c = runs.config()
  c.deterministic = deterministic
  assert opening.prepare(c).deterministic == deterministic
  assert os.environ['XLA_FLAGS'] == (expected or flags)


def test_what_is_opened(tmp_path, monkeypatch, capfd):
  same, new = [], []

  def adopt(config, folder, changed, is_new):
    new.append(is_new)
    return config, [f'{folder.name}: {changed}', 'as in x: seed 3']

  monkeypatch.setattr(opening.processes, 'check_same', same.append)
  monkeypatch.setattr(pretrained, 'adopt', adopt)
  c = runs.config()
  c.train.init_from = 'x'
  config = sections.read(c)
  for mode in 'train', 'eval', 'summary':
    with opening.opened(config, f'{tmp_path}/a', mode, changed=['seed']) as job:
      assert job.watch._program and job.changed == ['seed']
  assert new == [True, False, True]
  assert capfd.readouterr().err == "a: ['seed']\nas in x: seed 3\n" * 3
  assert {'--mode', '--workdir', 'seed', 'data.level'} <= same[0].keys()
  assert not {'data.dir', 'data.path', 'data.tokenizer'} & same[0].keys()
