"""The published corpora of words, from small archives in their place."""

import collections
import dataclasses
import functools
import hashlib
import io
import tarfile
import zipfile

import numpy as np
import pytest

from tests.data.corpora import asking
from tests.refusing import refused
from txl_jax.data import data_config, prepared
from txl_jax.data.corpora import builders, preparation
from txl_jax.data.data_config import Data

PARTS = {
  'train': ' \n = Valkyria = \n \n the <unk> of the <unk> \n the end \n',
  'validation': ' \n the new end \n',
  'test': 'of the end',  # without a newline
}
FILES = {'train': 'train', 'validation': 'valid', 'test': 'test'}
LIST = '</S>\n<S>\n<UNK>\nthe\n.\ncat\nsat\n'


def archive_of(path, files):
  """Writes a zip or tar of {name: text}; its builder's facts."""
  if path.suffix == '.zip':
    with zipfile.ZipFile(path, 'w') as archive:
      for name, text in files.items():
        archive.writestr(name, text)
  else:
    with tarfile.open(path, 'w:gz') as archive:
      for name, text in files.items():
        info = tarfile.TarInfo(f'./{name}')
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
  data = path.read_bytes()
  url = f'http://corpus.invalid/{path.name}'
  return (url,), len(data), hashlib.sha256(data).hexdigest()


@pytest.fixture
def manual(tmp_path):
  folder = tmp_path / 'manual'
  folder.mkdir()
  return folder


@pytest.fixture
def wikitext(manual, monkeypatch):
  """Registers a small wt103, of unknown size."""
  names = {s: f'wikitext-103/wiki.{FILES[s]}.tokens' for s in PARTS}
  files = {names[s]: text for s, text in PARTS.items()}
  urls, _, sha256 = archive_of(manual / 'wikitext-103-v1.zip', files)
  archive = builders.Archive(
    urls, None, sha256, {s: (name,) for s, name in names.items()}
  )
  monkeypatch.setitem(builders.ARCHIVES, 'wt103', archive)
  return manual


def words_of(text):
  closed = text if text.endswith('\n') else text + '\n'
  return closed.replace('\n', ' <eos> ').split()


def test_wikitext(wikitext, tmp_path):
  data = asking.prepare('wt103', tmp_path / 'd', manual_dir=wikitext)
  assert data.name == 'wt103'
  train = words_of(PARTS['train'])
  counts = collections.Counter(w for w in train if w != '<eos>')
  expected = [('<eos>', 5), *counts.most_common()]
  v = data.vocabulary
  assert list(zip(v.symbols, v.counts)) == expected
  assert (v.eos, v.unk, v.lower, v.unit) == ('<eos>', '<unk>', False, 'ppl')
  for split, text in PARTS.items():
    found = [v.symbols[i] for i in data.tokens(split)]
    known = [w if w in v.symbols else '<unk>' for w in words_of(text)]
    assert found == known
    assert data.manifest['splits'][split]['bytes'] == len(text)
  assert data.manifest['source'] == {
    'file': 'wikitext-103-v1.zip',
    'urls': ['http://corpus.invalid/wikitext-103-v1.zip'],
    'size': (wikitext / 'wikitext-103-v1.zip').stat().st_size,
    'sha256': builders.ARCHIVES['wt103'].sha256,
  }
  config = Data(corpus='wt103', dir=str(tmp_path / 'd'))
  assert preparation.locate_or_prepare(config).digest == data.digest
  # Prepared again from the records alone: what was found is remembered.
  (wikitext / 'wikitext-103-v1.zip').unlink()
  (data.folder / 'manifest.json').unlink()
  data.folder.rename(tmp_path / 'gone')
  again = asking.prepare('wt103', tmp_path / 'd', manual_dir=wikitext)
  assert again.manifest == data.manifest
  left = sorted(p.name for p in (tmp_path / 'd' / 'tfds').iterdir())
  assert left == ['wt103']  # nothing unpacked is left


