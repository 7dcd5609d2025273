"""What a job says of its data."""

import dataclasses
import pathlib
import types

import pytest

from tests import plain
from tests.modes import runs
from txl_jax.data.corpora import preparation
from txl_jax.experiment import saved_model
from txl_jax.program import settings

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


def test_a_run_of_another_config(monkeypatch, capsys):
  """Its keys, but those of the command; none of converted weights."""
  job = runs.job(runs.config(), pathlib.Path('run'), silent=False)
  then = settings.flatten(job.config) | {'seed': 1, 'model.n_head': 5}
  line = 'warning: run was trained with another config: {}seed is 0, not 1; '
  line += "without --config the run's own is used\n"
  both = line.format('model.n_head is 2, not 5, ')
  found = types.SimpleNamespace(corpus='', config=then)
  monkeypatch.setattr(saved_model, 'load', lambda *_: found)
  for found.corpus, named, said in (
    ('', '', ''), ('a', '', both), ('a', 'model.n_head', line.format('')),
  ):  # fmt: skip
    assert dataclasses.replace(job, changed=[named]).restored() is found
    assert capsys.readouterr().err == said
