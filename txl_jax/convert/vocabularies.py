"""Reads vocabularies of the published code bases; writes Hugging Face's.

Except for plain word lists, these files hold the original code's `Vocab`, or
its attributes: idx2sym, the symbols in order of token id; counter, the count of
each symbol; and lower_case.

  cache.pkl   a Corpus, pickled by the TensorFlow code in Python 2
  cache.pt    a Corpus, saved by torch.save in the PyTorch code or NVIDIA's
  *.pt        a checkpoint of NVIDIA's code, with a Vocab beside the weights
  vocab.pkl, vocab.bin   the tokenizer of Hugging Face

A model of Hugging Face may instead have subwords, in tokenizer.json. A Corpus
may also hold the tokens of its text; these are not read. The symbols of enwik8
are byte values, written as numbers; those of text8 are letters and _.
"""

import codecs
import contextlib
import dataclasses
import json
import math
import pathlib
from typing import TypeGuard

from txl_jax.convert.formats import torch_file
from txl_jax.data.vocabularies import AnyVocabulary, from_json
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import files, pickles
from txl_jax.program.errors import UserError, reason, shown
from txl_jax.runs import workdir

# Vocabulary files looked for beside weights of Hugging Face, in the order of
# NAMES; the first is our own.
_BPE, _LIST = 'tokenizer.json', 'vocab.txt'
NAMES = workdir.VOCABULARY, 'vocab.bin', 'vocab.pkl', _BPE, _LIST
TOKENIZER = 'tokenizer_config.json'
EMPTY = r'\N{EMPTY}'  # stands for the empty symbol
_LARGEST = 1 << 25  # bytes of a word list
_EOS, _UNK = ('<eos>', '<S>'), ('<unk>', '<UNK>')


def of_ids(vocab_size: int) -> Words:
  """The words 0, 1, 2…: a text is token ids separated by spaces."""
  return Words(tuple(map(str, range(vocab_size))))


def of_folder(
  folder: pathlib.Path, size: int
) -> tuple[AnyVocabulary | None, tuple[str, ...]]:
  """The vocabulary beside weights of Hugging Face, or None; and warnings.

  A warning names an unsupported tokenizer, such as WordPiece, whose vocab.txt
  is not a list of words. UserError: see `read`.
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
  warning = f'{tokenizer}: {kind:.80} is not supported'
  return None, () if of_words else (warning,)


def read(path: files.AnyPath, size: int | None = None) -> AnyVocabulary:
  """Reads a vocabulary: JSON, a list of words in .txt, or a pickle.

  JSON is our vocabulary.json or a tokenizer.json. Tokens added to a tokenizer
  of Hugging Face are kept if their ids are below `size`, the vocabulary size of
  the model.

  A pickle gives `Bytes` if all symbols stand for bytes, as in enwik8 and text8,
  and `Words` otherwise. White space inside a word, such as a no-break space, at
  which Python 2 did not split, is escaped, and the empty symbol becomes EMPTY:
  no text contains either. Symbols in UTF-8 that were decoded as Latin-1, as in
  all published files of Hugging Face, are repaired.

  Raises UserError if the file has no vocabulary, is damaged, or names a class
  or function that no vocabulary needs.
  """
  path = pathlib.Path(path)
  try:
    if path.suffix == '.txt':
      data = files.read(path, largest=_LARGEST).removeprefix(codecs.BOM_UTF8)
      return _with_roles(Words.from_list(data, f'{path}'))
    if path.suffix == '.json':
      return _of_json(files.read_json(path), size)
    return _checked(*_within(_loaded(path)), size)
  except torch_file.ODD as e:
    raise UserError(f'{path} is not a supported vocabulary: {reason(e)}') from e


def within(path: files.AnyPath) -> AnyVocabulary | None:
  """The vocabulary stored in a checkpoint, or None."""
  has_vocab = pickles.fields(_loaded(path)).get('vocab') is not None
  return read(path) if has_vocab else None


def has_tokenizer(vocabulary: AnyVocabulary) -> TypeGuard[Words]:
  """Whether the tokenizer of Hugging Face supports a vocabulary."""
  return isinstance(vocabulary, Words) and vocabulary.unk in _UNK


def write(folder: pathlib.Path, vocabulary: Words) -> None:
  """Writes the files of TransfoXLTokenizer.from_pretrained.

  These are tokenizer_config.json and vocab.txt, a word and any count per line.
  A vocab.pkl would not do: transformers 4.35 can encode with it, but not
  decode. `has_tokenizer` must be true of the vocabulary.
  """
  config = {
    'tokenizer_class': 'TransfoXLTokenizer',
    'lower_case': vocabulary.lower,
    'unk_token': vocabulary.unk,
    # Without an end-of-line word: the default, which gets the id of <unk>.
    'eos_token': vocabulary.eos or '<eos>',
    'additional_special_tokens': [],
  }
  (folder / 'vocab.txt').write_bytes(vocabulary.text())
  files.write(folder / TOKENIZER, json.dumps(config, indent=2))


def _loaded(path):
  """The object in a pickle or a file of torch.save."""
  data = files.mapped(path)
  if torch_file.is_torch(data):
    return torch_file.load(path)[0]
  return pickles.loads(data, f'{path}')[0]


def _within(root):
  """Attributes of the vocabulary in an object, and whether to repair its words.

  The object is the vocabulary itself, a corpus or a checkpoint. Only bare
  attributes, as Hugging Face saves them, may need a repair.
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
  """The symbols of {symbol: id} by id; ValueError if an id is missing."""
  symbols = sorted(ids, key=ids.get)
  for i, symbol in enumerate(symbols):
    if ids[symbol] != i:
      found = f'{shown(symbol)} has the id {shown(ids[symbol])}, expected {i}'
      raise ValueError(f'its ids are not 0, 1, 2 and so on: {found}')
  return symbols