def test_extracted_texts_of_wikitext(wikitext, tmp_path):
  archive = asking.prepare('wt103', tmp_path / 'd', manual_dir=wikitext)
  (wikitext / 'wikitext-103-v1.zip').unlink()
  digests = {}
  for split, text in PARTS.items():
    path = wikitext / f'wiki.{FILES[split]}.tokens'
    path.write_text(text)
    digests[path.name] = hashlib.sha256(text.encode()).hexdigest()
  data = asking.prepare('wt103', tmp_path / 'e', manual_dir=wikitext)
  assert data.digest == archive.digest
  assert data.manifest['source']['texts'] == digests


def test_no_text_and_no_archive(wikitext, tmp_path):
  (wikitext / 'wikitext-103-v1.zip').unlink()
  (wikitext / 'valid.txt').write_text('a \n')
  prepare = asking.prepare, 'wt103', tmp_path / 'd'
  assert refused(*prepare, manual_dir=wikitext) == (
    f'{wikitext}/wikitext-103-v1.zip: no such file; expected sha256 '
    f'{builders.ARCHIVES["wt103"].sha256}, from '
    f'{builders.ARCHIVES["wt103"].urls[0]}'
  )


TREEBANK = {
  'ptb.train.txt': " no it was n't Black Monday \n the <unk> said $ N \n",
  'ptb.valid.txt': ' the Monday \n',
  'ptb.test.txt': ' no <unk> sold \n',
}


@pytest.fixture
def treebank(manual, monkeypatch):
  """Registers a small ptb, of unknown sha256, and writes its texts."""
  folder = 'simple-examples/data'
  files = {f'{folder}/{n}': text for n, text in TREEBANK.items()}
  urls, size, _ = archive_of(manual / 'simple-examples.tgz', files)
  splits = zip(prepared.SPLITS, files)
  data = (manual / 'simple-examples.tgz').read_bytes()
  md5 = hashlib.md5(data).hexdigest()
  archive = builders.Archive(
    urls, size, None, {s: (name,) for s, name in splits}, md5=md5
  )
  monkeypatch.setitem(builders.ARCHIVES, 'ptb', archive)
  for name, text in TREEBANK.items():
    (manual / name).write_text(text)
  return manual


@pytest.mark.parametrize('form', ['archive', 'texts'])
def test_treebank(treebank, tmp_path, form):
  archive = treebank / 'simple-examples.tgz'
  sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
  size = archive.stat().st_size
  if form == 'texts':
    archive.unlink()
    digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
    source = {'texts': {name: digest(x) for name, x in TREEBANK.items()}}
  else:
    (treebank / 'ptb.test.txt').unlink()  # not all of them: not used
    source = {'size': size, 'sha256': sha256}
  data = asking.prepare('ptb', tmp_path / 'd', manual_dir=treebank)
  # Counted on all splits, lower-cased.
  together = ''.join(TREEBANK.values()).lower()
  counts = collections.Counter(together.split())
  expected = [('<eos>', 4), *counts.most_common()]
  v = data.vocabulary
  assert list(zip(v.symbols, v.counts)) == expected
  assert v.lower
  for split, text in zip(prepared.SPLITS, TREEBANK.values()):
    found = [v.symbols[i] for i in data.tokens(split)]
    assert found == words_of(text.lower())
  readable = "no it wasn't black monday\nthe <unk> said $n\n"
  assert v.decode(data.tokens('train')).decode() == readable
  assert source.items() <= data.manifest['source'].items()


