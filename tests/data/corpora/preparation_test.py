import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from tests.data.corpora.asking import prepare
from tests.refusing import refused
from txl_jax.data import prepared
from txl_jax.data.corpora import builders, preparation, writing
from txl_jax.data.data_config import Data

LINES = b''.join(b'%d bottles\n' % i for i in range(500))
SIZES = {'train': 900, 'validation': 60, 'test': 40}
# 1000 bytes; e and d are equally rare, e comes first.
TEXT = b'b\na' * 10 + b'aba\ncb' * 20 + b'aaa\n' * 211 + b'cedecd'


@pytest.fixture
def enwik8(tmp_path, monkeypatch):
  """Registers a small archive as enwik8; gives the folder that holds it."""
  folder = tmp_path / 'manual'
  folder.mkdir()
  path = folder / 'enwik8.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('enwik8', TEXT)
  data = path.read_bytes()
  archive = builders.Archive(
    ('http://corpus.invalid/enwik8.zip',),
    len(data),
    hashlib.sha256(data).hexdigest(),
    dict.fromkeys(SIZES, ('enwik8',)),
    SIZES,
  )
  monkeypatch.setitem(builders.ARCHIVES, 'enwik8', archive)
  return folder


@pytest.fixture
def data_dir(tmp_path):
  return tmp_path / 'a new' / 'data'


@pytest.fixture
def book(tmp_path):
  path = tmp_path / 'my book.txt'
  path.write_bytes(LINES)
  return path


@pytest.fixture
def stdlib(tmp_path, monkeypatch):
  """A small standard library in the place of the interpreter's."""
  root = tmp_path / 'lib'
  root.mkdir()
  for i in range(200):
    (root / f'module{i}.py').write_bytes(b'x = %d\n' % i)
  monkeypatch.setattr(preparation.sysconfig, 'get_path', lambda name: str(root))
  return root


def decoded(data):
  return b''.join(data.vocabulary.decode(data.tokens(s)) for s in SIZES)


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_enwik8_keeps_every_byte(enwik8, data_dir):
  data = prepare('enwik8', data_dir, manual_dir=enwik8)
  assert data.name == 'enwik8'
  assert decoded(data) == TEXT
  for split, size in SIZES.items():
    entry = data.manifest['splits'][split]
    assert data.tokens(split).size == entry['bytes'] == size
  assert bytes(data.vocabulary.symbols) == b'a\nbced'
  assert data.vocabulary.counts == tuple(TEXT.count(v) for v in b'a\nbced')
  assert data.tokens('train').dtype == np.uint8
  archive = builders.ARCHIVES['enwik8']
  assert data.manifest['source'] == {
    'file': 'enwik8.zip',
    'urls': list(archive.urls),
    'size': archive.size,
    'sha256': archive.sha256,
  }


def test_newline_drop_is_the_published_protocol(enwik8, data_dir):
  data = prepare('enwik8', data_dir, newline='drop', manual_dir=enwik8)
  assert data.name == 'enwik8-newline_drop'
  assert data.manifest['options'] == {}
  start = 0
  for split, size in SIZES.items():
    part = TEXT[start : start + size]
    start += size
    assert part.count(b'\n') > 0
    assert data.tokens(split).size == size - part.count(b'\n')
    assert data.manifest['splits'][split]['bytes'] == size
  assert decoded(data) == TEXT.replace(b'\n', b'')
  assert bytes(data.vocabulary.symbols) == b'abced'
  assert data.vocabulary.encode(b'a\nb', 'prompt').tolist() == [0, 1]
  asked = Data('enwik8', f'{data_dir}', newline='drop')
  assert preparation.locate_or_prepare(asked).digest == data.digest


def test_all_bytes_are_symbols(enwik8, data_dir):
  data = prepare('enwik8', data_dir, alphabet='bytes', manual_dir=enwik8)
  assert data.name == 'enwik8-alphabet_bytes'
  assert data.manifest['options'] == {}
  assert data.vocabulary.symbols == tuple(range(256))
  tokens = [data.tokens(split) for split in SIZES]
  assert np.concatenate(tokens).tolist() == list(TEXT)
  again = Data('enwik8', f'{data_dir}', alphabet='bytes')
  assert preparation.vocab_size(again) == 256
  assert preparation.locate_or_prepare(again).digest == data.digest


@pytest.mark.parametrize('newline, symbols', [('keep', 6), ('drop', 5)])
def test_published_number_of_bytes(
  enwik8, data_dir, monkeypatch, newline, symbols
):
  archive = builders.ARCHIVES['enwik8']

  def publish(n):
    changed = dataclasses.replace(archive, symbols=n)
    monkeypatch.setitem(builders.ARCHIVES, 'enwik8', changed)
    return dict(newline=newline, manual_dir=enwik8, force=True)

  data = prepare('enwik8', data_dir, **publish(6))
  assert len(data.vocabulary) == symbols
  assert refused(prepare, 'enwik8', data_dir, **publish(7)) == (
    f'enwik8: {symbols} symbols, but '
    f'{symbols + 1} are published; use the published text'
  )
  options = publish(7) | {'alphabet': 'bytes', 'newline': 'keep'}
  assert len(prepare('enwik8', data_dir, **options).vocabulary) == 256


