"""What is asked of a corpus: which one, and how its text becomes tokens."""

import dataclasses
import os
import pathlib
import shlex
from typing import Any

from txl_jax.errors import UserError

LOCAL = ('pystdlib', 'text')
BYTES = ('enwik8', 'text8')
WORDS = ('wt103', 'wt2', 'ptb', 'lm1b')
CORPORA = LOCAL + BYTES + WORDS
NEWLINE = ('keep', 'drop')
LEVEL = ('byte', 'word')

# Of the published vocabularies; enwik8 with every byte.
SIZES = {
  'enwik8': 205,
  'text8': 27,
  'wt103': 267_735,
  'wt2': 33_278,
  'ptb': 10_000,
  'lm1b': 793_471,
}


@dataclasses.dataclass(frozen=True)
class Options:
  """A corpus and its options; configs/common.py has them in its section data.

  Attributes:
    corpus: one of CORPORA.
    data_dir: holds a folder for each prepared corpus.
    path: corpus text: the file or folder to read.
    newline: keep, or for enwik8 drop: newline bytes become no token.
    level: corpus text: byte or word. The corpora of WORDS are always words.
    lower: text of words: lower-case it.
    eos: text of words: every newline is the word <eos>.
    unk: text of words: add the word <unk> to a vocabulary without one. It
      is trained only if it occurs in the training split: with a min_count of
      2, a max_size, or a vocab_file that leaves words out.
    min_count: text of words: rarer words are left out of the vocabulary.
    max_size: text of words: size of the vocabulary at most; 0 is no limit.
    vocab_file: lm1b and text of words: the list of the words.
    boundaries: lm1b: words <S> between two sentences, 1 or 2.
  """

  corpus: str
  data_dir: str | os.PathLike
  path: str | os.PathLike = ''
  newline: str = 'keep'
  level: str = 'byte'
  lower: bool = False
  eos: bool = True
  unk: bool = False
  min_count: int = 1
  max_size: int = 0
  vocab_file: str | os.PathLike = ''
  boundaries: int = 1

  @property
  def words(self) -> bool:
    """Whether the tokens are words."""
    return self.corpus in WORDS or (
      self.corpus == 'text' and self.level == 'word'
    )

  def check(self) -> None:
    """Raises a UserError unless the options go together."""
    for key, allowed in (
      ('newline', NEWLINE),
      ('level', LEVEL),
      ('boundaries', (1, 2)),
    ):
      value = getattr(self, key)
      if value not in allowed:
        names = ', '.join(map(str, allowed))
        raise UserError(f'data.{key}: {value!r}; allowed: {names}')
    if self.corpus not in CORPORA:
      raise UserError(
        f'data.corpus: {self.corpus!r} is unknown; allowed: '
        f'{", ".join(CORPORA)}'
      )
    self._check_that_they_fit()
    if self.min_count < 1:
      raise UserError(f'data.min_count: {self.min_count}; allowed: at least 1')
    if self.max_size != 0 and self.max_size < 3:
      raise UserError(f'data.max_size: {self.max_size}; allowed: 0, at least 3')
    if self.vocab_file and (self.min_count > 1 or self.max_size):
      raise UserError(
        f'data.vocab_file: {self.vocab_file} is a whole vocabulary; allowed: '
        'data.min_count=1 and data.max_size=0'
      )
    if self.corpus == 'text':
      self._check_path()

  def _check_that_they_fit(self):
    """Raises a UserError if an option is for other corpora than this one."""
    text = self.corpus == 'text'
    lm1b = self.corpus == 'lm1b'
    of_words = ('lower', 'eos', 'unk', 'min_count', 'max_size')
    rules = (
      ('corpus enwik8', self.corpus == 'enwik8', ('newline',)),
      ('corpus text', text, ('path',)),
      ('corpus text', text or self.corpus in WORDS, ('level',)),
      ('corpus text at level word', text and self.words, of_words),
      (
        'lm1b or text at level word',
        lm1b or (text and self.words),
        ('vocab_file',),
      ),
      ('corpus lm1b', lm1b, ('boundaries',)),
    )
    defaults = {f.name: f.default for f in dataclasses.fields(self)}
    for where, fits, keys in rules:
      for key in keys:
        value = getattr(self, key)
        if value != defaults[key] and not fits:
          raise UserError(
            f'data.{key}: {value} is for {where} alone, not for {self.corpus}'
          )

  def _check_path(self):
    if not self.path:
      raise UserError('data.path is empty; corpus text needs a file or folder')
    source = pathlib.Path(self.path).resolve()
    if pathlib.Path(self.data_dir).resolve().is_relative_to(source):
      raise UserError(
        f'data.path: {self.path} holds data.dir {self.data_dir}, so the '
        'prepared data would become part of the corpus'
      )

  def suffix(self) -> str:
    """What the name of the prepared folder tells about the options."""
    parts = ['newline_drop'] if self.newline == 'drop' else []
    if self.boundaries != 1:
      parts.append(f'boundaries_{self.boundaries}')
    if self.corpus == 'text' and self.words:
      parts.append('word')
      parts += ['lower'] if self.lower else []
      parts += ['unk'] if self.unk else []
      parts += [] if self.eos else ['no_eos']
      parts += [f'min_{self.min_count}'] if self.min_count > 1 else []
      parts += [f'max_{self.max_size}'] if self.max_size else []
    return ''.join(f'-{part}' for part in parts)

  def recorded(self) -> dict:
    """The options as the manifest has them."""
    if not self.words:
      return {'newline': self.newline}
    if self.corpus == 'lm1b':
      return {'boundaries': self.boundaries}
    if self.corpus != 'text':
      return {}
    names = ('level', 'lower', 'eos', 'unk', 'min_count', 'max_size')
    return {name: getattr(self, name) for name in names}

  def command(self) -> str:
    """The command that prepares this corpus, if it is one to download."""
    flags = [f'--dataset={self.corpus}']
    flags += ['--newline=drop'] if self.newline == 'drop' else []
    if self.corpus == 'lm1b':
      # The name that the list was published under.
      path = self.vocab_file or '1b_word_vocab.txt'
      flags.append(f'--vocab_file={shlex.quote(str(path))}')
    if self.boundaries != 1:
      flags.append(f'--boundaries={self.boundaries}')
    flags.append(f'--data_dir={shlex.quote(str(self.data_dir))}')
    return f'python -m txl_jax.prepare {" ".join(flags)}'


def from_config(config: Any) -> Options:
  """The options that the section `data` of a config asks for."""
  return Options(
    corpus=config.corpus,
    data_dir=config.dir,
    path=config.path,
    newline=config.newline,
    level=config.level,
    lower=config.lower,
    eos=config.eos,
    unk=config.unk,
    min_count=config.min_count,
    max_size=config.max_size,
    vocab_file=config.vocab_file,
    boundaries=config.boundaries,
  )
