"""Vocabularies of the published code bases, read, and Hugging Face's written.

All but lists in text keep a `Vocab` of the original code, or its attributes:
idx2sym, the symbols in the order of their token ids; counter, how often each
occurred; and lower_case. They are in

  cache.pkl   a pickled Corpus of the TensorFlow code, which ran in Python 2
  cache.pt    the same of the PyTorch code, by torch.save; so is NVIDIA's
  *.pt        a checkpoint of NVIDIA's, which has its Vocab beside the weights
  vocab.pkl, vocab.bin   the tokenizer of Hugging Face

Models of Hugging Face may instead have a byte-level BPE, in a tokenizer.json.
The tokens of the corpus, which may be stored with it, are not read. The symbols
of enwik8 are byte values in digits, those of text8 are letters and _.
"""

import codecs
import contextlib
import dataclasses
import json
import pathlib
from typing import TypeGuard

from txl_jax.convert.formats import torch_file
from txl_jax.data.vocabularies import AnyVocabulary, from_json
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir

# Of files with the weights of Hugging Face, the first that is there; the first
# of all is our own.
_BPE, _LIST = 'tokenizer.json', 'vocab.txt'
NAMES = workdir.VOCABULARY, 'vocab.bin', 'vocab.pkl', _BPE, _LIST
TOKENIZER = 'tokenizer_config.json'
EMPTY = r'\N{EMPTY}'  # in place of an empty symbol
_TEXT = 1 << 25  # bytes of a list
_EOS, _UNK = ('<eos>', '<S>'), ('<unk>', '<UNK>')


def of_ids(vocab_size: int) -> Words:
  """The words 0, 1, 2…: a text of ids, with spaces between, is its tokens."""
  return Words(tuple(map(str, range(vocab_size))))


def of_folder(
  folder: pathlib.Path, size: int
) -> tuple[AnyVocabulary | None, tuple[str, ...]]:
  """The vocabulary beside weights of Hugging Face, if any; and warnings.

  These name a tokenizer of another kind, as one of word pieces, which has a
  vocab.txt too. UserError: see `read`.
  """
  tokenizer = folder / TOKENIZER
  fields = files.read_json(tokenizer) if tokenizer.is_file() else {}
  kind = f'{fields.get("tokenizer_class") or "TransfoXLTokenizer"}'
  of_words = kind.startswith('TransfoXL')
  for path in filter(pathlib.Path.is_file, map(folder.joinpath, NAMES)):
    try:
      if of_words or path.name != _LIST:
        return read(path, size), ()
    except UserError as e:
      if path.name != _BPE:
        raise
      return None, (f'{e}',)
  return None, () if of_words else (f'{tokenizer}: a {kind:.80} is not read',)


def read(path: files.AnyPath, size: int | None = None) -> AnyVocabulary:
  """The vocabulary in a file: JSON, a list of words in .txt, or a pickle.

  JSON is our vocabulary.json, or a tokenizer.json. Tokens that were added to a
  tokenizer of Hugging Face count if their ids are below the size, that of the
  model.

  That of a pickle is of bytes where all symbols are bytes: values in digits, as
  in enwik8, or single letters, with _ for a space in text8. White space within
  words, which Python 2 did not split at (a no-break space), is escaped: no
  text has such a word; an empty symbol is EMPTY. Symbols whose UTF-8 was once
  taken for Latin-1, as in all that Hugging Face published, are as they should
  be. UserError, one line: there is none, it is damaged, or names what no
  vocabulary has need of.
  """
  path = pathlib.Path(path)
  try:
    if path.suffix == '.txt':
      data = files.read(path, largest=_TEXT).removeprefix(codecs.BOM_UTF8)
      return _with_roles(Words.from_list(data, f'{path}'))
    if path.suffix == '.json':
      return _of_json(files.read_json(path), size)
    return _checked(*_within(_loaded(path)), size)
  except torch_file.ODD as e:
    what = ' '.join(f'{e}'.split())[:300] or type(e).__name__
    raise UserError(f'{path} is no vocabulary that is read: {what}') from e


def within(path: files.AnyPath) -> AnyVocabulary | None:
  """The vocabulary that a checkpoint has beside its weights, or None."""
  there = pickles.fields(_loaded(path)).get('vocab') is not None
  return read(path) if there else None


def has_tokenizer(vocabulary: AnyVocabulary) -> TypeGuard[Words]:
  """Whether the tokenizer of Hugging Face can have a vocabulary."""
  return isinstance(vocabulary, Words) and vocabulary.unk in _UNK


