"""What runs first after a change, and whether the evidence is of this tree."""

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
