"""What is published about the corpora, written down a second time."""

from txl_jax.data import data_config, prepared
from txl_jax.data.corpora import builders


def test_published_facts(tmp_path):
  train = builders.ARCHIVES['lm1b'].members['train']
  assert train[0].endswith('/news.en-00001-of-00100')
  assert list(train) == sorted(train) and len(train) == 99
  held_out = builders.ARCHIVES['lm1b'].members['test']
  assert held_out == builders.ARCHIVES['lm1b'].members['validation']
  assert held_out[0].endswith('/news.en.heldout-00000-of-00050')
  for name in data_config.WORDS:
    archive = builders.ARCHIVES[name]
    assert list(archive.members) == list(prepared.SPLITS)
  for name in data_config.BYTES:
    archive = builders.ARCHIVES[name]
    assert [*archive.cuts.values()] == [90_000_000, 5_000_000, 5_000_000]
    assert archive.file == f'{name}.zip'
  for name in builders.ARCHIVES:
    assert builders.builder(name, tmp_path).name == name


# Of archives, which nobody has in a test.
DIGESTS = {
  'enwik8': '547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc',
  'text8': 'a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232',
  'wt103': '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590',
  'wt2': '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c',
  'ptb': None,
  'lm1b': '01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e',
}
BYTES = {
  'enwik8': 36_445_475,
  'text8': 31_344_016,
  'wt103': None,
  'wt2': None,
  'ptb': 34_869_662,
  'lm1b': 1_792_209_805,
}
SYMBOLS = {
  'enwik8': 205,
  'text8': 27,
  'wt103': 267_735,
  'wt2': 33_278,
  'ptb': 10_000,
  'lm1b': 793_471,
}


def test_published_digests_sizes_and_counts():
  def found(name):
    return {
      corpus: getattr(archive, name)
      for corpus, archive in builders.ARCHIVES.items()
    }

  assert found('sha256') == DIGESTS
  assert found('size') == BYTES
  assert found('symbols') == SYMBOLS == data_config.SIZES
  wikitext = {'validation': 217_646, 'test': 245_569}
  assert found('tokens') == {
    'enwik8': {},
    'text8': {},
    'wt103': {'train': 103_227_021, **wikitext},
    'wt2': {'train': 2_088_628, **wikitext},
    'ptb': {'train': 929_589, 'validation': 73_760, 'test': 82_430},
    'lm1b': {},
  }
  assert builders.ARCHIVES['ptb'].md5 == '30177ea32e27c525793142b6bf2c8e2d'
