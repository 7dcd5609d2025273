r"""Prepares a corpus for training; downloads it if necessary.

python -m txl_jax.prepare --dataset=enwik8 --newline=drop
python -m txl_jax.prepare --dataset=text8 --manual_dir=~/archives
python -m txl_jax.prepare --dataset=ptb --manual_dir=~/treebank
python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt
python -m txl_jax.prepare --dataset=text --path=notes/ --level=word --unk \
  --min_count=2
"""

from txl_jax.program import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports

import dataclasses
import re

from absl import flags

from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import CORPORA, FLAGS, Data
from txl_jax.program import command_line, settings
from txl_jax.program.errors import UserError

_DATA = {
  field.name: command_line.define(
    field,
    FLAGS.get(field.name, field.name),
    None if field.name == 'corpus' else field.default,
  )
  for field in dataclasses.fields(Data)
}
# Keys in messages, which name their flags here; not within a path or quotes.
_KEY = re.compile(
  rf'(?<![\w./\x27-])data\.({"|".join(_DATA)})(?![/\x27]|\.?\w)'
)
_MANUAL_DIR = flags.DEFINE(
  command_line.Path(),
  'manual_dir',
  None,
  'Folder with the archive of the corpus, or with the texts of wt103, wt2 or '
  'ptb, instead of a download.',
)
_FORCE = flags.DEFINE_bool(
  'force', False, 'Prepare the corpus even if it exists, and replace it.'
)


def main(argv: list[str]) -> None:
  """Prepares the corpus given by the flags; prints its size and folder."""
  data = Data(**{name: flag.value for name, flag in _DATA.items()})
  if data.corpus is None:
    raise UserError(f'--dataset is missing; allowed: {", ".join(CORPORA)}')
  data = settings.expand_home(data)
  try:
    corpus = preparation.prepare(
      data, manual_dir=_MANUAL_DIR.value, force=_FORCE.value
    )
  except OSError as e:
    raise UserError(f'--data_dir={data.folder} cannot be used: {e}') from e
  except UserError as e:
    text = f'{e}'
    if not _KEY.fullmatch(data.path):  # unless a file's name
      text = _KEY.sub(lambda key: f'--{FLAGS.get(key[1], key[1])}', text)
    raise UserError(text) from e
  for split, entry in corpus.manifest['splits'].items():
    line = f'{split}: {entry["tokens"]} tokens'
    if entry['bytes']:  # not ids
      line += f' from {entry["bytes"]} bytes'
    if 'unknown' in entry:  # a corpus of words
      line += f', {entry["unknown"]} unknown words'
    if split in corpus.files:
      line += f', in {corpus.files[split]}'
    print(line)
  for name, files in corpus.files.items():
    if name not in corpus.manifest['splits']:
      print(f'{name}: {files}')
  print(f'vocabulary: {len(corpus.vocabulary)} symbols')
  print(f'folder: {corpus.folder}')


if __name__ == '__main__':
  command_line.run(main)
