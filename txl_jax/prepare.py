r"""Prepares a corpus for training, downloading it if need be.

python -m txl_jax.prepare --dataset=enwik8
python -m txl_jax.prepare --dataset=enwik8 --newline=drop --data_dir=data
python -m txl_jax.prepare --dataset=text8 --manual_dir=~/archives
python -m txl_jax.prepare --dataset=text --path=notes/
python -m txl_jax.prepare --dataset=wt103
python -m txl_jax.prepare --dataset=ptb --manual_dir=~/treebank
python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt
python -m txl_jax.prepare --dataset=text --path=notes/ --level=word --unk \
  --min_count=2
"""

import os

from absl import app, flags, logging

from txl_jax import command_line
from txl_jax.corpora import preparation
from txl_jax.data import options, prepared
from txl_jax.errors import UserError

_DATASET = flags.DEFINE_string(
  'dataset', None, f'One of {", ".join(options.CORPORA)}.'
)
_NEWLINE = flags.DEFINE_string(
  'newline',
  'keep',
  'enwik8: keep every byte, or drop newlines as the published figures do.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', 'data', 'Folder that holds the prepared corpora.'
)
_MANUAL_DIR = flags.DEFINE_string(
  'manual_dir',
  None,
  'Folder with the archive of the corpus, or with the texts of ptb; nothing is '
  'downloaded then.',
)
_PATH = flags.DEFINE_string(
  'path', '', 'Dataset text: the file or folder to learn from.'
)
_LEVEL = flags.DEFINE_string(
  'level', 'byte', 'Dataset text: tokens are bytes, or words: byte or word.'
)
_LOWER = flags.DEFINE_bool('lower', False, 'Text of words: lower-case it.')
_EOS = flags.DEFINE_bool(
  'eos', True, 'Text of words: every newline is the word <eos>.'
)
_UNK = flags.DEFINE_bool(
  'unk',
  False,
  'Text of words: add <unk> to a vocabulary without it. It is trained only if '
  'it stands for some word: add --min_count=2. In a list it comes last, '
  'among the rarest ones.',
)
_MIN_COUNT = flags.DEFINE_integer(
  'min_count', 1, 'Text of words: leave out rarer words.'
)
_MAX_SIZE = flags.DEFINE_integer(
  'max_size', 0, 'Text of words: size of the vocabulary at most; 0 is any.'
)
_VOCAB_FILE = flags.DEFINE_string(
  'vocab_file',
  '',
  'lm1b and text of words: list of the words, one a line, or with its count.',
)
_BOUNDARIES = flags.DEFINE_integer(
  'boundaries', 1, 'lm1b: words <S> between two sentences, 1 or 2.'
)
_PROCESSES = flags.DEFINE_integer(
  'processes',
  0,
  'Processes that read words; 0 is one for each CPU, four at most.',
  lower_bound=0,
)
_FORCE = flags.DEFINE_bool(
  'force', False, 'Prepare it again although it is there, and replace it.'
)


def main(argv: list[str]) -> None:
  """Prepares what the flags ask for and tells what there is then."""
  logging.set_verbosity(logging.WARNING)  # TFDS tells of every file
  del argv
  if _DATASET.value is None:
    raise UserError(
      f'--dataset is missing; allowed: {", ".join(options.CORPORA)}'
    )
  manual_dir = _MANUAL_DIR.value
  corpus = preparation.prepare(
    _DATASET.value,
    os.path.expanduser(_DATA_DIR.value),
    path=os.path.expanduser(_PATH.value),
    newline=_NEWLINE.value,
    level=_LEVEL.value,
    lower=_LOWER.value,
    eos=_EOS.value,
    unk=_UNK.value,
    min_count=_MIN_COUNT.value,
    max_size=_MAX_SIZE.value,
    vocab_file=os.path.expanduser(_VOCAB_FILE.value),
    boundaries=_BOUNDARIES.value,
    processes=_PROCESSES.value,
    manual_dir=manual_dir and os.path.expanduser(manual_dir),
    force=_FORCE.value,
  )
  for split in prepared.SPLITS:
    # None for bytes, and where an older version has prepared it.
    unknown = corpus.manifest['splits'][split].get('unknown')
    print(
      f'{split}: {corpus.tokens(split).size} tokens from '
      f'{corpus.source_bytes(split)} bytes'
      f'{"" if unknown is None else f", {unknown} unknown words"}'
    )
  print(f'vocabulary: {len(corpus.vocabulary)} symbols')
  print(f'folder: {corpus.folder}')


if __name__ == '__main__':
  with command_line.told():
    app.run(main, flags_parser=command_line.parse)
