"""Vocabularies of the published code bases, read, and Hugging Face's written.

All but lists in text keep a `Vocab` of the original code, or its attributes:
idx2sym, the symbols in the order of their token ids; counter, how often each
occurred; lower_case; and unk_idx. They are in

  cache.pkl   a pickled Corpus of the TensorFlow code, which ran in Python 2
  cache.pt    the same of the PyTorch code, by torch.save; so is NVIDIA's
  *.pt        a checkpoint of NVIDIA's, which has its Vocab beside the weights
  vocab.pkl, vocab.bin, vocab.json   the tokenizer of Hugging Face

The tokens of the corpus, which may be stored with it, are not read. The symbols
of enwik8 are byte values in digits, those of text8 are letters and _.
"""

import codecs
import contextlib
import json
import os
import pathlib
from typing import TypeGuard

from txl_jax.convert import pickles, torch_file
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.byte_values import Vocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError

AnyPath = str | os.PathLike[str]

NAMES = (  # of files in a folder, the first that is there
  'vocab.bin',
  'vocab.pkl',
  'vocab.json',
  'cache.pkl',
  'cache.pt',
  'vocab.txt',
  '1b_word_vocab.txt',
)
_MOST = 4_000_000  # symbols
_TEXT = 1 << 25  # bytes of a list or of JSON
_CHARACTERS = 'enwik8', 'text8'  # datasets
# Keys of the config of Hugging Face's tokenizer.
_OF_TOKENIZER = {
  'lower_case': 'lower_case',
  'unk_token': 'unk',
  'eos_token': 'eos',
}
_EOS, _UNK = ('<eos>', '<S>'), ('<unk>', '<UNK>')


def of_ids(vocab_size: int) -> Words:
  """The words 0, 1, 2…: a text of ids, with spaces between, is its tokens."""
  return Words(tuple(map(str, range(vocab_size))))


def is_of_ids(vocabulary: AnyVocabulary) -> bool:
  """Whether it is one of `of_ids`."""
  ends = vocabulary.symbols[:1] + vocabulary.symbols[-1:]
  last = str(len(vocabulary) - 1)
  return isinstance(vocabulary, Words) and ends == ('0', last)


class _Absent(ValueError):
  """A file of another kind, which is not expected to hold a vocabulary."""


def read(path: AnyPath) -> AnyVocabulary:
  """The vocabulary in a file, or in the first file of a folder that has one.

  It is of bytes where all symbols are bytes: values in digits, as in enwik8, or
  single letters, with _ for a space in text8. White space within words, which
  Python 2 did not split at (a no-break space), is escaped: no text has such a
  word. Symbols whose UTF-8 was once taken for Latin-1, as in all that Hugging
  Face published, are as they should be. UserError, one line: there is none, it
  is damaged, says one thing twice and differently, or names what no vocabulary
  has need of.
  """
  path = pathlib.Path(path)
  if path.is_dir():
    found = [path / n for n in NAMES if (path / n).is_file()]
    if not found:
      raise UserError(
        f'{path} has no vocabulary; allowed: a folder with one of '
        f'{", ".join(NAMES)}'
      )
    path = found[0]
  try:
    return _checked(*_fields(path))
  except torch_file.ODD as e:
    what = ' '.join(f'{e}'.split())[:300] or type(e).__name__
    raise UserError(f'{path} is no vocabulary that is read: {what}') from e


def within(path: AnyPath) -> AnyVocabulary | None:
  """The vocabulary stored with a checkpoint's weights, as by `read`, or None.

  UserError if there is one that is damaged.
  """
  try:
    return read(path)
  except UserError as e:
    if isinstance(e.__cause__, _Absent):
      return None
    raise


def has_tokenizer(vocabulary: AnyVocabulary) -> TypeGuard[Words]:
  """Whether the tokenizer of Hugging Face can have a vocabulary."""
  return isinstance(vocabulary, Words) and vocabulary.unk in _UNK


def write(folder: AnyPath, vocabulary: AnyVocabulary) -> None:
  """Writes what TransfoXLTokenizer.from_pretrained loads from a folder.

  That is vocab.txt, a word and its count in each line, and
  tokenizer_config.json. Of a vocab.pkl, transformers 4.35 would only learn to
  encode. UserError: it cannot be written, or the tokenizer has nothing like
  the vocabulary, for it knows only words, one of them <unk> or <UNK>.
  """
  if not has_tokenizer(vocabulary):
    raise UserError(
      "Hugging Face's tokenizer cannot have the vocabulary; allowed: words "
      'with <unk> or <UNK>'
    )
  config = {
    'tokenizer_class': 'TransfoXLTokenizer',
    'lower_case': vocabulary.lower,
    'unk_token': vocabulary.unk,
    # Where no word ends a line, the default, which has the id of <unk>.
    'eos_token': vocabulary.eos or '<eos>',
    'additional_special_tokens': [],
  }
  folder = pathlib.Path(folder)
  with files.writing(f'{folder / "vocab.txt"}'):
    folder.mkdir(parents=True, exist_ok=True)
    with files.replacing(folder / 'vocab.txt') as f:
      f.write(vocabulary.text())
  files.write(folder / 'tokenizer_config.json', json.dumps(config, indent=2))


