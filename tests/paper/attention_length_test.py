"""--mode=attention_length of a tiny run."""

import json
from unittest import mock

import numpy as np
import pytest

from tests.modes import runs, subjects
from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.experiment import saved_model, sections
from txl_jax.paper import attention_length
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program.errors import UserError


def config(**model):
  c = subjects.config(**model)
  c.attention_length.update(lengths=(2, 12), tokens=50)
  return c


def score(c, folder, segment_len=5, **lengths):
  """Nats of the first 50 tokens of the model with other lengths."""
  mesh = mesh_lib.make_mesh()
  params = saved_model.load(sections.read(c), folder, mesh).params
  model = models.build(c.model, 3, **lengths).at_test_time()
  return scoring.score(
    model, params, subjects.text(50), batch_size=1,
    segment_len=segment_len, segments_per_call=9,
  ).nats  # fmt: skip


@pytest.mark.thorough
def test_a_model_with_memory(folder, corpus, capfd):
  c = config()
  record = subjects.measure(attention_length, c, folder, 'attention_length')
  assert (record['tokens'], record['split_tokens']) == (50, 80)
  lengths = {r['attention_length_tokens']: r for r in record['lengths']}
  assert [*lengths] == [2, 4, 12]  # 4 is M of training
  for length, found in lengths.items():
    expected = score(c, folder, mem_len=length, same_length='M')
    assert found['nats'] == pytest.approx(expected, rel=1e-5)
    assert found['bpc'] == pytest.approx(expected / np.log(2), rel=1e-5)
    assert found['scored_tokens'] == 49 and found['seconds'] > 0
  assert record['init'] == lengths[4]
  assert record['best']['nats'] == min(r['nats'] for r in lengths.values())
  first, last = (lengths[x]['bpc'] for x in (4, 12))  # 4 and longer
  little = last >= 0.999 * first
  assert record['enough'] == (lengths[4] if little else None)
  assert record['segment_len'] == 5 and record['same_length']
  lines = capfd.readouterr().out.splitlines()
  assert record['lines'] == lines  # for the report
  assert lines[0] == 'xl, step 7, made here validation, 50 of 80 tokens'
  assert [line.split()[0] for line in lines[2:5]] == ['2', '4', '12']
  assert f'{lengths[12]["bpc"]:.4f}' in lines[4]
  enough = 'the next one beats by at most 0.1 %' + (
    '' if little else '; none f'
  )
  assert lines[-1].startswith(
    f'enough: the shortest length >= init that {enough}'
  )
  assert 'init' in lines[3] and sum('best' in x for x in lines[2:5]) == 1


def test_a_model_without_memory(plain, corpus, monkeypatch):
  c, open_run = config(mem_len=0), attention_length.analysis.open_run

  def opened(*args):  # trained, it says, in a context of 2
    subject = open_run(*args)
    subject.restored.config['train.context'] = 2
    return subject

  monkeypatch.setattr(attention_length.analysis, 'open_run', opened)
  record = subjects.measure(attention_length, c, plain, 'attention_length')
  lengths = [r['attention_length_tokens'] for r in record['lengths']]
  assert lengths == [2, 8, 12]
  assert record['init']['attention_length_tokens'] == 8


def test_lengths_that_a_model_does_not_reach(
  absolute, corpus, capfd, monkeypatch
):
  """It has absolute positions, those of segments of 6 tokens."""
  c = config(name='vaswani', mem_len=0)
  attention_length.run(runs.job(c, absolute, silent=False))
  path = absolute / 'analysis/attention_length.json'
  record = json.loads(path.read_text())
  lengths = [r['attention_length_tokens'] for r in record['lengths']]
  assert lengths == [2, 6] and record['segment_len'] is None
  assert 'attention_length.lengths above 6 are left' in capfd.readouterr().err
  c.attention_length.lengths = 2, 6
  sweep = mock.Mock(side_effect=InterruptedError)
  monkeypatch.setattr(attention_length, 'sweep', sweep)
  with pytest.raises(InterruptedError):
    attention_length.run(runs.job(c, absolute, silent=False))
  assert 'are left out' not in capfd.readouterr().err


@pytest.mark.slow
def test_absolute_positions_with_a_memory(naive, corpus, capfd):
  """In the segments of training, of any length of memory."""
  c = config(name='vaswani', mem_len=4)
  c.eval.segment_len = 9
  attention_length.run(runs.job(c, naive, silent=False))
  path = naive / 'analysis/attention_length.json'
  record = json.loads(path.read_text())
  assert record['segment_len'] == 6 and not record['same_length']
  for found in record['lengths']:
    own = dict(mem_len=found['attention_length_tokens'], segment_len=6)
    assert found['nats'] == pytest.approx(score(c, naive, **own), rel=1e-5)
  assert record['init']['attention_length_tokens'] == 4
  told = capfd.readouterr()
  assert 'segments of 6 tokens, not eval.segment_len' in told.err
  assert told.out.splitlines()[-1].endswith(' before it in its segment of 6')


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written(folder, corpus):
  (folder / 'analysis').mkdir(exist_ok=True)
  (folder / 'analysis').rename(folder / 'kept')
  (folder / 'analysis').write_text('')
  refused = 'analysis cannot be written: File exists'
  with pytest.raises(UserError, match=refused):
    attention_length.run(runs.job(config(), folder))
  (folder / 'analysis').unlink()
  (folder / 'kept').rename(folder / 'analysis')