def test_text_is_prepared_by_content(book, data_dir):
  data = prepare('text', data_dir, path=book)
  digest = hashlib.sha256(b'my book.txt\0%d\0' % len(LINES) + LINES)
  assert data.name == f'text-my_book-{digest.hexdigest()[:12]}'
  assert data.manifest['source']['sha256'] == digest.hexdigest()
  assert data.folder == data_dir / data.name
  there = ['manifest.json', 'test.bin', 'train.bin', 'validation.bin']
  assert names(data.folder) == there
  assert decoded(data) == LINES
  assert len(data.vocabulary) == 256
  long = book.rename(book.with_name('x y' * 15))  # 40 characters are in a name
  name = prepare('text', data_dir, path=long).name
  assert name[:-12] == 'text-' + 'x_y' * 13 + 'x-'
  book = long.rename(book)

  book.write_bytes(LINES + b'one more\n')
  changed = prepare('text', data_dir, path=book)
  assert decoded(changed) == LINES + b'one more\n'
  assert decoded(prepared.load(data.folder)) == LINES


def test_pystdlib_is_prepared_by_content(stdlib, data_dir):
  data = prepare('pystdlib', data_dir)
  sha256 = data.manifest['source']['sha256']
  assert data.name == f'pystdlib-{sha256[:12]}'
  lines = sorted(b'x = %d\n' % i for i in range(200))
  assert sorted(decoded(data).splitlines(keepends=True)) == lines
  version = '.'.join(map(str, sys.version_info[:3]))
  assert data.manifest['source']['python'] == version


def test_second_time_nothing_is_written(book, data_dir, capsys):
  def again(**options):
    data = prepare('text', data_dir, path=book, **options)
    said = capsys.readouterr().err
    return os.stat(data.folder / 'manifest.json').st_ino, said, data

  first, said, data = again()
  assert said.splitlines()[0] == f'preparing text into {data.folder}'
  second, said, _ = again()
  assert (second, said) == (first, '')
  third, said, _ = again(force=True)
  assert third != first
  assert 'preparing' in said
  assert names(data_dir) == [data.name]


def test_damaged_data_is_told_and_mended_by_force(book, data_dir):
  data = prepare('text', data_dir, path=book)
  os.truncate(data.folder / 'train.bin', 10)
  said = refused(prepare, 'text', data_dir, path=book)
  assert 'train.bin has 10 bytes' in said
  prepare('text', data_dir, path=book, force=True)
  assert decoded(prepared.load(data.folder)) == LINES


def test_force_that_fails_at_the_end_keeps_the_old_one(
  book, data_dir, monkeypatch
):
  data = prepare('text', data_dir, path=book)
  rename = pathlib.Path.rename

  def fail(made, path):
    if made.name == 'new':
      raise OSError(28, 'No space left on device', str(path))
    return rename(made, path)

  monkeypatch.setattr(pathlib.Path, 'rename', fail)
  with pytest.raises(OSError, match='No space left'):
    prepare('text', data_dir, path=book, force=True)
  assert names(data_dir) == [data.name]
  assert decoded(prepared.load(data.folder)) == LINES


@pytest.fixture
def at_second_file(monkeypatch):
  """Calls a function before the second file of tokens is written."""

  def register(function):
    write, seen = writing._write, []

    def before(path, *args):
      seen.append(path)
      if len(seen) == 2:
        function()
      return write(path, *args)

    monkeypatch.setattr(writing, '_write', before)

  return register


def test_failure_leaves_nothing(book, data_dir, at_second_file):
  def fail():
    raise OSError(28, 'No space left on device')

  at_second_file(fail)
  with pytest.raises(OSError, match='No space left'):
    prepare('text', data_dir, path=book)
  assert names(data_dir) == []


def test_killed_process_leaves_nothing_that_is_taken_for_whole(book, data_dir):
  code = """
import sys, time
from txl_jax.data.corpora import preparation, writing
from txl_jax.data.data_config import Data
write = writing._write
def pause_after_first(path, *args):
  if path.name != 'train.bin':
    time.sleep(60)
  return write(path, *args)
writing._write = pause_after_first
preparation.prepare(Data('text', *sys.argv[1:]))
"""
  root = pathlib.Path(preparation.__file__).parents[3]
  process = subprocess.Popen(
    [sys.executable, '-c', code, str(data_dir), str(book)],
    cwd=root,
    stderr=subprocess.DEVNULL,
  )
  deadline = time.monotonic() + 30
  while not list(data_dir.glob('*/*/train.bin')):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  process.wait()
  (half,) = data_dir.iterdir()
  data = prepare('text', data_dir, path=book)
  assert data.folder != half
  assert decoded(data) == LINES
  assert names(data_dir) == [data.name, half.name]


