import contextlib
import hashlib
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile

import pytest
from absl import flags

from tests import programs
from txl_jax import prepare
from txl_jax.data import prepared
from txl_jax.data.corpora import builders
from txl_jax.data.data_config import Data
from txl_jax.program import command_line, settings

LINES = b''.join(b'%d bottles\n' % i for i in range(50_000))


def command(*args):
  return [sys.executable, '-m', 'txl_jax.prepare', *map(str, args)]


def run(*args):
  """In this process, without the start of a program."""
  argv = ['prepare', *map(str, args)]
  return programs.within(argv, lambda: prepare.main(command_line.parse(argv)))


def assert_error(result, found):
  """One line on stderr that says what was found, and status 1."""
  assert result.returncode == 1
  assert result.stdout == ''
  lines = result.stderr.splitlines()
  assert lines[-1].startswith('error: ')
  assert found in lines[-1]
  assert all(line.startswith('preparing ') for line in lines[:-1])


@pytest.fixture
def book(tmp_path):
  path = tmp_path / 'book.txt'
  path.write_bytes(LINES)
  return path


def of_text(path, data_dir):
  return '--dataset=text', f'--path={path}', f'--data_dir={data_dir}'


def test_flags_are_the_keys_of_the_section_data():
  flags.FLAGS.mark_as_parsed()
  names = {'corpus': 'dataset', 'dir': 'data_dir'}
  for name, key in settings.keys(Data).items():
    flag = flags.FLAGS[names.get(name, name)]
    default = None if name == 'corpus' else getattr(Data, name)
    assert (flag.default, type(flag.default)) == (default, type(default))
    assert flag.help.startswith(key.meaning)
    assert all(f'{x}: {key.choices[x]}' in flag.help for x in key.choices)


@pytest.mark.thorough
def test_text_from_the_command_line(book, tmp_path):
  flags = of_text(book, tmp_path / 'data')
  result = programs.run(command(*flags))
  assert result.returncode == 0, result.stderr
  *splits, vocabulary, folder = result.stdout.splitlines()
  assert vocabulary == 'vocabulary: 256 symbols'
  data = prepared.load(folder.removeprefix('folder: '))
  sizes = {split: data.tokens(split).size for split in prepared.SPLITS}
  assert splits == [
    f'{s}: {n} tokens from {n} bytes, in book.txt' for s, n in sizes.items()
  ]
  assert sum(sizes.values()) == len(LINES)
  assert result.stderr == f'preparing text into {data.folder}\n'
  again = run(*flags)
  assert (again.stdout, again.stderr) == (result.stdout, '')


@pytest.mark.thorough
def test_files_of_each_split_are_printed(tmp_path):
  """As the manifest lists them; a test split is never trained on."""
  folder = tmp_path / 'd'
  folder.mkdir()
  for split in 'train', 'valid', 'test':
    for i in range(1, 7 if split == 'train' else 2):
      (folder / f'{split}-{i}.en').write_text(f'{split} {i}\n' * 300)
  (folder / 'README.md').write_text('test 1\n')
  flags = of_text(folder, tmp_path / 'data')
  result = run(*flags)
  assert result.returncode == 0, result.stderr
  train = ', '.join(f'train-{i}.en' for i in range(1, 6))
  *lines, _vocabulary, made = result.stdout.splitlines()
  assert lines == [
    f'train: 14400 tokens from 14400 bytes, in 6 files: {train} and 1 more',
    'validation: 2400 tokens from 2400 bytes, in valid-1.en',
    'test: 2100 tokens from 2100 bytes, in test-1.en',
    'left out: README.md',
  ]
  data = prepared.load(made.removeprefix('folder: '))
  assert bytes(data.tokens('test')) == b'test 1\n' * 300
  assert b'test' not in bytes(data.tokens('train'))
  assert data.manifest['source']['files_of'] == {
    'train': [f'train-{i}.en' for i in range(1, 7)],
    'validation': ['valid-1.en'],
    'test': ['test-1.en'],
    'left out': ['README.md'],
  }
  (folder / 'x.en').write_text('x')
  assert_error(run(*flags), 'and other files (x.en); allowed: one name for')


def test_words_from_the_command_line(book, tmp_path):
  options = '--level=word', '--unk', '--noeos', '--max_size=101', '--lower'
  flags = of_text(book, tmp_path / 'data')
  result = run(*flags, *options, '--min_count=1')
  assert result.returncode == 0, result.stderr
  *splits, vocabulary, folder = result.stdout.splitlines()
  assert vocabulary == 'vocabulary: 101 symbols'
  assert folder.endswith('-word-lower-unk-no_eos-max_101')
  data = prepared.load(folder.removeprefix('folder: '))
  words = sum(data.tokens(split).size for split in prepared.SPLITS)
  assert words == len(LINES.split())
  assert data.vocabulary.symbols[:3] == ('bottles', '<unk>', '0')
  entries = data.manifest['splits']
  assert entries['train']['unknown'] > 40_000
  assert splits == [
    f'{s}: {e["tokens"]} tokens from {e["bytes"]} bytes, '
    f'{e["unknown"]} unknown words, in book.txt'
    for s, e in entries.items()
  ]


