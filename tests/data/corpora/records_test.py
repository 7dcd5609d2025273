import json
import tracemalloc

import pytest

from tests.data.corpora import asking
from txl_jax.data.corpora import local
from txl_jax.program.errors import UserError

TEXTS = [f'record {i}\nis short, é漢\n'[: 30 - i % 9] for i in range(900)]
PLAIN = ''.join(x if x.endswith('\n') else f'{x}\n' for x in TEXTS).encode()
LINES = ''.join(json.dumps({'n': 1, 'text': x}) + '\n' for x in TEXTS).encode()


def test_records_give_their_text(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(LINES + b'\n')
  assert b''.join(local.records(path, True)) == PLAIN
  assert [*local.records(path, False)] == [x.encode() for x in TEXTS]


@pytest.mark.parametrize('level', ['byte', 'word'])
def test_a_corpus_of_records_is_that_of_its_text(tmp_path, level):
  (tmp_path / 'plain.txt').write_bytes(PLAIN)
  (tmp_path / 'a.b.JSONL').write_bytes(LINES)
  options = dict(level=level, unk=level == 'word')
  one, two = (
    asking.prepare('text', tmp_path / 'data', path=path, **options)
    for path in (tmp_path / 'plain.txt', tmp_path / 'a.b.JSONL')
  )
  for split in ('train', 'validation', 'test'):
    assert (one.tokens(split) == two.tokens(split)).all()
  assert one.digest == two.digest


@pytest.mark.parametrize(
  'text, line',
  [
    (b'{"text": "a"}\n\n{"body": 1, "id": 2}\n', 3),
    (b'{"text": "a"}\n{"text": \n', 2),
    (b'\xff\n', 1),
    (b'[' * 100_000, 1),
    (b'[1]\n', 1),
    (b'{"text": null}', 1),
    (b'{"text": 3}', 1),
  ],
)
def test_records_that_cannot_be_read(tmp_path, text, line):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(text)
  with pytest.raises(UserError) as error:
    [*local.records(path, True)]
  assert str(error.value) == (
    f'{path}: line {line}; allowed: a JSON object whose field text is a string'
  )


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match='jsonl cannot be read: No such'):
    [*local.records(tmp_path / 'a.jsonl', True)]


def test_memory_does_not_grow_with_the_file(tmp_path):
  line = json.dumps({'text': 'x' * 1000}).encode() + b'\n'
  path = tmp_path / 'a.jsonl'
  path.write_bytes(line * 20_000)
  tracemalloc.start()
  assert sum(map(len, local.records(path, True))) == 20_000 * 1001
  assert tracemalloc.get_traced_memory()[1] < 4 << 20
  tracemalloc.stop()