def test_other_process_that_was_first_wins(book, data_dir, at_second_file):
  first = []

  def meanwhile():
    first.append(prepare('text', data_dir, path=book))

  at_second_file(meanwhile)
  data = prepare('text', data_dir, path=book)
  assert data.digest == first[0].digest
  assert decoded(data) == LINES
  assert names(data_dir) == [data.name]


def test_folder_that_others_can_read(book, data_dir):
  mask = os.umask(0o022)
  try:
    data = prepare('text', data_dir, path=book)
  finally:
    os.umask(mask)
  assert data.folder.stat().st_mode & 0o777 == 0o755


def test_options_that_do_not_fit(data_dir):
  for call in prepare, lambda *args: preparation.locate_or_prepare(Data(*args)):
    said = refused(call, 'wt104', f'{data_dir}')
    assert said.startswith("data.corpus is 'wt104'; allowed: pystdlib, text,")
  assert not data_dir.exists()


def test_locate_prepares_local_corpora(stdlib, book, data_dir, capsys):
  for corpus, path in (('pystdlib', ''), ('text', book)):
    section = Data(corpus, f'{data_dir}', f'{path}')
    data = preparation.locate_or_prepare(section)
    said = capsys.readouterr().err
    assert said.splitlines()[0] == f'preparing {corpus} into {data.folder}'
    again = preparation.locate_or_prepare(section)
    assert again.digest == data.digest
    assert capsys.readouterr().err == ''


def test_locate_names_the_command(tmp_path):
  asked = Data('enwik8', f'{tmp_path}', newline='drop')
  assert refused(preparation.locate_or_prepare, asked) == (
    f'{tmp_path}/enwik8-newline_drop does not exist; run: python -m '
    f'txl_jax.prepare --dataset=enwik8 --data_dir={tmp_path} --newline=drop'
  )
  assert names(tmp_path) == []


def test_locate_tells_when_it_cannot_write(stdlib, book):
  # A folder below a file cannot be made.
  asked = Data('pystdlib', f'{book}/data')
  said = refused(preparation.locate_or_prepare, asked)
  assert 'pystdlib cannot be prepared' in said


def test_a_folder_with_a_tokenizer(book, tmp_path):
  """Its BPE dropout is off: each preparation has the same tokens."""
  subwords = dict(path=book, level='subword')
  learned = prepare('text', tmp_path / 'own', max_size=300, **subwords)
  fields = json.loads((learned.folder / 'tokenizer.json').read_bytes())
  fields['model']['dropout'] = 0.5
  folder = tmp_path / 'gpt2'
  folder.mkdir()
  options = subwords | dict(tokenizer=folder, max_size=4096)
  said = refused(prepare, 'text', tmp_path / 'none', **options)
  assert 'gpt2/tokenizer.json cannot be read: ' in said
  (folder / 'tokenizer.json').write_text(json.dumps(fields))
  one, two = (prepare('text', tmp_path / x, **options) for x in ('a', 'b'))
  assert one.digest == two.digest and one.name == two.name
  assert 'max' not in one.name and 'tokenizer_' in one.name
  for split in SIZES:
    np.testing.assert_array_equal(one.tokens(split), learned.tokens(split))
  (folder / 'vocab.json').write_text(json.dumps(fields['model']['vocab']))
  options['tokenizer'] = folder / 'vocab.json'
  said = refused(prepare, 'text', tmp_path / 'none', **options)
  name = f'data.tokenizer: {folder}/vocab.json'
  assert said.startswith(f'{name}: it is not a tokenizer.json: ')


def test_a_normaliser_that_changes_the_text(book, tmp_path):
  subwords = dict(path=book, level='subword')
  learned = prepare('text', tmp_path / 'own', max_size=300, **subwords)
  fields = json.loads((learned.folder / 'tokenizer.json').read_bytes())
  fields['normalizer'] = {'type': 'Lowercase'}
  path = tmp_path / 'tokenizer.json'
  path.write_text(json.dumps(fields))
  found = prepare('text', tmp_path / 'a', tokenizer=path, **subwords)
  for split in SIZES:
    np.testing.assert_array_equal(found.tokens(split), learned.tokens(split))
  book.write_bytes(LINES.replace(b'499 b', b'499 B'))
  said = refused(prepare, 'text', tmp_path / 'b', tokenizer=path, **subwords)
  before, after = said.split(' becomes ')
  assert before.endswith(r"498 bottles\n499 Bottles\n'")
  assert r'498 bottles\n499 bottles' in after
  assert said.startswith(f'{book}') and '(normaliser: Lowercase)' in said


def test_a_split_without_a_document(book, tmp_path):
  blank = tmp_path / 'blank.txt'
  blank.write_text('\n\n')
  options = dict(path=book, validation_path=blank, documents='line')
  assert refused(prepare, 'text', tmp_path / 'data', **options) == (
    f'{book}: the split validation has no tokens; every split needs at least '
    'one'
  )