def test_enwik8_from_an_archive(tmp_path, monkeypatch):
  text = b'abc\n' * 25
  path = tmp_path / 'enwik8.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('enwik8', text)
  data = path.read_bytes()
  archive = builders.Archive(
    ('http://corpus.invalid/enwik8.zip',),
    len(data),
    hashlib.sha256(data).hexdigest(),
    dict.fromkeys(prepared.SPLITS, ('enwik8',)),
    {'train': 80, 'validation': 12, 'test': 8},
  )
  monkeypatch.setitem(builders.ARCHIVES, 'enwik8', archive)
  folders = f'--data_dir={tmp_path}/data', f'--manual_dir={tmp_path}'
  done = run('--dataset=enwik8', '--newline=drop', *folders, '--force')
  assert done.stdout.splitlines() == [
    'train: 60 tokens from 80 bytes',
    'validation: 9 tokens from 12 bytes',
    'test: 6 tokens from 8 bytes',
    'vocabulary: 3 symbols',
    f'folder: {tmp_path / "data" / "enwik8-newline_drop"}',
  ]


@pytest.mark.parametrize(
  'args, found',
  [
    ((), '--dataset is missing; allowed: pystdlib, text, enwik8, text8'),
    (('--dataset=imdb',), "--dataset is 'imdb'; allowed: pystdlib, text, "),
    (('--dataset=text', '--path=/no/where'), '/no/where does not exist'),
    (('--dataset=wt103', '--lower'), '--lower is True; allowed: False with'),
    (
      ('--dataset=lm1b', '--vocab_file=/no'),
      '--vocab_file: /no cannot be read: No',
    ),
    (('--dataset=lm1b',), 'corpus lm1b needs the published list of its 793,4'),
    (('enwik8',), "argument 'enwik8' is not expected"),
    (('--unc',), "Unknown command line flag 'unc'. Did you mean: unk"),
    (('--min_count=two',), 'flag --min_count=two: '),
    (
      ('--dataset=text8', '--manual_dir=/no'),
      '/no/text8.zip: no such file; expected 31344',
    ),
  ],
)
def test_errors_of_the_user(tmp_path, args, found):
  assert_error(run(*args, f'--data_dir={tmp_path}'), found)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'name, found',
  [
    ('x', 'x contains NUL bytes (token ids, '),
    ('x', 'them with --level=id, or train on its raw bytes with --raw=True'),
    ('data.raw', 'error: data.raw contains NUL bytes (token ids, '),
  ],
)
def test_keys_are_named_as_flags(tmp_path, monkeypatch, name, found):
  monkeypatch.chdir(tmp_path)
  (tmp_path / name).write_bytes(b'a\0b')
  assert_error(run(*of_text(name, 'data')), found)


@pytest.mark.parametrize(
  'name, why', [('file', 'File exists'), ('file/data', 'Not a directory')]
)
def test_data_dir_is_or_is_below_a_file(book, tmp_path, name, why):
  (tmp_path / 'file').write_bytes(b'')
  data_dir = tmp_path / name
  result = run(*of_text(book, data_dir))
  assert_error(result, f'--data_dir={data_dir} cannot be used: ')
  assert why in result.stderr


@pytest.mark.thorough
def test_interrupted(book, tmp_path):
  book.write_bytes(LINES * 40)
  data_dir = tmp_path / 'data'
  # It hears Ctrl-C also where a shell runs pytest in background.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  process = subprocess.Popen(
    command(*of_text(book, data_dir), '--level=word'),
    cwd=programs.ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )
  signal.signal(signal.SIGINT, before)
  assert process.stderr.readline().startswith('preparing text')
  deadline = time.monotonic() + 60
  while not any(p.stat().st_size for p in data_dir.glob('*/*/train.bin')):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGINT)
  _, said = process.communicate(timeout=60)
  assert (process.returncode, said) == (130, 'interrupted\n')
  assert not list(data_dir.glob('*'))


@pytest.mark.thorough
def test_output_that_nobody_reads(book, tmp_path):
  environment = dict(os.environ)
  environment.pop('PYTHONUNBUFFERED', None)  # with it there is less to see
  read, write = os.pipe()
  os.close(read)
  done = subprocess.run(
    command(*of_text(book, tmp_path / 'data')),
    cwd=programs.ROOT,
    env=environment,
    stdout=write,
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,
  )
  os.close(write)
  assert done.returncode == 1
  assert done.stderr.startswith('preparing text')
  assert len(done.stderr.splitlines()) == 1


def test_full_disk(book, tmp_path):
  data_dir = tmp_path / 'data'
  arguments = command(*of_text(book, data_dir))
  result = programs.run(programs.limited(arguments, 200))
  assert_error(result, 'File too large')
  assert "train.bin'" in result.stderr.splitlines()[-1]
  assert list(data_dir.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize('live', [False, True])
def test_subwords_are_learned_with_a_bar(book, tmp_path, live):
  """On a terminal, unless a console draws there."""
  code = (
    'import sys; from txl_jax.program import signals; signals.begin()\n'
    'from txl_jax.data.vocabularies import subwords\n'
    'from txl_jax.runs.terminal import Console\n'
    'import contextlib\n'
    'with Console().phase("it") if len(sys.argv) > 2 else'
    ' contextlib.nullcontext():\n'
    '  subwords.learn([open(sys.argv[1], "rb").read()], 300)\n'
  )
  ours, theirs = pty.openpty()
  arguments = [sys.executable, '-c', code, str(book), *['live'] * live]
  env = os.environ | {'TERM': 'xterm', 'PYTHONPATH': str(programs.ROOT)}
  process = subprocess.Popen(arguments, stderr=theirs, env=env)
  os.close(theirs)
  sent = b''
  with contextlib.suppress(OSError):  # when nobody has it open any more
    while data := os.read(ours, 1 << 16):
      sent += data
  assert process.wait(60) == 0, sent
  assert (b'Compute merges' in sent) == (not live), sent
