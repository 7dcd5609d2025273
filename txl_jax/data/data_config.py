"""The section `data` of a config: the corpus and its tokenisation."""

import dataclasses
import functools
import os
import shlex
import urllib.parse
from collections.abc import Iterator

from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, file_path, key, size

# Sizes of the published vocabularies; for enwik8, of all bytes that occur.
SIZES = {
  'enwik8': 205,
  'text8': 27,
  'wt103': 267_735,
  'wt2': 33_278,
  'ptb': 10_000,
  'lm1b': 793_471,
}
CORPORA = {
  'pystdlib': "bytes: the source code of Python's standard library",
  'text': 'bytes, words, subwords or token ids of your own, see data.path',
  'enwik8': 'bytes: 100 MB of Wikipedia',
  'text8': 'bytes: 100 MB of Wikipedia, only letters and spaces',
  'wt103': 'words: WikiText-103',
  'wt2': 'words: WikiText-2',
  'ptb': 'words: Penn Treebank',
  'lm1b': 'words: One Billion Word, shuffled sentences',
}
LOCAL = ('pystdlib', 'text')
BYTES = ('enwik8', 'text8')
WORDS = ('wt103', 'wt2', 'ptb', 'lm1b')
SPLITS = ('train', 'validation', 'test')
FLAGS = {'corpus': 'dataset', 'dir': 'data_dir'}  # keys with another flag name
VARIABLE = 'TXL_JAX_DATA'  # environment variable that names a folder
IDS = 1 << 20  # maximum vocabulary size of a corpus of token ids
SUBWORDS = 8192  # number of subwords to learn if max_size is 0
_path = functools.partial(file_path, may_change=ON_RESUME)


