import json
import tracemalloc

import pytest

from tests.data.corpora import asking
from txl_jax.data.corpora import records
from txl_jax.program.errors import UserError

TEXTS = [f'record {i}\nis short, é漢\n'[: 30 - i % 9] for i in range(900)]
PLAIN = ''.join(x if x.endswith('\n') else f'{x}\n' for x in TEXTS).encode()
LINES = ''.join(json.dumps({'n': 1, 'text': x}) + '\n' for x in TEXTS).encode()


def test_records_give_their_text(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(LINES + b'\n')
  assert b''.join(records.texts(path, True, 'text')) == PLAIN
  assert [*records.texts(path, False, 'text')] == [x.encode() for x in TEXTS]


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
  'text, found',
  [
    (
      b'{"text": "a"}\n\n{"body": 1, "id": 2}\n',
      "line 3 has the fields 'body', 'id'",
    ),
    (b'{}', 'line 1 has no fields'),
    (
      json.dumps({f'{i}' * 99: 0 for i in range(9)}).encode(),
      f"line 1 has the fields '{'0' * 99}', '{'1' * 95}… and 4 more",
    ),
    (b'{"text": "a"}\n{"text": \n', 'line 2 has \'{"text": \', not JSON'),
    (b'\xff\n', "line 1 has '\ufffd', not JSON"),
    (b'[' * 100_000, f"line 1 has '{'[' * 198}…, not JSON"),
    (b'[1]\n', 'line 1 has [1]'),
    (b'null\n', 'line 1 has null'),
    (b'{"text": null}', 'line 1 has null'),
    (b'{"text": 3}', 'line 1 has 3'),
    (b'{"text": ["a"]}', 'line 1 has ["a"]'),
    (b'{"text": "a\\ud83d"}', 'line 1 has half of a surrogate pair'),
  ],
)
def test_records_that_cannot_be_read(tmp_path, text, found):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(text)
  with pytest.raises(UserError) as error:
    [*records.texts(path, True, 'text')]
  assert str(error.value) == (
    f"{path}: {found}; allowed: an object whose field 'text' (data.field) is a "
    'string'
  )


def test_another_field(tmp_path):
  lines = LINES.replace(b'"text"', b'"the body"').replace(b'"n"', b'"text"')
  (tmp_path / 'a.jsonl').write_bytes(lines)
  (tmp_path / 'b.jsonl').write_bytes(LINES)
  one, two = (
    asking.prepare('text', tmp_path / 'data', path=tmp_path / name, **more)
    for name, more in (('a.jsonl', {'field': 'the body'}), ('b.jsonl', {}))
  )
  assert one.digest == two.digest
  assert one.name.endswith('-field_the%20body')


def test_a_file_that_is_not_there(tmp_path):
  with pytest.raises(UserError, match='jsonl cannot be read: No such'):
    [*records.texts(tmp_path / 'a.jsonl', True, 'text')]


def test_memory_does_not_grow_with_the_file(tmp_path):
  line = json.dumps({'text': 'x' * 1000}).encode() + b'\n'
  path = tmp_path / 'a.jsonl'
  path.write_bytes(line * 20_000)
  tracemalloc.start()
  assert sum(map(len, records.texts(path, True, 'text'))) == 20_000 * 1001
  assert tracemalloc.get_traced_memory()[1] < 6 << 20
  tracemalloc.stop()
