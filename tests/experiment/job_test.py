"""What a job says of its data."""

import dataclasses

import pytest

from tests import plain
from tests.modes import runs
from txl_jax.data.corpora import preparation

EACH = dict.fromkeys(('train', 'validation', 'test'), 'a')
SPLITS = 'data: train: a; validation: a; test: '
GONE = 'data.tokenizer: gone is gone, using vocabulary.json'


@pytest.mark.parametrize(
  'files, tokenizer, stored, lines',
  [
    ({}, '', True, []),
    (EACH, 'gone', False, []),
    (EACH | {'test': 'b'}, 'mine', True, [f'{SPLITS}b']),
    (EACH | {'more': 'a'}, 'gone', True, [GONE, f'{SPLITS}a; more: a']),
  ],
)
def test_files_that_are_not_as_usual(
  tmp_path, monkeypatch, capsys, files, tokenizer, stored, lines
):
  monkeypatch.chdir(tmp_path)
  for name in ['mine', *['vocabulary.json'] * stored]:
    (tmp_path / name).touch()
  corpus, asked = plain.Corpus(), []
  corpus.files = files
  locate = lambda data: (asked.append(data.tokenizer), corpus)[1]
  monkeypatch.setattr(preparation, 'locate_or_prepare', locate)
  job = runs.job(runs.config(), tmp_path.relative_to(tmp_path), silent=False)
  data = dataclasses.replace(job.config.data, tokenizer=tokenizer)
  config = dataclasses.replace(job.config, data=data)
  dataclasses.replace(job, config=config).corpus()
  assert capsys.readouterr().err.splitlines()[1:] == lines
  assert asked == ['vocabulary.json' if GONE in lines else tokenizer]
