"""What is asked of a corpus: which one, and how its text becomes tokens."""

import dataclasses
import pathlib
import shlex

from txl_jax.errors import UserError
from txl_jax.settings import ON_RESUME, key

# Of the published vocabularies; enwik8 with every byte.
SIZES = {
  'enwik8': 205,
  'text8': 27,
  'wt103': 267_735,
  'wt2': 33_278,
  'ptb': 10_000,
  'lm1b': 793_471,
}


LOCAL = {
  'pystdlib': "bytes: the sources of Python's own standard library",
  'text': 'bytes or words: a text of your own, see data.path',
}
BYTES = {
  'enwik8': 'bytes: 100 MB of Wikipedia',
  'text8': 'bytes: 100 MB of Wikipedia, letters and spaces alone',
}
WORDS = {
  'wt103': 'words: WikiText-103',
  'wt2': 'words: WikiText-2',
  'ptb': 'words: Penn Treebank',
  'lm1b': 'words: One Billion Word, shuffled sentences',
}
CORPORA = LOCAL | BYTES | WORDS
SPLITS = ('train', 'validation', 'test')


@dataclasses.dataclass(frozen=True)
class Data:
  """The section `data` of a config: a corpus and its options."""

  corpus: str = key('pystdlib', 'What is learnt.', choices=CORPORA)
  dir: str = key(
    'data', 'Folder that holds the prepared corpora.', may_change=ON_RESUME
  )
  path: str = key(
    '',
    'Corpus text: the file or folder to learn from.',
    may_change=ON_RESUME,
  )
  newline: str = key(
    'keep',
    'What becomes of the newlines of enwik8.',
    choices={
      'keep': 'every byte is a token, 205 symbols',
      'drop': 'they become no token, 204 symbols and shorter splits: the '
      'published protocol',
    },
  )
  level: str = key(
    'byte',
    'Corpus text: what a token is. The published corpora of words are words.',
    choices={
      'byte': 'one byte',
      'word': 'what white space separates; the vocabulary is counted on the '
      'training split',
    },
  )
  lower: bool = key(False, 'Text of words: lower-case it.')
  eos: bool = key(True, 'Text of words: every newline is the word <eos>.')
  unk: bool = key(
    False,
    'Text of words: add the word <unk>, for words outside, to a vocabulary '
    'without one. It is trained only where some words of the training split '
    'are left out, as with min_count 2.',
  )
  min_count: int = key(
    1, 'Text of words: rarer words are left out.', at_least=1
  )
  max_size: int = key(
    0, 'Text of words: size of the vocabulary at most; 0 is any.', at_least=0
  )
  vocab_file: str = key(
    '',
    'Text of words, and lm1b when it is prepared: list of the words, one a '
    'line, or with its count.',
    may_change=ON_RESUME,
  )
  boundaries: int = key(
    1,
    'lm1b: words <S> between two sentences.',
    choices={
      1: 'n + 1 tokens of a sentence are scored (PyTorch original)',
      2: 'n + 2, one of them trivial (TensorFlow original)',
    },
  )

  @property
  def words(self) -> bool:
    """Whether the tokens are words."""
    return self.corpus in WORDS or (
      self.corpus == 'text' and self.level == 'word'
    )

  def check(self) -> None:
    """Raises a UserError unless the options go together."""
    self._check_that_they_fit()
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
    for where, fits, names in rules:
      for name in names:
        value = getattr(self, name)
        if value != defaults[name] and not fits:
          raise UserError(
            f'data.{name}: {value} is for {where} alone, not for {self.corpus}'
          )

  def _check_path(self):
    if not self.path:
      raise UserError('data.path is empty; corpus text needs a file or folder')
    source = pathlib.Path(self.path).resolve()
    if pathlib.Path(self.dir).resolve().is_relative_to(source):
      raise UserError(
        f'data.path: {self.path} holds data.dir {self.dir}, so the '
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
    flags.append(f'--data_dir={shlex.quote(str(self.dir))}')
    return f'python -m txl_jax.prepare {" ".join(flags)}'
