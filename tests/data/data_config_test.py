import pytest

from tests.refusing import refused
from txl_jax.configs import own_text
from txl_jax.data.data_config import VARIABLE, Data
from txl_jax.program import settings

TEXT = dict(corpus='text', path='x')
WORDS = dict(**TEXT, level='word')


@pytest.mark.parametrize(
  'fields, found',
  [
    (dict(corpus='wt3'), "data.corpus is 'wt3'; allowed: pystdlib, "),
    (dict(level='words'), "data.level is 'words'; allowed: byte, word, subw"),
    (dict(newline='skip'), "data.newline is 'skip'; allowed: keep, drop"),
    (
      dict(corpus='enwik8', level='word'),
      "data.level is 'word'; allowed: 'byte' with corpus enwik8; other values "
      'are for corpus text',
    ),
    (
      dict(corpus='text8', newline='drop'),
      "data.newline is 'drop'; allowed: 'keep' with corpus text8; other values "
      'are for corpus enwik8',
    ),
    (
      dict(corpus='wt103', min_count=3),
      'data.min_count is 3; allowed: 1 with corpus wt103; other values are for '
      'corpus text at level word',
    ),
    (
      dict(**TEXT, eos=False),
      'data.eos is False; allowed: True with corpus te',
    ),
    (
      dict(**TEXT, max_size=300),
      'data.max_size is 300; allowed: 0 with corpus',
    ),
    (
      dict(corpus='enwik8', path='x'),
      "data.path is 'x'; allowed: '' with corp",
    ),
    (
      dict(corpus='enwik8', documents='file'),
      "data.documents is 'file'; allow",
    ),
    (
      dict(corpus='ptb', vocab_file='x'),
      "data.vocab_file is 'x'; allowed: '' with corpus ptb; other values are "
      'for corpus lm1b, or text at level word or id',
    ),
    (
      dict(corpus='wt2', boundaries=2),
      'data.boundaries is 2; allowed: 1 with ',
    ),
    (dict(corpus='enwik8', boundaries=2), 'data.boundaries is 2; allowed: 1'),
    (dict(corpus='lm1b', boundaries=3), 'data.boundaries is 3; allowed: 1, 2'),
    (
      dict(**WORDS, max_size=1),
      'data.max_size is 1; allowed: 0, or at least 3',
    ),
    (
      dict(**TEXT, level='subword', max_size=255),
      'data.max_size is 255; allowed: 0, or at least 256',
    ),
    (
      dict(corpus='enwik8', alphabet='bytes', newline='drop'),
      "data.alphabet is 'bytes'; allowed: seen with data.newline drop",
    ),
    (dict(**TEXT, documents='separator'), "data.separator is ''; allowed: a"),
    (dict(**WORDS, vocab_file='y', min_count=2), "data.vocab_file is 'y'; "),
    (
      dict(**WORDS, tokenizer='y'),
      "data.tokenizer is 'y'; allowed: '' with co",
    ),
    (
      dict(corpus='wt2', validation_path='y'),
      "data.validation_path is 'y'; allowed: '' with corpus wt2",
    ),
    (dict(**WORDS, max_size=-1), 'data.max_size is -1; allowed: at least 0'),
    (dict(**WORDS, min_count=0), 'data.min_count is 0; allowed: at least 1'),
    (
      dict(**WORDS, vocab_file='y', max_size=9),
      "data.vocab_file is 'y'; allowed: '' with data.min_count or ",
    ),
    (dict(corpus='text'), "data.path is ''; allowed: a file or folder"),
    (dict(**TEXT, raw=True, field='a'), 'data.raw is True; allowed: False '),
    (dict(**TEXT, raw=True, field='x'), 'data.raw is True; allowed: False '),
    # Its percent-encoding is a part of the folder's name.
    (
      dict(**TEXT, field='ä' * 16 + 'abcde'),
      f"data.field is '{'ä' * 16}abcde'; allowed: at most 100 characters",
    ),
  ],
)
def test_options_that_do_not_fit(fields, found):
  assert refused(Data(**fields).check).startswith(found)


