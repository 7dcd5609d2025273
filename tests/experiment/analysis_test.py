"""What the evaluation programs share."""

import math
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests import plain, refusing
from tests.modes import runs
from txl_jax.data.vocabularies import Bytes
from txl_jax.experiment import analysis, saved_model, sections
from txl_jax.program.errors import UserError


def test_a_figure_that_is_not_finite(tmp_path):
  """As of weights that have diverged: told in a line, and nothing written."""
  job = runs.job(runs.config(), tmp_path)
  record = {'program': 'eval_test', 'nats': math.nan}
  with pytest.raises(UserError, match=r'eval_test\.json: not written'):
    analysis.report(job, record, ['test: nan'])
  assert not list(tmp_path.iterdir())


def test_a_table_has_aligned_columns():
  rows = [['short', 1, 2.25], ['the longest', 'n/a', 10]]
  assert analysis.table(('', 'first', 'b'), rows) == [
    '             first     b',
    'short            1  2.25',
    'the longest    n/a    10',
  ]
  record = dict(run='xl', checkpoint_step=7, corpus='book', split='test')
  for n, tokens in (80, '80'), (50, '50 of 80'):
    line = analysis.heading(record | {'tokens': n, 'split_tokens': 80})
    assert line == f'xl, step 7, book test, {tokens} tokens'


@pytest.mark.parametrize('M, expected', [(4, 9), (0, None)])
def test_another_run_is_read_in_the_same_way(
  tmp_path, monkeypatch, M, expected
):
  own = runs.config(mem_len=M)
  restored: Any = types.SimpleNamespace(vocabulary=runs.VOCABULARY, mesh=None)
  monkeypatch.setattr(saved_model, 'load', lambda *_: restored)
  monkeypatch.setattr(saved_model, 'recorded', lambda _: sections.read(own))
  (tmp_path / 'checkpoints').mkdir()
  c = runs.config()
  c.eval.segment_len = 3
  c.eval.model.update(mem_len=9, clamp_len=5)
  subject = analysis.Subject(restored, None, (), 0.0)
  config, _ = analysis.open_other(runs.job(c, tmp_path), subject, tmp_path)
  lengths = config.eval.model
  assert (lengths.mem_len, lengths.clamp_len) == (expected, 5)
  assert config.eval.segment_len == 3


def test_what_is_recorded_of_a_measurement(tmp_path, monkeypatch):
  config = {'train.segment_len': 4, 'train.batch_size': 5, 'train.steps': 6}
  config |= {'model.d_ff': 7, 'seed': 8}
  run = saved_model.Restored(1, None, 2, runs.VOCABULARY, config, 'TPU', None)
  config = analysis.model_of(tmp_path, run)['config']
  assert sorted(config.values()) == [4, 5, 6, 7]
  job = runs.job(runs.config(), tmp_path)
  monkeypatch.setattr(analysis.time, 'monotonic', lambda: 7.5)
  found = analysis.setting(job, 'recl', 2.0)
  assert (found['seconds'], found['options']['step']) == (5.5, 100)


def test_a_run_is_opened():
  corpus: Any = plain.Corpus()
  corpus.digest, corpus.of_documents = 'abcdefghijklmn', True
  corpus.vocabulary, corpus.tokens = runs.VOCABULARY, lambda _: np.arange(5)
  other = (
    'warning: the run in run was trained on another corpus (sha256 '
    '123456789012) than made here (sha256 abcdefghijkl): the split test may '
    'contain training text'
  )
  corpus.encoded_with = lambda _: corpus
  corpus.unknown_line = lambda *_: note
  for digest, note in ('', ''), (corpus.digest, 'odd'), ('1234567890123', ''):
    job = mock.Mock(folder='run', corpus=lambda: corpus)
    config = {'train.init_from': digest}
    job.restored().configure_mock(corpus=digest, config=config)
    job.restored().vocabulary = runs.VOCABULARY
    job.config.eval.split = 'test'
    assert len(analysis.open_run(job).tokens) == 5
    *lines, last = [call.args[0] for call in job.console.say.mock_calls]
    assert lines == [note] * bool(note) + [other] * (digest[:1] == '1')
    assert last.startswith('warning: documents are read as one text here; ')


@pytest.mark.parametrize('trained, how', [(True, 'with'), (False, 'without')])
def test_a_run_with_documents_reads_no_text_without(trained, how):
  plain_text = Bytes((97, 98))
  ended = plain_text.of_documents()
  corpus: Any = plain.Corpus()
  corpus.vocabulary, vocabulary = plain_text, ended
  if not trained:
    corpus.vocabulary, vocabulary = ended, plain_text
  job = mock.Mock(folder='run')
  message = refusing.refused(analysis._check_corpus, job, corpus, vocabulary)
  assert f'the run in run was trained {how} documents; al' in message
