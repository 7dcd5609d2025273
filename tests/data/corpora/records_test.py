import csv
import gzip
import json
import tracemalloc

import pytest

from tests.data.corpora import asking
from tests.refusing import refused
from txl_jax.data.corpora import records

TEXTS = [f'record {i}\nis short, é漢\n'[: 30 - i % 9] for i in range(900)]
PLAIN = ''.join(x if x.endswith('\n') else f'{x}\n' for x in TEXTS).encode()
LINES = ''.join(json.dumps({'n': 1, 'text': x}) + '\n' for x in TEXTS).encode()


def test_records_give_their_text(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(LINES + b'\n')
  assert b''.join(records.texts(path, True, 'text')) == PLAIN
  assert [*records.texts(path, False, 'text')] == [x.encode() for x in TEXTS]


@pytest.mark.parametrize(
  'text, found',
  [
    (
      b'{"text": "a"}\n\n{"a": 1, "id": 2}\n',
      "line 3 has the fields 'a', 'id'",
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
  assert refused(list, records.texts(path, True, 'text')) == (
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


def written(path, rows, dialect, encoding='utf-8'):
  with path.open('w', newline='', encoding=encoding) as f:
    csv.writer(f, **dialect).writerows([('n', 'body'), *enumerate(rows)])
  return path


FORMS = {
  'a.csv': lambda path: written(path, TEXTS, {}),
  'b.csv': lambda path: written(path, TEXTS, {'delimiter': ';'}, 'utf-8-sig'),
  'c.csv': lambda path: written(
    path, TEXTS, {'quoting': csv.QUOTE_ALL}, 'utf-16'
  ),
  'd.TSV': lambda path: written(path, TEXTS, {'dialect': 'excel-tab'}),
  'e.csv.gz': lambda path: path.write_bytes(
    gzip.compress(written(path, TEXTS, {'lineterminator': '\n'}).read_bytes())
  ),
  'f.json': lambda path: path.write_text(
    json.dumps([{'n': 1, 'body': x} for x in TEXTS], indent=1)
  ),
  'g.json': lambda path: path.write_bytes(b'\n' + BODIES),
  'h.json.gz': lambda path: path.write_bytes(gzip.compress(BODIES)),
  'i.json': lambda path: path.write_text(
    json.dumps([{'body': x} for x in TEXTS])
  ),
}
BODIES = LINES.replace(b'"text"', b'"body"')


@pytest.mark.parametrize('name', FORMS)
def test_a_column_of_a_file_of_text(tmp_path, name):
  path = tmp_path / name
  FORMS[name](path)
  assert records.are_in(path, 'body') and not records.are_in(path, 'text')
  assert [*records.texts(path, False, 'body')] == [x.encode() for x in TEXTS]
  said = refused(list, records.texts(path, False, 'boddy'))
  assert "'body'; allowed" in said
  made = asking.prepare(
    'text', tmp_path / 'data', path=path, field='body', documents='record'
  )
  assert sum(x['sentences'] for x in made.manifest['splits'].values()) == 900


def test_a_single_column_with_commas(tmp_path):
  for name in 'a.tsv', 'a.csv':
    (tmp_path / name).write_text('text\nhello, world\n\nand; more|,\n')
    found = [*records.texts(tmp_path / name, False, 'text')]
    assert found == [b'hello, world', b'and; more|,']


def test_bytes_of_a_csv_that_are_not_utf_8_stay(tmp_path):
  path = written(tmp_path / 'a.csv', ['Déjà\r\nvu', 'x'], {}, 'latin-1')
  read = [*records.texts(path, False, 'body')]
  assert read == ['Déjà\r\nvu'.encode('latin-1'), b'x']


@pytest.mark.parametrize(
  'name, text, found',
  [
    ('a.csv', 'n,text\n1,a\n\n2,b,c\n', 'line 4 has 3 cells, the first row 2'),
    ('a.csv', 'n,text\n1,a\n2\n', 'line 3 has 1 cells, the first row 2'),
    ('a.csv', 'text\na\n"b\nc\n', 'line 5 is damaged: unexpected end'),
    ('a.csv', 'text,n\na,1\n"b"c,2\n', "line 3 is damaged: ',' expected"),
    ('a.csv', 'n,text\n1,a, b\n2,c\n', 'line 2 has 3 cells, the first row 2'),
    ('a.tsv', 'n\ttext\n1\t"a" b\n', "line 2 is damaged: '\t' expected"),
    ('a.csv', 'text,text\na,b\n', "the columns 'text', 'text'"),
    ('a.json', '{"text": null}\n{"text": "a"}', 'line 1 has null; allowed'),
    ('a.json', '{"text": "a"}\n{"text": 1}', 'line 2 has 1; allowed'),
    ('a.json', '[{"text": "a"}, {"b": 1}]', "record 2 has the fields 'b'"),
    ('a.json', '[{"text": "a"}, "b"]', 'record 2 has "b"; allowed'),
  ],
)
def test_damaged_records_are_refused(tmp_path, name, text, found):
  path = tmp_path / name
  path.write_text(text)
  assert records.are_in(path, 'text')
  said = refused(list, records.texts(path, True, 'text'))
  assert said.startswith((f'{path}: {found}', f'{path} has {found}'))


@pytest.mark.parametrize(
  'name, text',
  [
    ('a.csv', 'id,review\n1,good\n'),
    ('a.csv', 'Text,n\na,b\n'),
    ('a.csv', 'so "it" is, "he" said\n'),
    ('a.csv', '"so" it is\n'),
    ('a.csv', ''),
    ('a.json', '{"data": [{"text": "a"}]}'),
    ('a.json', '{"text": {"0": "a", "1": "b"}}'),  # a table of pandas
    ('a.json', '[]'),
    ('a.json', '[' * 100_000),
    ('a.json', 'text'),
    ('a.ipynb', '{"text": "a"}'),
  ],
)
def test_text_without_the_default_field_is_plain(tmp_path, name, text):
  path = tmp_path / name
  path.write_text(text)
  assert not records.are_in(path, 'text')


def test_a_field_of_files_that_have_none(tmp_path):
  for name in 'a.txt', 'a.ipynb', 'a.npy':
    assert refused(records.are_in, tmp_path / name, 'body') == (
      f"data.field is 'body'; allowed: only with records, which {tmp_path}/"
      f'{name} does not have'
    )


@pytest.mark.parametrize('field', ['body', 'title'])  # 'text' is between them
def test_a_field_that_a_table_lacks_is_asked_for_all_the_same(tmp_path, field):
  """So that it is refused with the fields that are there."""
  path = tmp_path / 'a.csv'
  path.write_text('other\nx\n')
  assert records.are_in(path, field) and not records.are_in(path, 'text')
  said = refused(list, records.texts(path, False, field))
  assert "'other'; allowed" in said


def test_a_file_that_is_not_there(tmp_path):
  said = refused(list, records.texts(tmp_path / 'a.jsonl', True, 'text'))
  assert 'jsonl cannot be read: No such' in said


def test_memory_does_not_grow_with_the_file(tmp_path):
  line = json.dumps({'text': 'x' * 1000}).encode() + b'\n'
  path = tmp_path / 'a.jsonl'
  path.write_bytes(line * 20_000)
  tracemalloc.start()
  assert sum(map(len, records.texts(path, True, 'text'))) == 20_000 * 1001
  assert tracemalloc.get_traced_memory()[1] < 6 << 20
  tracemalloc.stop()
