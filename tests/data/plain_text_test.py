"""What is text: files that others made, beside what Python reads of them."""

import bz2
import gzip
import importlib
import io
import json
import lzma
import pickle
import sqlite3
import sys
import tarfile
import zipfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.data.corpora import asking
from tests.refusing import refused
from txl_jax.data import plain_text
from txl_jax.data.corpora import local

zstd = importlib.import_module(
  'compression.zstd' if sys.version_info >= (3, 14) else 'backports.zstd'
)
TEXT = ''.join(f'line {i}, é漢\U0001d11e\n' for i in range(900))
PLAIN = TEXT.encode()
some = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


def read(data, chunk=1 << 20):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(plain_text, '_CHUNK', chunk)
    return b''.join(plain_text.chunks(io.BytesIO(data), 'it'))


FORMS = {
  'a.txt': PLAIN,
  'mark.txt': b'\xef\xbb\xbf' + PLAIN,
  'cr.txt': PLAIN.replace(b'\n', b'\r'),
  'utf16.txt': TEXT.encode('utf-16'),
  'utf16be.txt': b'\xfe\xff' + TEXT.encode('utf-16-be'),
  'utf32.txt': TEXT.encode('utf-32'),
  'utf32be.txt': b'\0\0\xfe\xff' + TEXT.encode('utf-32-be'),
  'cr16.txt': TEXT.replace('\n', '\r').encode('utf-16'),
  'a.txt.gz': gzip.compress(PLAIN),
  'two.gz': gzip.compress(PLAIN[:99]) + gzip.compress(PLAIN[99:]),
  'a.xz': lzma.compress(PLAIN),
  'a.bz2': bz2.compress(PLAIN, 1),
  'a.zst': zstd.compress(PLAIN),
  'mark.txt.gz': gzip.compress(b'\xef\xbb\xbf' + PLAIN),
}


@pytest.mark.parametrize('name', FORMS)
@pytest.mark.parametrize('chunk', [3, 1 << 20])
def test_the_same_text_in_other_forms(name, chunk):
  assert read(FORMS[name], chunk) == PLAIN


def whole(corpus):
  """The bytes of all splits."""
  splits = ('train', 'validation', 'test')
  return b''.join(bytes(corpus.tokens(x)) for x in splits)


def test_corpora_of_the_same_text(tmp_path):
  """Cut into the same splits, by their bytes once they are read."""
  lines = TEXT.splitlines(keepends=True)
  # A newline at the end may be missing.
  each = (
    json.dumps({'text': x[: len(x) - i % 2]}) for i, x in enumerate(lines)
  )
  records = ''.join(f'{x}\n' for x in each).encode()
  forms = FORMS | dict.fromkeys(
    ('a.b.JSONL', 'a.ndjson', 'a.jsonlines'), records
  )
  forms |= {'a.jsonl.gz': gzip.compress(records)}
  forms |= {'a.jsonl.zst': zstd.compress(records)}
  marked = records.replace(b'"line 0', b'"\\ufeffline 0')
  forms['marked.jsonl'] = b'\xef\xbb\xbf' + marked.replace(b'\n', b'\r')
  digests = set()
  for name, data in forms.items():
    (tmp_path / name).write_bytes(data)
    made = asking.prepare('text', tmp_path / 'data', path=tmp_path / name)
    digests.add(made.digest)
    assert whole(made) == PLAIN
  assert len(digests) == 1
  words = dict(level='word', unk=True)
  digests = {
    asking.prepare(
      'text', tmp_path / 'data', path=tmp_path / name, **words
    ).digest
    for name in ('a.txt', 'mark.txt', 'cr.txt', 'a.b.JSONL')
  }
  assert len(digests) == 1


@pytest.mark.thorough
@some
@hypothesis.given(
  st.lists(st.sampled_from([*'\r\naé\ufeff\x85']), max_size=12),
  st.integers(1, 9),
)
def test_line_ends_are_those_of_the_definition(pieces, chunk):
  text = ''.join(pieces)
  expected = text.removeprefix('\ufeff').replace('\r\n', '\0')
  expected = expected.replace('\r', '\n').replace('\0', '\r\n').encode()
  assert read(text.encode(), chunk) == expected
  assert plain_text.normal(text.encode()) == expected


@pytest.mark.parametrize(
  'text', [b'', b'\xe9t\xe9 na\xefve', b'\x80 5', b'PK', b'BZh9']
)
def test_bytes_of_other_encodings_stay(text):
  assert read(text) == text


def made(write):
  f = io.BytesIO()
  write(f)
  return f.getvalue()


def archive(f):
  with zipfile.ZipFile(f, 'w') as z:
    z.writestr('a.txt', TEXT)


