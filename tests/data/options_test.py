import pytest

from configs import common
from txl_jax.data import options
from txl_jax.data.options import Options
from txl_jax.errors import UserError


@pytest.mark.parametrize(
  'fields, found',
  [
    (dict(corpus='wt3'), "data.corpus: 'wt3' is unknown; allowed: pystdlib, "),
    (dict(corpus='enwik8', level='words'), "data.level: 'words'; allowed: by"),
    (
      dict(corpus='enwik8', level='word'),
      'data.level: word is for corpus text alone, not for enwik8',
    ),
    (
      dict(corpus='wt103', min_count=3),
      'data.min_count: 3 is for corpus text at level word alone, not for wt103',
    ),
    (
      dict(corpus='text', path='x', eos=False),
      'data.eos: False is for corpus text at level word alone, not for text',
    ),
    (
      dict(corpus='ptb', vocab_file='x'),
      'data.vocab_file: x is for lm1b or text at level word alone, not for ptb',
    ),
    (
      dict(corpus='wt2', boundaries=2),
      'data.boundaries: 2 is for corpus lm1b alone, not for wt2',
    ),
    (dict(corpus='lm1b', boundaries=3), 'data.boundaries: 3; allowed: 1, 2'),
    (
      dict(corpus='text', path='x', level='word', max_size=2),
      'data.max_size: 2; allowed: 0, at least 3',
    ),
    (
      dict(corpus='text', path='x', level='word', min_count=0),
      'data.min_count: 0; allowed: at least 1',
    ),
    (
      dict(corpus='text', path='x', level='word', vocab_file='y', max_size=9),
      'data.vocab_file: y is a whole vocabulary; allowed: data.min_count=1 ',
    ),
  ],
)
def test_options_that_do_not_fit(fields, found):
  with pytest.raises(UserError) as error:
    Options(data_dir='data', **fields).check()
  assert str(error.value).startswith(found)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'fields, suffix',
  [
    (dict(corpus='wt103', level='word'), ''),
    (dict(corpus='enwik8', newline='drop'), '-newline_drop'),
    (dict(corpus='lm1b', vocab_file='x', boundaries=2), '-boundaries_2'),
    (dict(corpus='text', path='x', level='word'), '-word'),
    (
      dict(
        corpus='text',
        path='x',
        level='word',
        lower=True,
        unk=True,
        eos=False,
        min_count=2,
        max_size=50,
      ),
      '-word-lower-unk-no_eos-min_2-max_50',
    ),
  ],
)
def test_names_tell_the_options(fields, suffix):
  asked = Options(data_dir='data', **fields)
  asked.check()
  assert asked.suffix() == suffix
  assert asked.words == (asked.corpus != 'enwik8')


@pytest.mark.parametrize(
  'fields, flags',
  [
    (dict(corpus='wt103'), '--dataset=wt103 --data_dir=data'),
    (
      dict(corpus='lm1b'),
      '--dataset=lm1b --vocab_file=1b_word_vocab.txt --data_dir=data',
    ),
    (
      dict(corpus='lm1b', vocab_file='my list', boundaries=2),
      "--dataset=lm1b --vocab_file='my list' --boundaries=2 --data_dir=data",
    ),
    (
      dict(corpus='enwik8', newline='drop'),
      '--dataset=enwik8 --newline=drop --data_dir=data',
    ),
  ],
)
def test_command(fields, flags):
  command = Options(data_dir='data', **fields).command()
  assert command == f'python -m txl_jax.prepare {flags}'


def test_config_has_the_same_defaults():
  config = common.get_config().data
  asked = options.from_config(config)
  assert asked == Options(config.corpus, config.dir)
