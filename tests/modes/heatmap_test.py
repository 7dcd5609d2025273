"""--mode=heatmap of a tiny run, alone and against another."""

import numpy as np
import pytest

from tests.modes import runs, subjects
from txl_jax.modes import evaluate, heatmap
from txl_jax.program.errors import UserError


def config(**values):
  c = subjects.config()
  c.heatmap.update(values)
  return c


def test_the_nll_is_that_of_an_evaluation(folder, corpus, tmp_path, capfd):
  c = config(start=30, tokens=20, context=30)
  record = subjects.measure(heatmap, c, folder, 'heatmap')
  c.eval.nll_file = f'{tmp_path}/nll.npy'
  evaluate.run(runs.job(c, folder))
  expected = np.load(tmp_path / 'nll.npy')[29:49]  # the first is not scored
  found = [r['nll_nats'] for r in record['text']]
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  ids = [r['id'] for r in record['text']]
  assert ids == subjects.text(80)[30:50].tolist()
  assert {r['text'] for r in record['text']} == {' ', 'a', 'b'}
  assert record['mean_nats'] == pytest.approx(expected.mean(), rel=1e-5)
  page = (folder / 'analysis/heatmap.html').read_text()
  assert page.count('<span class="u') == 20 + 5  # and the legend
  lines = capfd.readouterr().out.splitlines()
  assert lines[3].split()[-2] == f'{expected.max():.3f}'


def test_a_window(plain, corpus, tmp_path):
  c = subjects.config(mem_len=0)
  c.heatmap.update(start=30, tokens=9, context=30)
  c.eval.window = 4
  record = subjects.measure(heatmap, c, plain, 'heatmap')
  c.eval.nll_file = f'{tmp_path}/nll.npy'
  evaluate.run(runs.job(c, plain))
  expected = np.load(tmp_path / 'nll.npy')[29:38]
  found = [r['nll_nats'] for r in record['text']]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_against_another_run_from_the_first_token(folder, plain, corpus):
  c = config(tokens=90, against=str(plain))
  record = subjects.measure(heatmap, c, folder, 'heatmap')
  assert record['against']['run'] == 'plain'
  first, *rest = record['text']
  assert first['nll_nats'] is None and first['other_nll_nats'] is None
  assert len(rest) == 79
  # The weights are the same, and so is what the first segment shows.
  pairs = [(r['nll_nats'], r['other_nll_nats']) for r in rest]
  assert all(a == pytest.approx(b, rel=1e-4) for a, b in pairs[:5])
  assert any(abs(a - b) > 1e-2 for a, b in pairs[5:])
  page = (folder / 'analysis/heatmap.html').read_text()
  assert '<span class="d' in page and '<span class="none">' in page


def test_behind_the_end(folder, corpus):
  with pytest.raises(UserError, match=r'heatmap.start is 79; .* 0 to 78'):
    heatmap.run(runs.job(config(start=79), folder))


def test_long_words_leave_the_table_narrow():
  text = [
    {'text': f'{"word" * 9} ', 'nll_nats': 1.0, 'other_nll_nats': None}
    for _ in range(20)
  ]
  record = {
    'text': text, 'against': None, 'mean_nats': 1.0, 'start': 0, 'tokens': 20,
    'split_tokens': 20, 'run': 'r', 'checkpoint_step': 1, 'corpus': 'c',
    'split': 'test',
  }  # fmt: skip
  assert max(map(len, heatmap.table(record))) < 110