@dataclasses.dataclass(frozen=True)
class Data:
  """The section `data` of a config: a corpus and its options."""

  corpus: str = key('pystdlib', 'Corpus to train on.', choices=CORPORA)
  dir: str = _path(
    '',
    "Folder of the prepared corpora, or gs://BUCKET/NAME; '' takes it from the "
    f'environment variable {VARIABLE}, else $XDG_DATA_HOME/txl_jax, else '
    '~/.local/share/txl_jax.',
    remote=('gs://',),
  )
  path: str = _path(
    '',
    'Corpus text: the file or folder to train on, or hf://datasets/ORG/NAME, '
    'optionally with @REVISION and /FOLDER. From the records of a .jsonl, '
    '.parquet, .arrow, .csv, .tsv or .json, data.field is read.',
    remote=('hf://datasets/',),
  )
  splits: str = key(
    'names',
    'Corpus text: how file and folder names in data.path select splits.',
    choices={
      'names': 'files and folders named after train, valid (validation, val, '
      'dev, eval) and test form these splits, and no other files are allowed; '
      'a folder without such names is cut at 90 and 95 percent',
      'none': 'all files form one text, cut at 90 and 95 percent',
    },
  )
  validation_path: str = _path(
    '',
    'Corpus text: the validation text, a file or folder; if data.path has no '
    'splits, all of it is then used for training.',
  )
  test_path: str = _path(
    '',
    'Corpus text: the test text, a file or folder; if there is no test split, '
    'the validation text is used.',
  )
  field: str = key(
    'text',
    'Corpus text: the field or column of the records to read. Without the '
    'default field, a .csv, .tsv or .json is plain text.',
  )
  raw: bool = key(
    False,
    'Byte-level text: train on the raw bytes of every file, including binary '
    'files.',
  )
  documents: str = key(
    'none',
    'Corpus text: the unit that counts as a document. Each document starts a '
    'new segment with an empty memory, and ends with <eos>; in word-level text '
    'its newlines are white space.',
    choices={
      'none': 'no documents: the text is one stream',
      'file': 'each file',
      'record': 'each record, see data.path',
      'line': 'each line of text',
      'blank': 'each paragraph of text, between blank lines',
      'separator': 'the text between two data.separator',
    },
  )
  separator: str = key(
    '',
    'Corpus text, data.documents separator: the text between two documents, '
    'such as <|endoftext|>. Newlines next to it belong to no document.',
  )
  newline: str = key(
    'keep',
    'What happens to the newlines of enwik8.',
    choices={
      'keep': 'every byte is a token, 205 symbols',
      'drop': 'they are removed, 204 symbols and shorter splits: the published '
      'protocol',
    },
  )
  alphabet: str = key(
    'seen',
    'Which byte values are symbols of enwik8 and text8.',
    choices={
      'seen': 'those that occur',
      'bytes': 'all 256 (Al-Rfou et al. 2018)',
    },
  )
  level: str = key(
    'byte',
    'Corpus text: the tokenisation level. The published word corpora are '
    'always word-level.',
    choices={
      'byte': 'one byte',
      'word': 'a word, delimited by white space; the vocabulary is counted on '
      'the training split',
      'subword': 'a byte-level BPE token, learned from the training split or '
      'one of data.tokenizer; needs the extra [text]',
      'id': 'an integer in a .bin or .npy file, or in records whose data.field '
      'is a list of integers',
      'auto': 'id if data.path is or has a .bin or .npy, else byte',
    },
  )
  id_dtype: str = key(
    'uint16',
    'Token ids: the type of the numbers in a .bin.',
    choices={
      'uint8': 'up to 255',
      'uint16': 'up to 65,535, as written by nanoGPT and llm.c',
      'uint32': 'up to 2^32 - 1',
      'int32': 'signed; ids must not be negative',
      'int64': 'signed, the default of PyTorch and NumPy',
    },
  )
  vocab_size: int = count(
    0,
    'Token ids: vocabulary size; 0 takes it from data.vocab_file or a meta.pkl '
    'next to the files, else the largest id plus one.',
    at_most=IDS,
  )
  lower: bool = key(False, 'Word-level text: convert it to lower case.')
  eos: bool = key(True, 'Word-level text: each newline becomes the word <eos>.')
  unk: bool = key(
    False,
    'Word-level text: add the word <unk>, for unknown words, to a vocabulary '
    'without one. It is trained only if some words of the training split are '
    'left out, as with min_count 2.',
  )
  min_count: int = size(
    1, 'Word-level text: words that occur less often are left out.'
  )
  max_size: int = count(
    0,
    'Word- or subword-level text: maximum size of a vocabulary made from the '
    f'text; 0 is no limit for words, {SUBWORDS:,} for subwords. Not used with '
    'data.tokenizer, which has its own size.',
  )
  tokenizer: str = _path(
    '',
    'Subword-level text: a tokenizer.json of any kind, a folder with one, a '
    '.model of SentencePiece, the ranks of tiktoken, or the vocabulary.json of '
    "a run; '' learns one.",
  )
  vocab_file: str = _path(
    '',
    'Word-level text, and the preparation of lm1b: a word list, one word per '
    'line, optionally with counts. Token ids: the names of the tokens as JSON '
    '(a list, {name: id}, or the vocabulary.json of a run); not needed if a '
    'meta.pkl lies next to the files.',
  )
  boundaries: int = key(
    1,
    'lm1b: number of <S> words between two sentences.',
    choices={
      1: 'n + 1 tokens are scored per sentence of n words (PyTorch original)',
      2: 'n + 2, one of them trivial (TensorFlow original)',
    },
  )

  def __post_init__(self):
    if self.level == 'auto':
      path = os.path.expanduser(self.path)
      names = os.listdir(path) if os.path.isdir(path) else [path]
      has_ids = any(name.endswith(('.bin', '.npy')) for name in names)
      object.__setattr__(self, 'level', 'id' if has_ids else 'byte')

  @property
  def known_vocab_size(self) -> int | None:
    """The size of the vocabulary; None if it depends on the text."""
    if self.corpus == 'text' and self.level != 'byte':
      return None
    if self.alphabet == 'bytes':
      return 256
    if self.corpus == 'text':
      return 256 + self.ends_documents
    return SIZES.get(self.corpus, 256) - (self.newline == 'drop')

  @property
  def folder(self) -> str:
    """The folder of prepared corpora: dir, or the default."""
    if self.dir:
      return self.dir
    if folder := os.environ.get(VARIABLE):
      return os.path.expanduser(folder)
    base = os.environ.get('XDG_DATA_HOME') or '~/.local/share'
    return os.path.join(os.path.expanduser(base), 'txl_jax')

  @property
  def is_word_level(self) -> bool:
    """Whether the tokens are words."""
    return (self.corpus, self.level) == ('text', 'word') or self.corpus in WORDS

  @property
  def ends_documents(self) -> bool:
    """Whether the text consists of documents, each ended by <eos>."""
    return self.documents != 'none'

  @property
  def of_texts(self) -> bool:
    """Whether documents are parts of files: records, lines and so on."""
    return self.documents not in ('none', 'file')

  @property
  def is_subword_level(self) -> bool:
    """Whether the tokens are subwords."""
    return (self.corpus, self.level) == ('text', 'subword')

  @property
  def is_id_level(self) -> bool:
    """Whether files contain token ids instead of text."""
    return (self.corpus, self.level) == ('text', 'id')

  def check(self) -> None:
    """Raises a UserError unless all values are allowed and compatible."""
    settings.check(self, 'data')

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    text, lm1b = self.corpus == 'text', self.corpus == 'lm1b'
    of_words = text and self.is_word_level
    sized = of_words or self.is_subword_level
    rules = (
      ('newline', self.corpus == 'enwik8', 'enwik8'),
      ('alphabet', self.corpus in BYTES, 'enwik8 and text8'),
      ('path splits validation_path test_path', text, 'text'),
      ('field documents separator', text, 'text'),
      ('level', text or self.is_word_level, 'text'),
      ('raw', text and self.level == 'byte', 'text at level byte'),
      ('lower eos unk min_count', of_words, 'text at level word'),
      ('max_size', sized, 'text at level word or subword'),
      ('tokenizer', self.is_subword_level, 'text at level subword'),
      ('id_dtype vocab_size', self.is_id_level, 'text at level id'),
      (
        'vocab_file',
        lm1b or of_words or self.is_id_level,
        'lm1b, or text at level word or id',
      ),
      ('boundaries', lm1b, 'lm1b'),
    )
    for names, fits, where in rules:
      for name in () if fits else names.split():
        default = getattr(Data, name)
        if getattr(self, name) != default:
          allowed = f'{default!r} with corpus {self.corpus}'
          yield name, f'{allowed}; other values are for corpus {where}'
    if self.ends_documents and of_words and not self.eos:
      yield 'eos', 'True with data.documents, since <eos> ends each document'
    if self.raw and (self.of_texts or self.field != 'text'):
      yield 'raw', 'False with records, or documents within files'
    if bool(self.separator) != (self.documents == 'separator'):
      yield 'separator', 'a text, only with data.documents=separator'
    for name in 'field', 'separator':
      if len(urllib.parse.quote(getattr(self, name))) > 100:
        yield name, 'at most 100 characters, URL-encoded'
    if self.alphabet == 'bytes' and self.newline == 'drop':
      yield 'alphabet', 'seen with data.newline drop'
    least = 256 + self.ends_documents if self.is_subword_level else 3
    if 0 < self.max_size < least:
      yield 'max_size', f'0, or at least {least}'
    if self.vocab_file and (self.min_count > 1 or self.max_size):
      yield 'vocab_file', "'' with data.min_count or data.max_size"
    if text and not self.path:
      yield 'path', 'a file or folder with corpus text'

  def suffix(self) -> str:
    """The options that differ from defaults, for the prepared folder's name."""
    parts = (
      ('newline_drop', self.newline == 'drop'),
      ('alphabet_bytes', self.alphabet == 'bytes'),
      (f'boundaries_{self.boundaries}', self.boundaries != 1),
      ('word', self.corpus == 'text' and self.is_word_level),
      ('subword', self.is_subword_level),
      ('id', self.is_id_level),
      (self.id_dtype, self.id_dtype != 'uint16'),
      (f'size_{self.vocab_size}', self.vocab_size > 0),
      ('raw', self.raw),
      (f'field_{urllib.parse.quote(self.field, "")}', self.field != 'text'),
      (f'documents_{self.documents}', self.ends_documents),
      (urllib.parse.quote(self.separator, ''), bool(self.separator)),
      ('lower', self.lower),
      ('unk', self.unk),
      ('no_eos', not self.eos),
      (f'min_{self.min_count}', self.min_count > 1),
      (f'max_{self.max_size}', self.max_size > 0 and not self.tokenizer),
    )
    return ''.join(f'-{part}' for part, here in parts if here)

  def command(self) -> str:
    """The command that downloads and prepares this corpus."""
    values = dataclasses.asdict(self)
    if self.corpus == 'lm1b' and not self.vocab_file:
      # The published file name of the list.
      values['vocab_file'] = '1b_word_vocab.txt'
    flags = [
      f'--{FLAGS.get(name, name)}={value}'
      for name, value in values.items()
      if value != getattr(Data, name)
    ]
    return shlex.join(['python', '-m', 'txl_jax.prepare', *flags])