@pytest.mark.parametrize(
  'facts, found',
  [
    ({'symbols': 13, 'tokens': {'train': 13, 'test': 4}}, None),
    ({'symbols': 14}, '13 symbols, but 14 are published'),
    ({'symbols': 12}, '13 symbols, but 12 are published'),
    ({'tokens': {'test': 5}}, '4 tokens in test, but 5 are published'),
  ],
)
def test_published_figures_are_compared(
  treebank, tmp_path, monkeypatch, facts, found
):
  archive = dataclasses.replace(builders.ARCHIVES['ptb'], **facts)
  monkeypatch.setitem(builders.ARCHIVES, 'ptb', archive)
  prepare = functools.partial(
    asking.prepare, 'ptb', tmp_path / 'd', manual_dir=treebank
  )
  if found is None:
    assert len(prepare().vocabulary) == facts['symbols']
    return
  assert refused(prepare) == f'ptb: {found}; use the published text'
  assert [p.name for p in (tmp_path / 'd').iterdir()] == ['tfds']


SHARDS = ['the cat sat .\nthe dog .\n', '. sat\n']
HELD_OUT = 'cat .\n'


@pytest.fixture
def sentences(manual, monkeypatch):
  """Registers a small lm1b, whose shards lie in the archive in disorder."""
  files = {'x/b': SHARDS[1], 'x/held': HELD_OUT, 'x/a': SHARDS[0]}
  urls, size, sha256 = archive_of(manual / 'lm1b.tar.gz', files)
  members = {'train': ('x/a', 'x/b')}
  members |= dict.fromkeys(('validation', 'test'), ('x/held',))
  archive = builders.Archive(urls, size, sha256, members)
  monkeypatch.setitem(builders.ARCHIVES, 'lm1b', archive)
  monkeypatch.setitem(data_config.SIZES, 'lm1b', LIST.count('\n'))
  (manual / 'list').write_text(LIST)
  return manual


@pytest.mark.parametrize('boundaries', [1, 2])
def test_one_billion_words(sentences, tmp_path, boundaries):
  options = dict(manual_dir=sentences, boundaries=boundaries)
  prepare = functools.partial(asking.prepare, 'lm1b', tmp_path / 'd', **options)
  data = prepare(vocab_file=sentences / 'list')
  assert data.name == ('lm1b' if boundaries == 1 else 'lm1b-boundaries_2')
  v = data.vocabulary
  assert v.symbols == tuple(LIST.split())
  assert (v.eos, v.unk, v.counts) == ('<S>', '<UNK>', ())
  between = ' <S> ' if boundaries == 1 else ' <S> <S> '

  def shown(split):
    return ' '.join(v.symbols[i] for i in data.tokens(split))

  train = ['the cat sat .', 'the <UNK> .', '. sat']
  assert shown('train') == f'<S> {between.join(train)} <S>'.replace('  ', ' ')
  assert shown('validation') == shown('test') == '<S> cat . <S>'
  starts = data.sentences('train')
  assert starts.dtype == np.int64
  lengths = [len(s.split()) + boundaries for s in train]
  assert starts.tolist() == np.cumsum([0, *lengths]).tolist()
  assert data.manifest['source']['vocab_file'] == {
    'file': 'list',
    'sha256': hashlib.sha256(LIST.encode()).hexdigest(),
  }
  # What is there needs no list.
  assert prepare().digest == data.digest


def test_one_billion_words_needs_its_list(sentences, tmp_path):
  prepare = functools.partial(
    asking.prepare, 'lm1b', tmp_path / 'd', manual_dir=sentences
  )
  assert refused(prepare) == (
    'corpus lm1b needs the published list of its 7 words; allowed: '
    '--vocab_file=FILE, one word per line'
  )
  others = '<S>\n<UNK>\nthe\n', f'{LIST}one\n', LIST.replace('<UNK>', 'two')
  for text, n in zip(others, (3, 8, 7)):
    (sentences / 'list').write_text(text)
    assert refused(prepare, vocab_file=sentences / 'list') == (
      f'data.vocab_file: {sentences}/list has {n} words; allowed: the '
      'published list of 7, <S> and <UNK> among them'
    )
  assert not (tmp_path / 'd').exists()
