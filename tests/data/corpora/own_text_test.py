import gzip

import pytest

from tests.data.corpora import asking
from txl_jax.data.corpora import own_text
from txl_jax.data.options import Data
from txl_jax.program.errors import UserError

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
  return own_text.find(Data('text', path=str(path), **options))


def texts(found):
  return {s: b''.join(x()) for s, x in found.splits().items()}


EXPECTED = dict(zip(('train', 'validation', 'test'), LINES.values()))


@pytest.mark.parametrize(
  'names',
  [
    ('train.txt', 'valid.txt', 'test.txt'),
    ('train', 'validation/a/b.txt', 'test/x'),
    ('TRAIN.TXT', 'dev.tokens', 'Test.raw'),
    ('train/a.py', 'val.txt', 'test.txt'),
    ('wiki.train.tokens', 'wiki.valid.tokens', 'wiki.test.tokens'),
    ('train-00000-of-00001.txt', 'ptb.valid.txt', 'test.txt'),
  ],
)
def test_splits_by_name(tmp_path, names):
  write(tmp_path, dict(zip(names, LINES.values())))
  found = find(tmp_path)
  assert texts(found) == EXPECTED
  assert found.source()['splits'] == dict(
    zip(('train', 'validation', 'test'), ([n] for n in names))
  )


def test_shards_and_folders_are_whole_splits(tmp_path):
  tree = {f'train-0000{i}-of-00002.txt': b'%d\n' % i * 9 for i in (1, 0)}
  tree |= {'valid/b': b'second\n', 'valid/a': b'first\n', 'README.md': b'no'}
  found = find(write(tmp_path, tree))
  assert texts(found) == {
    'train': b'0\n' * 9 + b'1\n' * 9,
    'validation': b'first\nsecond\n',
    'test': b'first\nsecond\n',
  }
  assert found.others == ('README.md',)


def test_a_path_for_each_split(tmp_path):
  write(tmp_path, {'a/x': LINES['train'], 'b': LINES['valid']})
  write(tmp_path, {'c/y': LINES['test']})
  more = dict(validation_path=tmp_path / 'b')
  found = find(tmp_path / 'a', **more, test_path=tmp_path / 'c')
  assert texts(found) == EXPECTED
  again = find(tmp_path / 'a', **more)
  assert texts(again) == EXPECTED | {'test': EXPECTED['validation']}
  digests = {x.source()['sha256'] for x in (found, again)}
  assert len(digests | {find(tmp_path / 'a').source()['sha256']}) == 3


def test_no_validation_split_is_cut_from_the_end_of_train(tmp_path):
  write(tmp_path, {'train.txt': b'123456789\n' * 100, 'test.txt': b'test\n'})
  assert texts(find(tmp_path)) == {
    'train': b'123456789\n' * 95,
    'validation': b'123456789\n' * 5,
    'test': b'test\n',
  }


@pytest.mark.parametrize(
  'names',
  [
    ('train.txt',),
    ('train.txt', 'book.txt'),
    ('valid.txt', 'book.txt'),
    ('train.py', 'test.py'),
    ('src/a.py', 'test/b.py', 'dev/c.py'),
    ('test.txt',),
    ('a.txt', 'b.txt'),
  ],
)
def test_other_folders_are_one_text(tmp_path, names):
  tree = dict.fromkeys(names, b'123456789\n' * 100)
  found = texts(find(write(tmp_path, tree)))
  n = 1000 * len(names)
  assert [*map(len, found.values())] == [n * 9 // 10, n // 20, n // 20]


@pytest.mark.parametrize(
  'names, words',
  [
    (('train.txt', 'dev.txt', 'val.txt'), ('dev.txt and val.txt',)),
    (('train.txt', 'train/a', 'test.txt'), ('train and train.txt',)),
  ],
)
def test_names_that_say_no_splits(tmp_path, names, words):
  write(tmp_path, dict.fromkeys(names, b'text\n' * 100))
  with pytest.raises(UserError) as error:
    find(tmp_path)
  assert f'data.path: {tmp_path} has {words[0]}' in str(error.value)
  assert all(word in str(error.value) for word in words)


def test_paths_that_do_not_go_together(tmp_path):
  tree = {'a/train.txt': b'x\n', 'a/valid.txt': b'y\n', 'b': b'z\n'}
  write(tmp_path, tree)
  own = dict(validation_path=tmp_path / 'b')
  with pytest.raises(UserError, match=r'has splits of its own \(train, valid'):
    find(tmp_path / 'a', **own)
  with pytest.raises(UserError, match=r'validation_path: .*/b is also of'):
    find(tmp_path, **own)
  with pytest.raises(UserError, match=r'data\.test_path: .*nothing does not'):
    find(tmp_path / 'b', test_path=tmp_path / 'nothing')
  write(tmp_path, {'empty': b'', 'text': b'x\n' * 100})
  with pytest.raises(UserError, match='the split validation has no tokens'):
    asking.prepare(
      'text',
      tmp_path.parent / 'data',
      path=tmp_path / 'text',
      validation_path=tmp_path / 'empty',
    )
  with pytest.raises(UserError, match=r"field is 'body'; allowed: 'text'"):
    find(tmp_path / 'b', field='body')


def test_prepared_tokens_are_those_of_the_files(tmp_path, capsys):
  tree = dict(zip(('train.txt', 'valid.txt', 'notes.md'), LINES.values()))
  tree['test.txt.gz'] = gzip.compress(LINES['test'])
  folder = write(tmp_path / 'corpus', tree)
  data = asking.prepare('text', tmp_path / 'data', path=folder)
  for split, text in EXPECTED.items():
    assert data.vocabulary.decode(data.tokens(split)) == text
  sizes = [f'{len(x):,} bytes, {len(x):,} tokens' for x in EXPECTED.values()]
  assert capsys.readouterr().err.splitlines()[-1] == (
    f'train is train.txt: {sizes[0]}; validation is valid.txt: {sizes[1]}; '
    f'test is test.txt.gz: {sizes[2]}; left out: notes.md'
  )
  words = asking.prepare(
    'text', tmp_path / 'data', path=folder, level='word', unk=True
  )
  for split, text in EXPECTED.items():
    assert len(words.tokens(split)) == 3 * text.count(b'\n')


@pytest.mark.parametrize('there', [('test',), ('valid',), ('valid', 'test')])
def test_what_each_split_is_is_told(tmp_path, capsys, there):
  names = 'train', *there
  folder = tmp_path / 'corpus'
  write(folder, {f'{name}.txt': LINES[name] for name in names})
  asking.prepare('text', tmp_path / 'data', path=folder)
  line = capsys.readouterr().err.splitlines()[-1]
  assert ('train is the first 95 % of train.txt: ' in line) == (
    'valid' not in there
  )
  ends = 'validation is the last 5 % of that, for no file is one: '
  assert (ends in line) == ('valid' not in there)
  again = 'test is the validation split again, for no file is one: '
  assert (again in line) == ('test' not in there)