@pytest.mark.parametrize(
  'fields, suffix',
  [
    (dict(corpus='wt103', level='word'), ''),
    (dict(corpus='enwik8', newline='drop'), '-newline_drop'),
    (dict(corpus='text8', alphabet='bytes'), '-alphabet_bytes'),
    (dict(corpus='lm1b', vocab_file='x', boundaries=2), '-boundaries_2'),
    (WORDS, '-word'),
    (dict(**WORDS, max_size=3), '-word-max_3'),
    (
      dict(**WORDS, lower=True, unk=True, eos=False, min_count=2, max_size=50),
      '-word-lower-unk-no_eos-min_2-max_50',
    ),
    (dict(**TEXT, field='ä' * 16 + 'abcd'), f'-field_{"%C3%A4" * 16}abcd'),
    (dict(**TEXT, field='a'), '-field_a'),
    (dict(**TEXT, level='id', vocab_size=1), '-id-size_1'),
    (dict(**TEXT, level='id', id_dtype='int32'), '-id-int32'),
    (dict(**TEXT, level='id', id_dtype='uint8'), '-id-uint8'),
    (dict(**TEXT, raw=True, documents='file'), '-raw-documents_file'),
  ],
)
def test_names_tell_the_options(fields, suffix):
  asked = Data(**fields)
  asked.check()
  assert asked.suffix() == suffix
  of_words = asked.level == 'word' or asked.corpus == 'lm1b'
  assert asked.is_word_level == of_words


@pytest.mark.parametrize(
  'fields, size',
  [
    ({}, 256),
    (dict(corpus='enwik8'), 205),
    (dict(corpus='enwik8', newline='drop'), 204),
    (dict(corpus='enwik8', alphabet='bytes'), 256),
    (dict(corpus='text8'), 27),
    (dict(corpus='wt103'), 267_735),
    (dict(corpus='wt2', level='word'), 33_278),
    (dict(corpus='ptb'), 10_000),
    (dict(corpus='lm1b'), 793_471),
    (TEXT, 256),
    (dict(**TEXT, documents='line'), 257),
    (WORDS, None),
  ],
)
def test_sizes_that_are_known_without_the_text(fields, size):
  assert Data(**fields).known_vocab_size == size


@pytest.mark.parametrize('variant', ['subwords', 'subwords_gpu'])
def test_a_tokenizer_has_its_own_size(variant):
  """The configs limit the subwords that they learn."""
  config = own_text.get_config(variant).data
  assert config.max_size > 0
  config.update(path='x', tokenizer='y')
  data = settings.read(Data, config)
  data.check()
  assert data.suffix() == '-subword'


@pytest.mark.parametrize(
  'fields, flags',
  [
    (dict(corpus='wt103'), '--dataset=wt103'),
    (dict(corpus='lm1b'), '--dataset=lm1b --vocab_file=1b_word_vocab.txt'),
    (
      dict(corpus='lm1b', vocab_file='my list', boundaries=2),
      "--dataset=lm1b '--vocab_file=my list' --boundaries=2",
    ),
    (dict(corpus='enwik8', newline='drop'), '--dataset=enwik8 --newline=drop'),
    (
      dict(corpus='text8', alphabet='bytes', dir='my data'),
      "--dataset=text8 '--data_dir=my data' --alphabet=bytes",
    ),
  ],
)
def test_command(fields, flags):
  command = Data(**fields).command()
  assert command == f'python -m txl_jax.prepare {flags}'


def test_a_section_of_a_config():
  config = settings.to_config_dict(Data())
  config.update(corpus='lm1b', boundaries=2)
  assert settings.read(Data, config) == Data('lm1b', boundaries=2)


@pytest.mark.parametrize(
  'environment, folder',
  [
    ({}, '/home/me/.local/share/txl_jax'),
    ({'XDG_DATA_HOME': '/big'}, '/big/txl_jax'),
    ({'XDG_DATA_HOME': '/big', VARIABLE: '/all'}, '/all'),
    ({VARIABLE: '~/corpora'}, '/home/me/corpora'),
  ],
)
def test_one_folder_of_data(environment, folder, tmp_path, monkeypatch):
  for name in VARIABLE, 'XDG_DATA_HOME':
    monkeypatch.delenv(name, raising=False)
  for name, value in {'HOME': '/home/me', **environment}.items():
    monkeypatch.setenv(name, value)
  for place in tmp_path, '/':
    monkeypatch.chdir(place)
    assert Data().folder == folder
    assert Data(dir='mine').folder == 'mine'