def _checked(fields, repair, size):
  """The vocabulary with these attributes; ValueError if they are invalid.

  Counts are dropped if most of them are missing.
  """
  # transformers 4.35 saves an empty idx2sym if it has loaded a vocab.pkl.
  symbols = fields['idx2sym'] or _by_ids(pickles.fields(fields.get('sym2idx')))
  if type(symbols) is not list or any(type(s) is not str for s in symbols):
    raise ValueError('idx2sym is not a list of symbols')
  counter = pickles.fields(fields.get('counter'))
  counts = tuple(counter.get(s, 0) for s in symbols)
  if any(type(n) is not int for n in counts):
    raise ValueError('a count is not a whole number')
  if 2 * sum(map(bool, counts)) < len(counts):
    counts = ()
  symbols = _repaired(symbols) if repair else symbols
  # Renamed in transformers 4.34.
  names = '_added_tokens_encoder', 'added_tokens_encoder'
  added = next((pickles.fields(fields[x]) for x in names if x in fields), {})
  ids = {symbol: i for i, symbol in enumerate(symbols)}
  # transformers 4.35 numbers special tokens before build_vocab gives the same
  # ids to words. Models know the words.
  V = len(symbols)
  added = {x: i for x, i in added.items() if V <= i < (size or math.inf)}
  if len(ids) == len(symbols):  # none occurs twice
    symbols = _by_ids(added | ids)
    counts += (0,) * len(symbols[V:]) if counts else ()
  if values := _byte_values(symbols):
    # A vocabulary of enwik8 without byte 10: drop newlines from every text.
    dropped = symbols[0].isdigit() and 10 not in values
    return Bytes(values, counts, (10,) if dropped else ())
  words = tuple(map(_escaped, symbols))
  lower = bool(fields.get('lower_case'))
  return _with_roles(Words(words, counts, lower=lower))


def _with_roles(words):
  """The vocabulary with its end-of-line and unknown words set."""
  symbols = {*words.symbols}
  eos = next((s for s in _EOS if s in symbols), '')
  unk = next((s for s in _UNK if s in symbols), '')
  return dataclasses.replace(words, eos=eos, unk=unk)


def _repaired(symbols):
  """The symbols decoded as UTF-8, if all of them were decoded as Latin-1.

  Hugging Face's conversion from Python 2 did so (issue 271 of transformers).
  A correctly decoded list has words that, as Latin-1, are not valid UTF-8.
  """
  with contextlib.suppress(UnicodeError):
    return [s.encode('latin-1').decode('utf-8') for s in symbols]
  return symbols


def _escaped(symbol):
  """The symbol with white space replaced by Python's escapes."""
  escaped = ''.join(ascii(c)[1:-1] if c.isspace() else c for c in symbol)
  return escaped.replace(' ', r'\x20') or EMPTY


def _byte_values(symbols):
  """The byte value of each symbol; () if not all of them stand for bytes."""
  values = ()
  if len(symbols) > 10 and all(s.isascii() and s.isdigit() for s in symbols):
    values = tuple(map(int, symbols))
  elif all(len(s) == 1 and s.isascii() for s in symbols):
    values = tuple(ord(' ' if s == '_' else s) for s in symbols)
  return values if all(x < 256 for x in values) else ()
