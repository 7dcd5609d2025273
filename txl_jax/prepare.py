"""Prepares a corpus for training, downloading it if need be.

python -m txl_jax.prepare --dataset=enwik8
python -m txl_jax.prepare --dataset=enwik8 --newline=drop --data_dir=data
python -m txl_jax.prepare --dataset=text8 --manual_dir=~/archives
python -m txl_jax.prepare --dataset=text --path=notes/
"""

import os
import sys

from absl import app, flags

from txl_jax.data import preparation, prepared
from txl_jax.errors import UserError

_DATASET = flags.DEFINE_string(
  'dataset', None, f'One of {", ".join(preparation.CORPORA)}.'
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
  'Folder with the archive of enwik8 or text8; nothing is downloaded then.',
)
_PATH = flags.DEFINE_string(
  'path', '', 'Dataset text: the file or folder to learn from.'
)
_FORCE = flags.DEFINE_bool(
  'force', False, 'Prepare it again although it is there, and replace it.'
)


def main(argv: list[str]) -> None:
  """Prepares what the flags ask for and tells what there is then."""
  try:
    if argv[1:]:
      raise UserError(f'argument {argv[1]!r} is not expected, only flags are')
    if _DATASET.value is None:
      raise UserError(
        f'--dataset is missing; allowed: {", ".join(preparation.CORPORA)}'
      )
    manual_dir = _MANUAL_DIR.value
    corpus = preparation.prepare(
      _DATASET.value,
      os.path.expanduser(_DATA_DIR.value),
      path=os.path.expanduser(_PATH.value),
      newline=_NEWLINE.value,
      manual_dir=manual_dir and os.path.expanduser(manual_dir),
      force=_FORCE.value,
    )
  except (UserError, OSError) as e:
    print('error:', ' '.join(str(e).split()), file=sys.stderr)
    sys.exit(1)
  for split in prepared.SPLITS:
    print(
      f'{split}: {corpus.tokens(split).size} tokens from '
      f'{corpus.source_bytes(split)} bytes'
    )
  print(f'vocabulary: {len(corpus.vocabulary)} symbols')
  print(f'folder: {corpus.folder}')


if __name__ == '__main__':
  app.run(main)
