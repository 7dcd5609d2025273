"""--mode=attention_length of a tiny run."""

import json

import numpy as np
import pytest

from tests.modes import runs, subjects
from txl_jax import models
from txl_jax.errors import UserError
from txl_jax.evaluation import perplexity
from txl_jax.models import transformer_xl
from txl_jax.modes import attention_length, trained
from txl_jax.parallel import mesh as mesh_lib


def config(**model):
  c = subjects.config(**model)
  c.attention_length.update(lengths=(2, 12), tokens=50)
  return c


def score(c, folder, **lengths):
  """Nats of the first 50 tokens of the model with other lengths."""
  params = trained.load(c, folder, mesh_lib.make_mesh()).params
  model = models.build(c.model, 3, **lengths).at_test_time()
  return perplexity.score(
    model, params, subjects.text(50), batch_size=1, segment_len=5,
    segments_per_call=9,
  ).nats  # fmt: skip


def test_a_model_with_memory(folder, corpus, capfd):
  c = config()
  record = subjects.measure(attention_length, c, folder, 'attention_length')
  assert (record['tokens'], record['split_tokens']) == (50, 80)
  lengths = {r['attention_length_tokens']: r for r in record['lengths']}
  assert [*lengths] == [2, 10, 12]  # 10 is T + M of training
  for length, found in lengths.items():
    expected = score(c, folder, mem_len=length, same_length='M')
    assert found['nats'] == pytest.approx(expected, rel=1e-5)
    assert found['bpc'] == pytest.approx(expected / np.log(2), rel=1e-5)
    assert found['scored_tokens'] == 49 and found['seconds'] > 0
  assert record['init'] == lengths[10]
  assert record['best']['nats'] == min(r['nats'] for r in lengths.values())
  subjects.assert_picture(folder / 'analysis/attention_length.png')
  lines = capfd.readouterr().out.splitlines()
  assert lines[0] == 'xl, step 7, made here validation, 50 of 80 tokens'
  assert [line.split()[0] for line in lines[2:5]] == ['2', '10', '12']
  assert f'{lengths[12]["bpc"]:.4f}' in lines[4]
  assert 'init' in lines[3] and sum('best' in x for x in lines[2:5]) == 1


def test_a_model_without_memory(plain, corpus):
  c = config(mem_len=0)
  record = subjects.measure(attention_length, c, plain, 'attention_length')
  lengths = [r['attention_length_tokens'] for r in record['lengths']]
  assert lengths == [2, 6, 12]
  assert record['init']['attention_length_tokens'] == 6


def test_lengths_that_a_model_does_not_reach(plain, corpus, monkeypatch, capfd):
  monkeypatch.setattr(transformer_xl.TransformerXL, 'reach', lambda self: 6)
  c = config(mem_len=0)
  attention_length.run(runs.job(c, plain, silent=False))
  record = json.loads((plain / 'analysis/attention_length.json').read_text())
  lengths = [r['attention_length_tokens'] for r in record['lengths']]
  assert lengths == [2, 6]
  assert 'attention_length.lengths above 6 are left' in capfd.readouterr().err


def test_without_matplotlib(folder, corpus, without_matplotlib, capfd):
  """The table and the record are there, and no picture of another time."""
  (folder / 'analysis').mkdir(exist_ok=True)
  (folder / 'analysis/attention_length.png').write_text('old')
  attention_length.run(runs.job(config(), folder, silent=False))
  told = capfd.readouterr()
  assert 'attention length' in told.out
  last = 'picture left out: pip install matplotlib'
  assert told.err.splitlines()[-1] == last
  assert (folder / 'analysis/attention_length.json').exists()
  assert not (folder / 'analysis/attention_length.png').exists()


def test_a_folder_that_cannot_be_written(folder, corpus):
  (folder / 'analysis').mkdir(exist_ok=True)
  (folder / 'analysis').rename(folder / 'kept')
  (folder / 'analysis').write_text('')
  with pytest.raises(
    UserError, match='analysis cannot be written: File exists'
  ):
    attention_length.run(runs.job(config(), folder))
  (folder / 'analysis').unlink()
  (folder / 'kept').rename(folder / 'analysis')
