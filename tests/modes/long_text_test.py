"""--mode=long_text of a tiny run of bytes, and of words."""

import dataclasses

import pytest

from tests.modes import runs, subjects
from txl_jax.data.vocabularies.words import Words
from txl_jax.generation.options import LongText
from txl_jax.modes import generate, long_text
from txl_jax.program.errors import UserError


def config(**values):
  c = subjects.config()
  c.generate.update(top_k=2, segment_len=7, stop='none')
  c.long_text.update({'start': 3, 'context': 20, 'tokens': 40} | values)
  return c


def test_what_is_written_is_what_generate_writes(folder, corpus, capfd):
  c = config()
  record = subjects.measure(long_text, c, folder, 'long_text')
  assert record['generate']['top_k'] == 2
  decode = lambda ids: bytes(runs.VOCABULARY.symbols[i] for i in ids).decode()
  text = subjects.text(80)
  assert record['context'] == decode(text[3:23])
  assert record['real_text'] == decode(text[23:63])
  table = capfd.readouterr().out.splitlines()
  c.generate.update(prompt=record['context'], max_new_tokens=40)
  generate.run(runs.job(c, folder))
  printed = capfd.readouterr().out
  assert printed == record['context'] + record['written_text'] + '\n'
  written = record['written_text']
  for row in record['ngrams']:
    K = row['n']
    grams = [written[i : i + K] for i in range(40 - K + 1)]
    share = 1 - len({*grams}) / len(grams)
    assert row['written_repeated'] == pytest.approx(share)
  assert [line.split()[0] for line in table[3:8]] == ['1', '2', '4', '8', '16']
  assert f'{record["real_longest_repeat_tokens"]} real' in table[8]
  page = (folder / 'analysis/long_text.md').read_text()
  for name in 'context', 'written_text', 'real_text':
    assert f'```text\n{record[name]}\n```' in page
  subjects.assert_picture(folder / 'analysis/long_text.png')


def test_words_and_no_end_of_a_line(tmp_path, monkeypatch):
  words = Words(('<eos>', 'a', '```'), (4, 3, 2), eos='<eos>')
  corpus = subjects.Corpus()
  monkeypatch.setattr(subjects.Corpus, 'vocabulary', words)
  locate = lambda data: corpus
  monkeypatch.setattr(subjects.job.preparation, 'locate_or_prepare', locate)
  subjects.write(tmp_path / 'words', vocabulary=words)
  c = config()
  c.generate.stop = 'line'  # which this text goes on after
  record = subjects.measure(long_text, c, tmp_path / 'words', 'long_text')
  assert record['written_tokens'] == 40 and record['unit'] == 'ppl'
  page = (tmp_path / 'words/analysis/long_text.md').read_text()
  assert f'````text\n{record["real_text"]}\n````' in page


def test_more_than_there_is(folder, corpus):
  with pytest.raises(UserError, match=r'is 81; allowed: 80 at most'):
    long_text.run(runs.job(config(tokens=58), folder))


@pytest.mark.parametrize('ngrams', [(), (0,), (True,), (1.0,), (1001,)])
def test_ngrams_that_are_none(ngrams):
  section = LongText(ngrams=ngrams)
  assert [name for name, _ in section.problems()] == ['ngrams']
  assert not [*dataclasses.replace(section, ngrams=(3,)).problems()]