def write(folder: pathlib.Path, vocabulary: Words) -> None:
  """Writes what TransfoXLTokenizer.from_pretrained loads from a folder.

  That is vocab.txt, a word and its count in each line, and
  tokenizer_config.json. Of a vocab.pkl, transformers 4.35 would only learn to
  encode. The vocabulary is one that `has_tokenizer`.
  """
  config = {
    'tokenizer_class': 'TransfoXLTokenizer',
    'lower_case': vocabulary.lower,
    'unk_token': vocabulary.unk,
    # Where no word ends a line, the default, which has the id of <unk>.
    'eos_token': vocabulary.eos or '<eos>',
    'additional_special_tokens': [],
  }
  (folder / 'vocab.txt').write_bytes(vocabulary.text())
  files.write(folder / TOKENIZER, json.dumps(config, indent=2))


def _loaded(path):
  """The object of a pickle, or of a file of torch."""
  data = files.mapped(path)
  if torch_file.is_torch(data):
    return torch_file.load(path)[0]
  return pickles.loads(data, f'{path}')[0]


def _within(root):
  """The attributes of the vocabulary within a corpus or checkpoint.

  And whether they are saved alone, as by Hugging Face, whose words may have to
  be repaired.
  """
  alone = not isinstance(root, pickles.Stub)
  for depth in range(3):
    found = pickles.fields(root)
    if 'idx2sym' in found:
      return found, alone and not depth
    root = found.get('vocab')
  raise ValueError('it has no idx2sym')


def _of_json(fields, size):
  if 'model' not in fields:
    return from_json(fields)
  added = fields.get('added_tokens') or []
  kept = [x for x in added if size is None or x['id'] < size]
  return Subwords.from_fields({**fields, 'added_tokens': kept})


def _by_ids(ids):
  """Symbols in the order of their ids; ValueError if an id is missing."""
  symbols = sorted(ids, key=ids.get)
  if [*map(ids.get, symbols)] != [*range(len(ids))]:
    raise ValueError('its ids are not 0, 1, 2 and so on')
  return symbols


def _checked(fields, repair, size):
  """The vocabulary of attributes; ValueError if they are invalid.

  The counts are those of the counter, unless it lacks most symbols.
  """
  # transformers 4.35 saves an empty list once it has loaded a vocabulary.
  symbols = fields['idx2sym'] or _by_ids(pickles.fields(fields.get('sym2idx')))
  if type(symbols) is not list or any(type(s) is not str for s in symbols):
    raise ValueError('idx2sym is no list of symbols')
  counter = pickles.fields(fields.get('counter'))
  counts = tuple(counter.get(s, 0) for s in symbols)
  if any(type(n) is not int for n in counts):
    raise ValueError('a count is no whole number')
  if 2 * sum(map(bool, counts)) < len(counts):
    counts = ()
  symbols = _repaired(symbols) if repair else symbols
  # The second is the name of it before transformers 4.34.
  names = '_added_tokens_encoder', 'added_tokens_encoder'
  added = next((pickles.fields(fields[x]) for x in names if x in fields), {})
  ids = {symbol: i for i, symbol in enumerate(symbols)}
  more = {x: i for x, i in added.items() if size is None or i < size}
  if len(ids) == len(symbols) and {*more} - {*ids}:
    symbols = _by_ids(more | ids)
    counts += (0,) * (len(symbols) - len(ids)) if counts else ()
  if values := _byte_values(symbols):
    # enwik8 without newlines: they were left out of every text.
    dropped = symbols[0].isdigit() and 10 not in values
    return Bytes(values, counts, (10,) if dropped else ())
  words = tuple(map(_escaped, symbols))
  lower = bool(fields.get('lower_case'))
  return _with_roles(Words(words, counts, lower=lower))


def _with_roles(words):
  """The same words, with the usual ones for newlines and all others."""
  there = {*words.symbols}
  eos, unk = (
    next((s for s in usual if s in there), '') for usual in (_EOS, _UNK)
  )
  return dataclasses.replace(words, eos=eos, unk=unk)


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
  found = ''.join(ascii(c)[1:-1] if c.isspace() else c for c in symbol)
  return found.replace(' ', r'\x20') or EMPTY


def _byte_values(symbols):
  """The byte value of each symbol, perhaps in digits; () if they are none."""
  values = ()
  if len(symbols) > 10 and all(s.isascii() and s.isdigit() for s in symbols):
    values = tuple(map(int, symbols))
  elif all(len(s) == 1 and s.isascii() for s in symbols):
    values = tuple(ord(' ' if s == '_' else s) for s in symbols)
  return values if max(values, default=256) < 256 else ()
