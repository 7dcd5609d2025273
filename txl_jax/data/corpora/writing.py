"""Tokenises a corpus and writes its tokens, block by block."""

import collections
import dataclasses
import functools
import itertools
import pathlib
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from txl_jax.data import sentences
from txl_jax.data.corpora import id_files, local
from txl_jax.data.corpora.local import Split, Splits
from txl_jax.data.data_config import LOCAL, SUBWORDS, Data
from txl_jax.data.prepared import SENTENCES, TOKENS, token_dtype
from txl_jax.data.vocabularies import AnyVocabulary, subwords, words
from txl_jax.data.vocabularies.bytes import Bytes, count_bytes
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.program import files
from txl_jax.program.errors import UserError

_BLOCK = 1 << 20  # bytes encoded as subwords at once
_print_once = functools.cache(print)


def write(
  config: Data,
  splits: Splits,
  folder: pathlib.Path,
  listed: AnyVocabulary | None,
) -> tuple[AnyVocabulary, dict]:
  """Writes token ids and starts of sentences into a folder.

  Returns the vocabulary (`listed`, or else counted or learned from the text)
  and the manifest entry for each split. UserError if the vocabulary is empty,
  or a byte or word has no token id.
  """
  if listed is not None:
    vocabulary = listed
  elif config.is_word_level:
    vocabulary = _count(config, splits)
  elif config.is_id_level:
    every = itertools.chain.from_iterable(split() for split in splits.values())
    largest = max((_ids(x).max() for x in every), default=0)
    vocabulary = Ids.of_names({}, int(largest) + 1)
  elif config.is_subword_level:
    vocabulary = _learn(config, splits['train'])
  elif config.corpus in LOCAL or config.alphabet == 'bytes':
    vocabulary = dataclasses.replace(Bytes.all_bytes(), raw=config.raw)
  else:  # the bytes that occur
    text = itertools.chain.from_iterable(split() for split in splits.values())
    dropped = b'\n' if config.newline == 'drop' else b''
    vocabulary = Bytes.from_counts(count_bytes(text), dropped)
  if config.ends_documents and not config.is_word_level:
    vocabulary = vocabulary.of_documents()
  encode = _words if config.is_word_level else _pieces
  entries = {}
  for name, split in splits.items():
    entry = entries[name] = {'bytes': 0}
    ids = encode(config, split, vocabulary, entry)
    entry |= _write_tokens(config, name, folder, vocabulary, ids)
  if config.is_word_level and config.ends_documents:
    vocabulary = vocabulary.of_documents()
  return vocabulary, entries


def _pieces(config: Data, split, vocabulary, entry) -> Iterator[np.ndarray]:
  """Yields token ids at any level but word; updates the manifest entry."""
  end = np.array([vocabulary.eos_id or 0], np.int32)
  documents = config.ends_documents
  texts = local.each_document(config, split) if documents else [split()]
  for chunks in texts:
    if config.is_subword_level:
      chunks = subwords.blocks(chunks, _BLOCK, -1 in vocabulary.of_bytes)
    for chunk in chunks:
      if config.is_id_level:
        yield _ids(chunk)
        continue
      name = config.path or config.corpus
      if line := vocabulary.unknown(chunk, name):
        _print_once(f'warning: {line}', file=sys.stderr)
      chunk = vocabulary.normal(chunk)
      entry['bytes'] += len(chunk)
      yield vocabulary.encode(chunk, name)
    if documents:
      yield end


def _ids(chunk):
  return np.frombuffer(chunk, id_files.DTYPE)


def _words(config: Data, split, vocabulary, entry) -> Iterator[np.ndarray]:
  """Yields token ids of words; updates the manifest entry."""
  entry['unknown'] = 0
  for block in words.blocks(_lines(config, split, entry)):
    ids = vocabulary.encode(block, config.path or config.corpus)
    if vocabulary.unk_id is not None:
      entry['unknown'] += int(np.count_nonzero(ids == vocabulary.unk_id))
    yield ids


def _lines(config: Data, split, entry) -> Iterator[bytes]:
  """Yields a text of words in chunks, and counts its bytes in the entry.

  The last line of a local file gets a newline if it lacks one. A document
  becomes one line, with spaces in place of newlines.
  """
  whole = config.ends_documents
  if whole:
    units = ((True, x) for x in local.each_document(config, split))
  else:
    units = ((x.stop == x.size, x()) for x in split.parts)
  for ends, chunks in units:
    last = b' ' if whole else b''
    for chunk in chunks:
      entry['bytes'] += len(chunk)
      if whole:
        chunk = chunk.replace(b'\n', b' ')
      last = chunk[-1:] or last
      yield chunk
    if ends and last not in (b'', b'\n'):
      yield b'\n'


def _write_tokens(config: Data, name, folder, vocabulary, parts) -> dict:
  """Writes token ids, and starts of sentences or documents."""
  file = folder / TOKENS.format(name)
  dtype = token_dtype(len(vocabulary))
  if config.corpus != 'lm1b' and not config.ends_documents:
    size = _write(file, dtype, parts)
    return {'tokens': size, 'sha256': files.sha256(file)}
  starts = folder / SENTENCES.format(name)
  laid_out = sentences.lay_out(parts, vocabulary.start, config.boundaries)
  with files.naming(starts), starts.open('wb') as f:

    def ids():
      for ids, where in laid_out:
        f.write(where.astype(np.int64).tobytes())
        yield ids

    size = _write(file, dtype, ids())
  return {
    'tokens': size,
    'sha256': files.sha256(file),
    'sentences': starts.stat().st_size // np.dtype(np.int64).itemsize - 1,
    'sentences_sha256': files.sha256(starts),
  }


def _write(path: pathlib.Path, dtype: str, parts: Iterable[np.ndarray]) -> int:
  """Writes arrays to a file; returns the total number of elements."""
  with files.naming(path), path.open('wb') as f:
    for part in parts:
      f.write(part.astype(dtype).tobytes())
  return path.stat().st_size // np.dtype(dtype).itemsize


def _learn(config: Data, train: Split) -> subwords.Subwords:
  """Learns subwords from the text alone, without the <eos> of documents."""
  most = config.max_size or SUBWORDS
  if not config.ends_documents:
    return subwords.learn(train(), most)
  each = local.each_document(config, train)
  return subwords.learn(itertools.chain.from_iterable(each), most - 1)


def _count(config: Data, splits: Splits) -> words.Words:
  """Counts words of the training split; of all splits for Penn Treebank."""
  ptb = config.corpus == 'ptb'
  eos = '<eos>' if config.eos else ''
  lower = config.lower or ptb
  counts = collections.Counter()
  for name in splits if ptb else ('train',):
    for block in words.blocks(_lines(config, splits[name], {'bytes': 0})):
      counts.update(words.split(block, eos, lower))
  least, most = config.min_count, config.max_size
  if max(counts.values(), default=0) < least:
    path = config.path or config.corpus
    split = 'the training split'
    if not counts:
      raise UserError(f'{path}: {split} has no words; every split needs some')
    few = f'no word occurs {least} times in {split}'
    raise UserError(f'{path}: {few}; lower data.min_count')
  unk = '<unk>' if config.unk or '<unk>' in counts else ''
  return words.Words.from_counts(
    counts, eos=eos, unk=unk, lower=lower, min_count=least, max_size=most
  )
