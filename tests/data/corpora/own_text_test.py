import hashlib

import pytest

from tests.data.corpora import asking
from tests.refusing import refused
from txl_jax.data.corpora import finding, own_text
from txl_jax.data.data_config import Data

LINES = {
  name: ''.join(f'{name} {i}\n' for i in range(n)).encode()
  for name, n in (('train', 300), ('valid', 40), ('test', 30))
}


def write(root, tree):
  for name, data in tree.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(data)
  return root


def find(path, **options):
  options = {k: str(x) for k, x in options.items()}
  return finding.find(Data('text', path=str(path), **options))


def texts(found):
  asked = Data('text', path='it')
  splits = own_text.splits(asked, found)
  return {split: b''.join(read()) for split, read in splits.items()}


def names(found):
  return {split: [*x] for split, x in found.splits.items()}


def source(found):
  return own_text.source(Data('text', path='it'), found)


EXPECTED = dict(zip(('train', 'validation', 'test'), LINES.values()))


@pytest.mark.parametrize(
  'paths',
  [
    ('train.txt', 'valid.txt', 'test.txt'),
    ('train', 'validation/a/b.txt', 'test/x'),
    ('TRAIN.TXT', 'dev.tokens', 'Test.raw'),
    ('train/a.py', 'val.txt', 'test.txt'),
    ('train/test.txt', 'valid/train.txt', 'test/valid.txt'),
    ('wiki.train.tokens', 'wiki.valid.tokens', 'wiki.test.tokens'),
    ('train-00000-of-00001.txt', 'ptb.valid.txt', 'test.txt'),
    *(
      (f'train{x}', f'eval{x}', f'test{x}')
      for x in ('.en', '.csv', '.json', '.md', '.bpe', '.tok.bpe.en')
    ),
    ('train_0.txt', 'valid_0.txt', 'test_0.txt'),
    ('my_train.txt', 'my_val.txt', 'my-test.txt'),
    ('en/train.txt', 'en/dev.txt', 'en/test.txt'),
    ('c4-train.00000-of-01024.x', 'c4-validation.00000-of-00008.x', 'a.test'),
    ('fineweb_train_000001.bin', 'fineweb_val_000000.bin', 'x test part 3'),
    ('news training/a-1', 'news.valid.v2.txt', '00_test.txt'),
    ('en_train_v2.txt', 'en_val_v2.txt', 'en_test_v2.txt'),
    ('trainset.txt', 'devset.txt', 'testset.txt'),
    ('xTrain.txt', 'xDev.txt', 'xTest.txt'),
    ('a.trn', 'a.dev', 'a.tst'),
    ('trainData/a', 'valdata/a', 'testing/a'),
  ],
)
def test_splits_by_name(tmp_path, paths):
  write(tmp_path, dict(zip(paths, LINES.values())))
  found = find(tmp_path)
  assert texts(found) == EXPECTED
  each = dict(zip(EXPECTED, ([path] for path in paths)))
  asked = Data('text', path='it')
  of = own_text.files_of(found, own_text.splits(asked, found))
  assert of == {'files_of': each | {'left out': []}}
  # Without their names they are one text, and nothing is lost of it.
  together = texts(find(tmp_path, splits='none'))
  assert sum(map(len, together.values())) == sum(map(len, LINES.values()))


def test_shards_and_folders_are_whole_splits(tmp_path):
  tree = {f'train-0000{i}-of-00002.txt': b'%d\n' % i * 9 for i in (1, 0)}
  tree |= {'valid/b': b'second\n', 'valid/a': b'first\n', 'README.md': b'no'}
  found = find(write(tmp_path, tree))
  assert texts(found) == {
    'train': b'0\n' * 9 + b'1\n' * 9,
    'validation': b'first\nsecond\n',
    'test': b'first\nsecond\n',
  }


def test_a_path_for_each_split(tmp_path):
  write(tmp_path, {'a/x': LINES['train'], 'b': LINES['valid']})
  write(tmp_path, {'c/y': LINES['test']})
  more = dict(validation_path=tmp_path / 'b')
  found = find(tmp_path / 'a', **more, test_path=tmp_path / 'c')
  assert texts(found) == EXPECTED
  again = find(tmp_path / 'a', **more)
  assert texts(again) == EXPECTED | {'test': EXPECTED['validation']}
  digests = {source(x)['sha256'] for x in (found, again)}
  assert len(digests | {source(find(tmp_path / 'a'))['sha256']}) == 3


def test_no_validation_split_is_cut_from_the_end_of_train(tmp_path):
  write(tmp_path, {'train.txt': b'123456789\n' * 100, 'test.txt': b'test\n'})
  assert texts(find(tmp_path)) == {
    'train': b'123456789\n' * 95,
    'validation': b'123456789\n' * 5,
    'test': b'test\n',
  }


