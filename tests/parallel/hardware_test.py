"""What is told of a machine."""

import json

from txl_jax.parallel import hardware


def test_the_processor_is_named(tmp_path):
  file = tmp_path / 'cpuinfo'
  file.write_text('processor : 0\nmodel name\t: A CPU @ 2 GHz \nflags: x\n')
  assert hardware._cpu(str(file)) == 'A CPU @ 2 GHz'
  # Others have no such line, or no such file.
  for text in 'model name:\nflags : x\n', 'processor : 0\n', '':
    file.write_text(text)
    assert hardware._cpu(str(file))
    assert 'flags' not in hardware._cpu(str(file))
  assert hardware._cpu(str(tmp_path / 'none'))


def test_the_devices_of_these_tests():
  found = hardware.describe()
  assert (found['platform'], found['devices']) == ('cpu', 8)
  assert found['device'] == found['cpu'] and found['processes'] == 1
  assert json.loads(json.dumps(found)) == found
