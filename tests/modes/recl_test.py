"""--mode=recl of two tiny runs, with memory and without."""

import dataclasses

import pytest

from tests.modes import runs, subjects
from txl_jax.errors import UserError
from txl_jax.modes import recl


def config(**others):
  c = subjects.config()
  c.recl.update(step=3, longest=10, positions=9, batch_size=4, **others)
  return c


def test_a_group(folder, plain, corpus, capfd):
  c = config(others=(str(plain), str(plain)))
  record = subjects.measure(recl, c, folder, 'recl')
  assert record['contexts_tokens'] == [3, 6, 9] and record['positions'] == 9
  names = ['xl', 'plain', 'plain (2)']
  assert [m['name'] for m in record['group']] == names
  xl, first, second = record['group']
  assert first['mean_nats'] == pytest.approx(second['mean_nats'])
  # The weights are the same, and so is what a first segment shows.
  assert xl['mean_nats'][0] == pytest.approx(first['mean_nats'][0])
  assert xl['mean_nats'][1] != pytest.approx(first['mean_nats'][1])
  assert [m['config']['model.mem_len'] for m in (xl, first)] == [4, 0]
  assert [m['reads_at_most_tokens'] for m in (xl, first)] == [9, 9]
  results = {(r['name'], r['share']): r for r in record['results']}
  assert len(results) == 3 * 3
  for found in results.values():
    k = (3, 6, 9).index(found['recl_tokens'])
    assert all(g >= 0.01 for g in found['gains'][:k])
    assert found['at_end'] or found['gains'][k] < 0.01
  subjects.assert_picture(folder / 'analysis/recl.png')
  lines = capfd.readouterr().out.splitlines()
  assert lines[2].split() == ['r', '=', '0.1', 'r', '=', '0.5', 'r', '=', '1']
  assert [line.split()[0] for line in lines[3:]] == ['xl', 'plain', 'plain']


def test_all_are_read_in_the_same_way(folder, corpus):
  """The lengths of the command hold for the other runs, too."""
  c = config(others=(str(folder),))
  c.eval.segment_len = 2
  c.eval.model.mem_len = 1
  short = subjects.measure(recl, c, folder, 'recl')
  one, other = (m['mean_nats'] for m in short['group'])
  assert one == pytest.approx(other)
  c.eval.model.mem_len = 9
  long = subjects.measure(recl, c, folder, 'recl')
  one, other = (m['mean_nats'] for m in long['group'])
  assert one == pytest.approx(other)
  assert one != pytest.approx(short['group'][0]['mean_nats'])


def refused(folder, c):
  with pytest.raises(UserError) as e:
    recl.run(runs.job(c, folder))
  assert '\n' not in str(e.value)
  return str(e.value)


def test_what_cannot_be_compared(folder, corpus, tmp_path):
  other = dataclasses.replace(runs.VOCABULARY, symbols=(32, 97, 99))
  subjects.write(tmp_path / 'else', vocabulary=other)
  message = refused(folder, config(others=(f'{tmp_path}/else',)))
  assert 'else has another vocabulary (3 symbols) than' in message
  message = refused(folder, config(others=(f'{tmp_path}/none',)))
  assert 'none holds no run' in message and '--workdir' not in message
  c = config()
  c.recl.longest = 81
  assert refused(folder, c).startswith('recl.longest is 81, and eval.split has')
