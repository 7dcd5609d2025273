import gzip
import json
import sys
import tracemalloc

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from tests.data.corpora import asking
from txl_jax.data.corpora import formats
from txl_jax.program.errors import UserError

TEXTS = [f'record {i}\nis short, é漢\n'[: 30 - i % 9] for i in range(900)]
PLAIN = ''.join(x if x.endswith('\n') else f'{x}\n' for x in TEXTS).encode()
LINES = ''.join(json.dumps({'n': 1, 'text': x}) + '\n' for x in TEXTS).encode()


def packed(data):
  half = len(data) // 2
  several = data[:half], data[half:]  # members, frames
  return {
    '.gz': b''.join(map(gzip.compress, several)),
    '.zst': b''.join(map(zstandard.compress, several)),
  }


def write(folder, suffix):
  """A file of that form, with the text of PLAIN."""
  path = folder / f'a.b{suffix}'
  if suffix == '.parquet':
    table = pyarrow.table({'n': [*range(900)], 'text': TEXTS})
    parquet.write_table(table, path, row_group_size=100)
    return path
  inner = LINES if '.jsonl' in suffix else PLAIN
  path.write_bytes(packed(inner).get(path.suffix.lower(), inner))
  return path


def read(path, field='text'):
  return b''.join(formats.reader(path, field)())


FORMS = (
  '.gz',
  '.txt.gz',
  '.ZST',
  '.jsonl',
  '.jsonl.gz',
  '.jsonl.zst',
  '.parquet',
)


@pytest.mark.parametrize('suffix', FORMS)
def test_every_form_gives_the_text(tmp_path, suffix):
  path = write(tmp_path, suffix)
  assert read(path) == PLAIN
  assert formats.has_records(path) == ('.jsonl' in suffix or 'par' in suffix)


@pytest.mark.parametrize('name', ['a.txt', 'a.py', 'a', 'jsonl', 'a.jsonl.txt'])
def test_other_files_are_texts_themselves(tmp_path, name):
  assert formats.reader(tmp_path / name, 'text') is None


@pytest.mark.parametrize('suffix', FORMS)
@pytest.mark.parametrize('level', ['byte', 'word'])
def test_a_corpus_of_every_form_is_that_of_its_text(tmp_path, suffix, level):
  plain = tmp_path / 'plain.txt'
  plain.write_bytes(PLAIN)
  options = dict(level=level, unk=level == 'word')
  one, two = (
    asking.prepare('text', tmp_path / 'data', path=path, **options)
    for path in (plain, write(tmp_path, suffix))
  )
  for split in ('train', 'validation', 'test'):
    assert (one.tokens(split) == two.tokens(split)).all()
  assert one.digest == two.digest


def test_another_field_is_another_corpus(tmp_path):
  path = tmp_path / 'a.jsonl'
  rows = [json.dumps({'text': f'a{i}', 'body': f'b{i}'}) for i in range(99)]
  path.write_text('\n'.join(rows) + '\n\n')
  one, two = (
    asking.prepare('text', tmp_path / 'data', path=path, **more)
    for more in ({}, {'field': 'body'})
  )
  assert one.folder != two.folder
  assert two.manifest['source']['field'] == 'body'
  first = two.vocabulary.decode(two.tokens('train')[:6])
  assert first == b'b0\nb1\n'


@pytest.mark.parametrize(
  'text, found',
  [
    (b'{"text": "a"}\n\n{"body": 1, "id": 2}\n', "line 3 has no field 'text'"),
    (b'{"body": 1, "id": 2}', "allowed for data.field: 'body', 'id'"),
    (b'{"text": "a"}\n{"text": \n', 'line 2 is no JSON: Expecting value'),
    (b'\xff\n', 'line 1 is no JSON'),
    (b'[' * 100_000, 'line 1 is no JSON'),
    (b'[1]\n', 'line 1 is no JSON object'),
    (b'{"text": null}', "line 1: the field 'text' is null"),
    (b'{"text": 3}', "line 1: the field 'text' is a int"),
  ],
)
def test_records_that_cannot_be_read(tmp_path, text, found):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(text)
  with pytest.raises(UserError) as error:
    read(path)
  assert f'{path}: ' in str(error.value) and found in str(error.value)
  assert '\n' not in str(error.value)


def test_tables_that_cannot_be_read(tmp_path):
  path = tmp_path / 'a.parquet'
  parquet.write_table(pyarrow.table({'text': ['a', None], 'id': [1, 2]}), path)
  with pytest.raises(UserError, match=r"record 2: the field 'text' is null"):
    read(path)
  with pytest.raises(UserError, match=r"no field 'body'; .*: 'text', 'id'"):
    read(path, 'body')
  with pytest.raises(UserError, match=r"record 1: the field 'id' is a int"):
    read(path, 'id')
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(UserError, match='damaged or cut off: '):
    read(path)


@pytest.mark.parametrize('suffix', ['.gz', '.zst', '.jsonl.gz', '.jsonl.zst'])
@pytest.mark.parametrize('damage', ['cut', 'cut early', 'other', 'empty'])
def test_damaged_files(tmp_path, suffix, damage):
  path = write(tmp_path, suffix)
  data = path.read_bytes()
  others = {'cut': data[:-5], 'cut early': data[:20], 'other': b'x' * 99}
  path.write_bytes(others.get(damage, b''))
  if damage == 'empty' and '.gz' in suffix:  # for gzip that is an empty text
    assert read(path) == b''
    return
  with pytest.raises(UserError, match=r'(damaged|cut off)') as error:
    read(path)
  assert f'{path}' in str(error.value)


def test_files_that_are_not_there(tmp_path):
  for name in ('a.gz', 'a.jsonl', 'a.parquet'):
    with pytest.raises(UserError, match=f'{name} cannot be read: No such'):
      read(tmp_path / name)


@pytest.mark.parametrize(
  'name, module',
  [('a.zst', 'zstandard'), ('a.parquet', 'pyarrow')],
)
def test_what_is_not_installed_is_told(tmp_path, monkeypatch, name, module):
  path = write(tmp_path, name[1:])
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(UserError) as error:
    read(path)
  assert f'needs the package {module}; run: pip install ' in str(error.value)
  assert "'txl_jax[text]'" in str(error.value)


def test_memory_does_not_grow_with_the_file(tmp_path):
  line = json.dumps({'text': 'x' * 1000}).encode() + b'\n'
  path = tmp_path / 'a.jsonl.gz'
  with gzip.open(path, 'wb', 1) as f:
    for _ in range(40):
      f.write(line * 1000)
  tracemalloc.start()
  assert sum(map(len, formats.reader(path, 'text')())) == 40_000 * 1001
  assert tracemalloc.get_traced_memory()[1] < 8 << 20
  tracemalloc.stop()


def test_memory_does_not_grow_with_a_table(tmp_path):
  path, size = tmp_path / 'a.parquet', 3 << 20  # of a row group
  rows = [f'{i}' * 128 for i in range(1000, 1000 + (size >> 9))]
  more: dict = dict(compression='none', use_dictionary=False)
  parquet.write_table(
    pyarrow.table({'text': rows * 12}), path, len(rows), **more
  )
  tracemalloc.start()
  found = sum(map(len, formats.reader(path, 'text')()))
  assert tracemalloc.get_traced_memory()[1] < 2 * size
  tracemalloc.stop()
  assert found == 12 * (size + len(rows))