@pytest.mark.parametrize(
  'paths',
  [
    ('train.txt',),
    ('test.py', 'a.py', 'README.md'),
    ('mytrains.txt', 'mytest.txt', 'latest.txt', 'contrain.txt'),
    ('testament.txt', 'contrains.txt', 'evaluate/latest.txt', 'devil.txt'),
    ('a.txt', 'b.txt'),
  ],
)
def test_other_folders_are_one_text(tmp_path, paths):
  tree = dict.fromkeys(paths, b'123456789\n' * 100)
  found = find(write(tmp_path, tree))
  assert names(found) == {'': sorted(paths)}
  n = 1000 * len(paths)
  assert [*map(len, texts(found).values())] == [n * 9 // 10, n // 20, n // 20]


@pytest.mark.parametrize(
  'paths, words',
  [
    (('train.txt', 'book.txt'), '(train: train.txt) and other files (book.txt'),
    (('valid.txt', 'book.txt'), '(valid: valid.txt) and other files (book.txt'),
    (
      ('src/a.py', 'test/b.py', 'src/c.txt'),
      '(test: test/b.py) and other files (src/c.txt)',
    ),
    (
      [f'{i}.go' for i in range(9)] + ['x_test.go'],
      'x_test.go) and other files (0.go, 1.go, 2.go, 3.go, 4.go and 4 more)',
    ),
    (('train.txt', 'train_test.txt'), 'other files (train_test.txt)'),
    (('test.txt',), '(test: test.txt) and no train; allowed:'),
    (('valid.txt', 'test.txt'), 'valid: valid.txt) and no train; allowed:'),
    (
      ('train.txt', 'dev.txt', 'eval.txt'),
      '(dev: dev.txt, eval: eval.txt, train: train.txt) and two names for one',
    ),
    (('train/train.txt', 'train/test.txt'), 'and other split names within'),
    (('train.txt', 'train.test.txt'), 'other files (train.test.txt)'),
    (('train.txt', 'a/valid.txt', 'x' * 99, 'y' * 99, 'z' * 99), 'y…)'),
  ],
)
def test_splits_and_other_names_are_refused(tmp_path, paths, words):
  write(tmp_path, dict.fromkeys(paths, b'123456789\n' * 100))
  said = refused(find, tmp_path)
  assert said.startswith(f'data.path: {tmp_path} has split names (')
  assert words in said
  # Whoever names several splits is not told to train on them.
  several = {'test.txt', 'dev.txt', 'train/test.txt', 'a/valid.txt'}
  assert ('data.splits=none' in said) == several.isdisjoint(paths[1:2])
  everything = find(tmp_path, splits='none')
  assert names(everything) == {'': sorted(paths)}


@pytest.mark.parametrize(
  'paths, mixed',
  [
    (('a.py', 'test.py', 'train.py'), 'test.py, train.py'),
    (('readme_test', 'readme_train'), 'readme_test, readme_train'),
    (('x', 'README-dev.md', 'README-train.md'), 'README-dev.md, README-train'),
    (('mytest.txt', 'mytrain.txt', 'x'), 'mytest.txt, mytrain.txt'),
    (('mytest.txt', 'mytraining.txt'), 'mytest.txt, mytraining.txt'),
    (('a/newstest2014.en', 'a/newstrain2014.en'), 'a/newstest2014.en, a/new'),
    (('train-dev.txt', 'train-test.txt'), 'train-dev.txt, train-test.txt'),
    # Within the training split.
    (('test/b', 'train/a', 'train/x_test'), 'train/a, train/x_test'),
    (('test/b', 'train/a.go', 'train/src/test/b.go'), 'train/a.go, train/src'),
    (('test/b', 'train/mytest', 'train/mytrain'), 'train/mytest, train/mytr'),
  ],
)
def test_splits_that_would_be_one_text(tmp_path, paths, mixed):
  write(tmp_path, dict.fromkeys(paths, b'123456789\n' * 100))
  said = refused(find, tmp_path)
  start = f'data.path: {tmp_path} has names of several splits in one ({mixed}'
  assert said.startswith(start)
  # Whoever has splits is not told to train on them.
  assert ('data.splits=none' in said) == (paths[0] != 'test/b')
  everything = find(tmp_path, splits='none')
  assert names(everything) == {'': sorted(paths)}


@pytest.mark.parametrize('split', ['validation', 'test'])
def test_a_folder_of_all_splits_is_not_one_of_them(tmp_path, split):
  tree = {f'full/{x}.txt': LINES[x] for x in ('train', 'valid', 'test')}
  write(tmp_path, tree | {'own.txt': b'own\n' * 100})
  key = f'{split}_path'
  said = refused(find, tmp_path / 'own.txt', **{key: tmp_path / 'full'})
  assert said == (
    f'data.{key}: {tmp_path}/full has names of several splits in one '
    '(test.txt, train.txt, valid.txt); allowed: names like train.txt and '
    'test.txt, or a path for each: data.path, data.validation_path, '
    'data.test_path'
  )
  write(tmp_path, {'dev/a': b'a\n', 'dev/tst2010.en': b'b\n'})
  found = find(tmp_path / 'own.txt', **{key: tmp_path / 'dev'})
  assert names(found)[split] == ['a', 'tst2010.en']
  found = find(tmp_path / 'own.txt', splits='none', **{key: tmp_path / 'full'})
  assert names(found)[split] == ['test.txt', 'train.txt', 'valid.txt']


@pytest.mark.parametrize('name', ['val.npz', 'val.pt', 'val.idx', 'val.txt'])
def test_other_formats_beside_token_ids(tmp_path, name):
  write(tmp_path, {'train.bin': LINES['train'], 'train.txt': b'a'})
  write(tmp_path, {name: b'b', '.val.swp': b'c'})
  message = refused(find, tmp_path, level='id')
  assert f'a split in another format ({name}); allowed:' in message
  assert 'none' not in message and 'link' not in message
  write(tmp_path, {'val.bin': LINES['valid']})
  found = find(tmp_path, level='id')
  assert names(found) == {'train': ['train.bin'], 'validation': ['val.bin']}
  assert found.left_out == ['.val.swp', 'train.txt', name]
  write(tmp_path, {'train/test.npz': b'd'})  # of the split train
  assert 'train/test.npz' in find(tmp_path, level='id').left_out


def test_what_lies_beside_splits_is_left_out(tmp_path):
  paths = dict(zip(('train.bin', 'val.bin', 'test.bin'), LINES.values()))
  beside = ['LICENSE.test', 'README', 'meta.pkl', 'prepare.py', 'train.py']
  beside += ['.git/train', '.gitattributes', 'sub/notes.md']
  beside += ['dataset_infos.json']
  write(tmp_path, paths | dict.fromkeys(beside, b'no text of a split'))
  found = find(tmp_path)
  assert texts(found) == EXPECTED
  assert {*found.left_out} == {'.git', *beside} - {'.git/train'}


def test_links_to_folders(tmp_path):
  tree = {'real/a': LINES['train'], 'b/valid': LINES['valid']}
  write(tmp_path, tree | {'b/test/x': LINES['test'], 'b/y/z': b'no'})
  (tmp_path / 'b/train').symlink_to(tmp_path / 'real')
  (tmp_path / 'b/y/z').unlink()
  (tmp_path / 'b/other').symlink_to(tmp_path)
  (tmp_path / 'real/other').symlink_to(tmp_path)
  found = find(tmp_path / 'b')
  assert texts(found) == EXPECTED
  assert found.left_out == ['other', 'train/other']
  # Below another folder, too.
  (tmp_path / 'c/de').mkdir(parents=True)
  for split in ('train', 'valid', 'test'):
    (tmp_path / 'c/de' / split).symlink_to(tmp_path / 'b' / split)
  assert texts(find(tmp_path / 'c')) == EXPECTED


def test_a_split_that_is_trained_on_or_lost(tmp_path):
  write(tmp_path, {'a/train.txt': LINES['train'], 'b/train.txt': b'x\n' * 99})
  (tmp_path / 'a/test.txt').symlink_to('train.txt')
  (tmp_path / 'b/val.txt').hardlink_to(tmp_path / 'b/train.txt')
  for name in ('a/test.txt', 'b/val.txt'):
    said = refused(find, (tmp_path / name).parent)
    assert f'{name} is also training text, as {tmp_path}/{name[0]}/tra' in said
  write(tmp_path, {'c/train.txt': LINES['train']})
  (tmp_path / 'c/test.txt').symlink_to(tmp_path / 'nothing')
  said = refused(find, tmp_path / 'c')
  assert 'c/test.txt is named after a split, but' in said
  assert said.endswith('or remove it')
  assert find(tmp_path / 'c', splits='none').left_out == ['test.txt']
  assert find(tmp_path / 'b/val.txt', test_path=tmp_path / 'c').left_out == [
    'test.txt'
  ]


def test_paths_that_do_not_go_together(tmp_path):
  tree = {'a/train.txt': b'x\n', 'a/valid.txt': b'y\n', 'b': b'z\n'}
  write(tmp_path, tree)
  own = dict(validation_path=tmp_path / 'b')
  named = texts(find(tmp_path / 'a', **own))
  assert (named['train'], named['validation']) == (b'x\n', b'z\n')
  assert find(tmp_path / 'a', **own).left_out == ['valid.txt']
  b = tmp_path / 'b'
  said = refused(find, tmp_path, **own, splits='none')
  assert f'validation_path: {b} is also training text, as {b};' in said
  said = refused(find, b, test_path=tmp_path / 'nothing')
  assert said.startswith(f'data.test_path: {tmp_path}/nothing does not')


def test_prepared_tokens_are_those_of_the_files(tmp_path):
  tree = dict(zip(('train.txt', 'valid.txt', 'notes.md'), LINES.values()))
  tree['test.tokens'] = LINES['test']
  folder = write(tmp_path / 'corpus', tree)
  data = asking.prepare('text', tmp_path / 'data', path=folder)
  for split, text in EXPECTED.items():
    assert data.vocabulary.decode(data.tokens(split)) == text
  words = asking.prepare(
    'text', tmp_path / 'data', path=folder, level='word', unk=True
  )
  for split, text in EXPECTED.items():
    assert len(words.tokens(split)) == 3 * text.count(b'\n')


def test_files_beside_records(tmp_path):
  """READMEs and tables without the field are neither records nor text."""
  rows = ''.join(f'line {i}\n' for i in range(90))
  tree = {'README.md': b'about', 'LICENSE': b'may', '.gitattributes': b'x'}
  tree |= {'dataset_infos.json': b'{}', 'config.json': b'{"a": 1}'}
  tree['licenses.csv'] = b'text\n' + rows.encode()
  found = find(write(tmp_path, tree | {'load.py': b'pass'}))
  assert names(found) == {'': ['licenses.csv', 'load.py']}
  assert found.left_out == sorted({*tree} - {'licenses.csv'})
  plain = {*tree, 'load.py'} - {'.gitattributes'}
  assert names(find(tmp_path, raw=True)) == {'': sorted(plain)}
  (tmp_path / 'licenses.csv').write_text(f'body\n{rows}')
  assert names(find(tmp_path)) == {'': sorted(plain)}
  (tmp_path / 'config.json').unlink()  # as it lacks the field that is named
  assert names(find(tmp_path, field='body')) == {'': ['licenses.csv']}
  (tmp_path / 'licenses.csv').write_text(f'title\n{rows}')
  assert names(find(tmp_path, field='title')) == {'': ['licenses.csv']}


@pytest.mark.parametrize(
  'text', ['body\nvalid\n', 'n,textual\n1,valid\n', '[]']
)
def test_a_split_without_the_field_of_another(tmp_path, text):
  folder = write(tmp_path / 'd', {'train.csv': b'text\n' + b'a row\n' * 90})
  other = tmp_path / 'valid.csv'
  other.write_text(text)
  prepare = asking.prepare, 'text', tmp_path / 'data'
  assert refused(*prepare, path=folder, validation_path=other) == (
    "valid.csv is not read by the field 'text' (data.field), unlike train.csv; "
    'allowed: the same field in both'
  )
  other.rename(folder / 'valid.csv')
  assert 'another format (valid.csv)' in refused(find, folder)


def test_columns_are_not_the_corpus_that_was_plain_text(tmp_path):
  """As a folder that version 1.0 has prepared has the markup of a table."""
  for name, changed in ('a.csv', True), ('a.txt', False), ('b.csv', False):
    path = tmp_path / name
    path.write_text(('body' if name == 'b.csv' else 'text') + '\nb\n' * 99)
    digest = hashlib.sha256(f'{name}\0{path.stat().st_size}\0'.encode())
    digest.update(path.read_bytes())
    assert (source(find(path))['sha256'] != digest.hexdigest()) == changed


def test_files_that_are_noted(tmp_path):
  tree = {
    'train/a.txt': 'École\n'.encode() * 12,
    'train/b.txt': 'Déjà vu\n'.encode('latin-1') * 9,
    'train/c.txt': b'',
    'train/d.csv': b'body\n' + b'some text\n' * 20,
    'test/e.json': b'',
    'test/g.txt': 'Déjà'.encode()[:-1],  # half a character
  }
  folder = write(tmp_path / 'texts', tree)
  made = asking.prepare('text', tmp_path / 'data', path=folder)
  assert made.manifest['source']['notes'] == {
    'empty': ['train/c.txt', 'test/e.json'],
    'not UTF-8': ['train/b.txt', 'test/g.txt'],
    "plain text, not read by the field 'text'": ['train/d.csv'],
  }
  assert made.files['not UTF-8'] == '2 files: train/b.txt, test/g.txt'
  raw = asking.prepare('text', tmp_path / 'data', path=folder, raw=True)
  assert raw.manifest['source']['notes'] == {
    'empty': ['train/c.txt', 'test/e.json']
  }
  text = bytes(made.tokens('train')) + bytes(made.tokens('validation'))
  assert text == b''.join(
    x for name, x in tree.items() if name.startswith('train')
  )