def tar(f):
  with tarfile.open(fileobj=f, mode='w') as t:
    t.addfile(tarfile.TarInfo('a.txt'))


def database(path):
  with sqlite3.connect(path) as db:
    db.execute('create table a (b)')
  db.close()
  return path.read_bytes()


BINARY = {
  'a Parquet file': b'PAR1\x15\x04\x15',
  'an Arrow file': b'\xff\xff\xff\xff\xa8\0\0\0\x10\0\0\0\0\0',
  'a NumPy array': made(lambda f: np.save(f, np.zeros(3))),
  'a pickle': pickle.dumps({'stoi': {}}),
  'a zip archive (perhaps a .docx); unpack it': made(archive),
  'a tar archive': made(tar),
  'a PDF, so it is not text; pdftotext': b'%PDF-1.7\n',
  'a picture': b'\x89PNG\r\n\x1a\n',
  'an archive; unpack it': b'\x1f\x9d\x90te',  # of compress, .Z
  'a Git LFS pointer, so it is not text; git lfs pull': (
    b'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n'
  ),
}


def test_zstd_without_its_package(monkeypatch):
  monkeypatch.setitem(sys.modules, zstd.__name__, None)
  assert "pip install 'txl_jax[text]'" in refused(read, FORMS['a.zst'])


@pytest.mark.parametrize('what', BINARY)
def test_files_that_are_no_text(tmp_path, what):
  path = tmp_path / 'train.txt'
  for data in BINARY[what], gzip.compress(BINARY[what]):
    path.write_bytes(data)
    said = refused(asking.prepare, 'text', tmp_path / 'data', path=path)
    first, _, rest = what.partition('; ')
    for words in f'{path} is ', first, rest, 'data.raw=True':
      assert words in said
  assert not list((tmp_path / 'data').glob('*'))


def test_a_database(tmp_path):
  said = refused(read, database(tmp_path / 'a.db'))
  assert 'it is a database, so it is not text' in said


@pytest.mark.parametrize('at', [0, 5000, 3 << 20])
def test_a_nul_byte_anywhere(tmp_path, at):
  path = tmp_path / 'val.bin'
  data = bytearray(b'x' * (4 << 20))
  data[at] = 0
  path.write_bytes(data)
  said = refused(asking.prepare, 'text', tmp_path / 'data', path=path)
  assert 'val.bin contains NUL bytes (token ids,' in said
  made = asking.prepare('text', tmp_path / 'data', path=path, raw=True)
  assert whole(made) == data


def test_bytes_that_are_meant(tmp_path):
  """Bytes as they are, of prompts as well; the vocabulary says so."""
  path = tmp_path / 'a.jsonl'
  data = b'\xef\xbb\xbf' + bytes(range(256)) * 99
  path.write_bytes(data)
  prepare = asking.prepare, 'text', tmp_path / 'data'
  made = asking.prepare('text', tmp_path / 'data', path=path, raw=True)
  assert whole(made) == data and made.name.endswith('-raw')
  assert made.vocabulary.raw
  entry = made.vocabulary.to_json()
  assert type(made.vocabulary).from_json(entry).raw
  for options in {'level': 'word'}, {'documents': 'record'}, {'field': 'a'}:
    said = refused(*prepare, path=path, raw=True, **options)
    assert said.startswith('data.raw is True; allowed: False')


@pytest.mark.parametrize(
  'data, words',
  [
    (gzip.compress(PLAIN, mtime=0)[:-9], 'it is damaged: Compressed file'),
    (gzip.compress(PLAIN, mtime=0)[:-9] + b'x' * 9, 'it is damaged: '),
    (gzip.compress(PLAIN, mtime=0) + b'x', 'it is damaged: Not a gzipped file'),
    (lzma.compress(PLAIN)[:-30], 'it is damaged: Compressed file ended'),
    (bz2.compress(PLAIN)[:-9], 'it is damaged: Compressed file ended'),
    (zstd.compress(PLAIN)[:-9], 'it is damaged: Compressed file ended'),
    (b'\xff\xfea', "it is damaged: 'utf-16-le' codec can't decode byte 0x61"),
    (b'\xff\xfe\x00\xd8a\x00', "it is damaged: 'utf-16-le' codec"),
  ],
)
def test_damaged_files(data, words):
  assert refused(read, data).startswith(words)


def test_plain_files_are_read_where_they_are_cut(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'ab\rcd\r\nef\r')
  part = local.text(path)
  assert part.read is None and part.size == 10
  pieces = [b''.join(local.between([part], i, i + 1)()) for i in range(10)]
  assert b''.join(pieces) == b''.join(part()) == b'ab\ncd\r\nef\n'
