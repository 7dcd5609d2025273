"""What runs first after a change, and whether the evidence is of this tree."""

import subprocess

import pytest

from tests import changed

EVIDENCE = changed.read()


def test_evidence_is_of_files_that_exist():
  for module, files in EVIDENCE.items():
    assert (changed.ROOT / 'txl_jax' / module).exists(), module
    for file in files:
      assert (changed.ROOT / file).exists(), (module, file)


def test_every_module_has_tests():
  for path in (changed.ROOT / 'txl_jax').rglob('[a-z]*.py'):
    module = str(path.relative_to(changed.ROOT))
    if 'configs' not in path.parts:
      assert changed.tests([module]), module


@pytest.mark.parametrize(
  'path, first',
  [
    ('txl_jax/data/streams.py', 'tests/data/streams_test.py'),
    ('tests/data/streams_test.py', 'tests/data/streams_test.py'),
    ('tests/direct.py', 'tests/attention_test.py'),  # which imports it
    ('benchmarks/compiled_step.py', 'tests/benchmarks/compiled_step_test.py'),
    ('benchmarks/peers.py', 'tests/benchmarks'),
    ('configs/ptb.py', 'tests/configs_test.py'),
    ('docs/data.md', 'tests/docs_test.py'),
    ('launch/local.sh', 'tests/launch'),
  ],
)
def test_the_first(path, first):
  assert changed.tests([path])[0] == first


def test_those_that_import_a_module_come_after_it():
  found = changed.tests(['txl_jax/data/streams.py'])
  own = EVIDENCE['data/streams.py']
  assert found[: len(own)] == own
  assert EVIDENCE['training/loop.py'][0] in found


def test_files_that_differ(monkeypatch):
  """Of git's two answers; without git, or a commit, one line."""
  answers = {'diff': (0, 'b.py\na.py\n', ''), 'ls-files': (0, 'c.py\n', '')}

  def run(command, **_):
    return subprocess.CompletedProcess(command, *answers[command[3]])

  monkeypatch.setattr(subprocess, 'run', run)
  assert changed.differing('main') == ['a.py', 'b.py', 'c.py']
  answers['diff'] = 128, '', "fatal: bad revision 'x'\n"
  with pytest.raises(ValueError, match=r"^--changed=x: fatal: bad .* 'x'$"):
    changed.differing('x')

  def missing(command, **_):
    raise FileNotFoundError

  monkeypatch.setattr(subprocess, 'run', missing)
  with pytest.raises(ValueError, match='needs git'):
    changed.differing('main')