def _fields(path):
  """The attributes of a vocabulary in a file, and what its form says.

  That is whether it is of Hugging Face, whose words may have to be repaired;
  and whether words of digits may be byte values.
  """
  if path.suffix == '.json':
    found = files.parse_json(files.read(path, largest=_TEXT), f'{path}')
    if found and all(type(i) is int for i in found.values()):
      found = {'sym2idx': found}
    fields, *_ = _within(found)
    return _of_tokenizer(path) | fields, True, False
  if path.suffix == '.txt':
    data = files.read(path, largest=_TEXT)
    words = Words.from_list(data.removeprefix(codecs.BOM_UTF8), f'{path}')
    fields = {'idx2sym': [*words.symbols], 'counts': [*words.counts]}
    return _of_tokenizer(path) | fields, False, False
  data = files.mapped(path)
  if torch_file.is_torch(data):
    root, _ = torch_file.load(path)
  else:
    root, _ = pickles.loads(data, f'{path}')
  return _within(root)


def _of_tokenizer(path):
  """What the config of Hugging Face's tokenizer, beside a file, says."""
  beside = path.with_name('tokenizer_config.json')
  if not path.name.startswith('vocab.') or not beside.is_file():
    return {}
  found = files.parse_json(files.read(beside, largest=1 << 20), f'{beside}')
  said = {}
  for theirs, name in _OF_TOKENIZER.items():
    value = found.get(theirs)
    if isinstance(value, dict):  # a token with options
      value = value.get('content')
    kind = bool if theirs == 'lower_case' else str
    if type(value) is kind:
      said[name] = value
    elif value is not None:
      settings.refuse(f'{beside}: {theirs}', value, f'a {kind.__name__}')
  return said


def _within(root):
  """The attributes of the vocabulary within a corpus or checkpoint.

  And, as of `_fields`, what is known by its form: Hugging Face saves attributes
  alone; byte values are those of characters, if the corpus has a name.
  """
  plain, dataset = not isinstance(root, pickles.Stub), ''
  depth = 0
  while depth < 3:
    found = pickles.fields(root)
    if 'idx2sym' in found or 'sym2idx' in found:
      digits = dataset in ('', *_CHARACTERS)
      return found, plain and not depth, digits
    if 'tokenizer' in found:
      raise ValueError('it is one of pieces of words (GPT-2), none of words')
    if isinstance(found.get('dataset'), str):
      dataset = found['dataset']
    if found.get('vocab') is None:
      break
    root = found['vocab']
    depth += 1
  raise (ValueError if depth else _Absent)('it has no idx2sym')


def _checked(fields, repair, digits):
  """The vocabulary of attributes; ValueError if they are invalid.

  Words are repaired, and those of digits may be byte values, as is said. The
  counts are those of the counter, unless it lacks most symbols.
  """
  symbols, ids = fields.get('idx2sym'), pickles.fields(fields.get('sym2idx'))
  if symbols is None:
    symbols = _ordered(ids)
  if type(symbols) is not list or not 0 < len(symbols) <= _MOST:
    raise ValueError(f'idx2sym is no list of 1 to {_MOST:,} symbols')
  if any(type(s) is not str or len(s) > 10_000 for s in symbols):
    raise ValueError('a symbol is no text')
  if len(set(symbols)) != len(symbols):
    raise ValueError('a symbol is there twice')
  differ = (i for i, s in enumerate(symbols) if ids.get(s) != i)
  place = next(differ, len(symbols))
  if ids and not place == len(symbols) == len(ids):
    raise ValueError(f'idx2sym and sym2idx differ at token id {place}')
  counts = fields.get('counts') or []
  if counter := pickles.fields(fields.get('counter')):
    counts = [counter.get(s, 0) for s in symbols]
  if any(type(n) is not int or n < 0 for n in counts):
    raise ValueError('a count is no whole number')
  if 2 * sum(map(bool, counts)) < len(counts):
    counts = []
  symbols = _repaired(symbols) if repair else symbols
  eos, unk = (
    next((s for s in (fields.get(name), *usual) if s in symbols), '')
    for name, usual in (('eos', _EOS), ('unk', _UNK))
  )
  if (place := fields.get('unk_idx')) is not None:
    if type(place) is not int or not 0 <= place < len(symbols):
      raise ValueError(f'unk_idx is {settings.shown(place)}, no token id')
    unk = symbols[place]
  if values := _byte_values(symbols, digits):
    # enwik8 without newlines: they were left out of every text.
    dropped = symbols[0].isdigit() and 10 not in values
    return Vocabulary(values, tuple(counts), (10,) if dropped else ())
  words = tuple(map(_escaped, symbols))
  lower = bool(fields.get('lower_case'))
  return Words(words, tuple(counts), eos, unk, lower)


def _ordered(ids):
  """Symbols in the order of their ids, which count from 0."""
  whole = all(type(i) is int for i in ids.values())
  if not whole or sorted(ids.values()) != [*range(len(ids))]:
    raise ValueError('sym2idx is no dict of ids from 0 on')
  return sorted(ids, key=lambda symbol: ids[symbol])


def _repaired(symbols):
  """The symbols, read as UTF-8 if all of them were read as Latin-1.

  As was done in Hugging Face's conversion from Python 2 (issue 271 of
  transformers). Among thousands of real words some would be no UTF-8.
  """
  if all(s.isascii() for s in symbols):
    return symbols
  with contextlib.suppress(UnicodeError):
    return [s.encode('latin-1').decode('utf-8') for s in symbols]
  return symbols


def _escaped(symbol):
  """A symbol without white space, which Python's escapes replace."""
  return ''.join(ascii(c)[1:-1] if c.isspace() else c for c in symbol)


def _byte_values(symbols, digits):
  """The byte value of each symbol, perhaps in digits; () if they are none."""
  values = ()
  if all(s.isascii() and s.isdigit() for s in symbols) and len(symbols) > 10:
    values = tuple(map(int, symbols)) if digits else ()
  elif all(len(s) == 1 and s.isascii() for s in symbols):
    values = tuple(ord(' ' if s == '_' else s) for s in symbols)
  return values if max(values, default=256) < 256 else ()
