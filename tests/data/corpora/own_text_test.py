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
  asked = Data('text', path='it')
  splits = own_text.splits(asked, found)
  return {split: b''.join(read()) for split, read in splits.items()}


def source(found):
  return own_text.source(Data('text', path='it'), found)


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
  assert source(found)['splits'] == dict(
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


def test_paths_that_do_not_go_together(tmp_path):
  tree = {'a/train.txt': b'x\n', 'a/valid.txt': b'y\n', 'b': b'z\n'}
  write(tmp_path, tree)
  own = dict(validation_path=tmp_path / 'b')
  named = texts(find(tmp_path / 'a', **own))
  assert (named['train'], named['validation']) == (b'x\n', b'z\n')
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
