import hashlib
import json
import os

import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.data import prepared
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words

SIZES = {'train': 100, 'validation': 20, 'test': 10}
VOCABULARY = Bytes((97, 98, 99), (5, 4, 3), dropped=(10,))


def write(folder, dtype='uint8', **changes):
  """A corpus of three symbols, written by hand."""
  folder.mkdir(parents=True)
  splits, digests = {}, []
  for seed, (split, n) in enumerate(SIZES.items()):
    ids = np.random.default_rng(seed).integers(0, 3, n).astype(dtype)
    (folder / f'{split}.bin').write_bytes(ids.tobytes())
    digests.append(hashlib.sha256(ids.tobytes()).hexdigest())
    splits[split] = {'tokens': n, 'bytes': n + seed, 'sha256': digests[-1]}
  vocabulary = VOCABULARY.to_json()
  fields = json.dumps([digests, vocabulary], sort_keys=True)
  manifest = {
    'format': 1,
    'corpus': 'text',
    'folder': folder.name,
    'options': {'newline': 'keep'},
    'source': {},
    'vocabulary': vocabulary,
    'dtype': dtype,
    'splits': splits,
    'digest': hashlib.sha256(fields.encode()).hexdigest(),
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest | changes))
  return folder


@pytest.mark.parametrize('dtype', ['uint8', 'uint16', 'int32'])
def test_load_gives_what_was_written(tmp_path, dtype):
  data = prepared.load(write(tmp_path / 'text-book-1', dtype))
  assert data.name == 'text-book-1'
  assert data.folder == tmp_path / 'text-book-1'
  assert data.vocabulary == VOCABULARY
  assert data.manifest['corpus'] == 'text'
  for seed, (split, n) in enumerate(SIZES.items()):
    tokens = data.tokens(split)
    assert tokens.dtype == dtype and len(data.token_stream(split)) == n
    assert data.manifest['splits'][split]['bytes'] == n + seed
    expected = np.random.default_rng(seed).integers(0, 3, n)
    np.testing.assert_array_equal(tokens, expected)


def test_tokens_are_a_read_only_map(tmp_path):
  tokens = prepared.load(write(tmp_path / 'a')).tokens('train')
  assert isinstance(tokens, np.memmap)
  with pytest.raises(ValueError, match='read-only'):
    tokens[0] = 1


def test_token_ids_of_a_vocabulary_in_another_order(tmp_path):
  data = prepared.load(write(tmp_path / 'c'))
  other = Bytes((99, 97, 98))
  found = data.ordered_like(other)
  assert found.vocabulary == other and found.name == data.name
  assert found.digest != data.digest == prepared.load(data.folder).digest
  assert found.digest == data.ordered_like(other).digest
  for split in prepared.SPLITS:
    tokens = found.tokens(split)
    assert tokens.dtype == np.uint8
    assert other.decode(tokens) == VOCABULARY.decode(data.tokens(split))
  # Of the same order, and of other symbols.
  for same in Bytes(VOCABULARY.symbols), Bytes((97, 98, 100)):
    assert data.ordered_like(same) is data


def test_bytes_of_the_vocabulary_of_another_model(tmp_path):
  data = prepared.load(write(tmp_path / 'a'))
  other = Bytes((10, 99, 97, 32, 98))
  found = data.encoded_with(other)
  assert found.vocabulary == other
  for split in prepared.SPLITS:
    expected = VOCABULARY.decode(data.tokens(split))
    assert other.decode(found.tokens(split)) == expected
  # Other symbols, in which this text has the same token ids.
  same = data.encoded_with(Bytes((33, 99, 97, 34, 98)))
  assert len({data.digest, found.digest, same.digest}) == 3
  assert found.digest == data.encoded_with(other).digest
  assert data.encoded_with(VOCABULARY) is data
  said = refused(data.encoded_with, Bytes((97, 99)))
  assert '1 bytes missing ' in said and ' of 2, ' in said
  assert said.endswith(' <unk>: 98')
  said = refused(data.encoded_with, Words(('a', 'b', 'c')))
  assert "bytes, the model's vocabulary of words" in said
  words = prepared.Prepared(tmp_path, data.manifest, Words(('a',)))
  said = refused(words.encoded_with, VOCABULARY)
  assert "words, the model's vocabulary of bytes" in said


def test_a_byte_that_does_not_occur_is_not_needed(tmp_path, monkeypatch):
  data = prepared.load(write(tmp_path / 'a'))
  ones = np.ones(20, np.uint8)
  monkeypatch.setattr(prepared.np, 'memmap', lambda *_: ones)
  found = data.encoded_with(Bytes((1, VOCABULARY.symbols[1])))
  assert {*found.tokens('train').tolist()} == {1}


def test_shares_of_unknown_words(tmp_path):
  np.array([1, 0, 1, 2, 1], np.uint8).tofile(tmp_path / 'train.bin')
  manifest = {'folder': 'a', 'dtype': 'uint8'}
  ours = prepared.Prepared(tmp_path, manifest, Words(('a', 'b', 'c')))
  found = ours.encoded_with(Words(('<unk>', 'c', 'a'), unk='<unk>'))
  assert found.tokens('train').tolist() == [0, 2, 0, 1, 0]
  assert found.unknown_line(ours, 'train') == (
    'with the vocabulary of the model, 60.00% of the train tokens are <unk> '
    "(0.00% with the corpus's own vocabulary)"
  )
  assert ours.unknown_line(found, 'train') == ''


def test_the_eos_of_lines_and_that_of_documents(tmp_path):
  lines = Words(('a', '<eos>'), eos='<eos>')
  options = {'documents': 'file'}
  for words, kept, other, trained in (
    (lines, {}, lines.of_documents(), 'documents'),
    (lines.of_documents(), options, lines, 'lines or one text'),
  ):
    manifest = {'folder': 'a', 'options': kept}
    ours = prepared.Prepared(tmp_path, manifest, words)
    assert ours.encoded_with(words) is ours
    said = refused(ours.encoded_with, other)
    assert f'the model was trained on {trained}; allowed: ' in said


def test_words_of_the_vocabulary_of_another_model():
  ours = Words(('<eos>', 'The', 'unit', '<unk>', 'new'), (), '<eos>', '<unk>')
  theirs = Words(('unit', 'UNK', '.', 'the'), (), '.', 'UNK', lower=True)
  assert theirs.map_ids(ours).tolist() == [2, 3, 0, 1, -1]
  assert ours.map_ids(theirs).tolist() == [2, 3, 0, -1]
  plain = Words(('unit', 'The'))
  assert plain.map_ids(ours).tolist() == [-1, 1, 0, -1, -1]
  assert ours.map_ids(plain).tolist() == [2, 1]


def test_digest_tells_tokens_and_vocabulary_apart():
  digests = {split: {'sha256': '00'} for split in prepared.SPLITS}
  seen = {
    prepared.digest_of(digests, VOCABULARY),
    prepared.digest_of(digests | {'test': {'sha256': '01'}}, VOCABULARY),
    prepared.digest_of(digests | {'train': {'sha256': '01'}}, VOCABULARY),
    prepared.digest_of(digests, Bytes((98, 97, 99), (5, 4, 3), (10,))),
    prepared.digest_of(digests, Bytes((97, 98, 99), (5, 4, 3))),
  }
  assert len(seen) == 5


def test_flipped_bit_is_found(tmp_path):
  path = write(tmp_path / 'a') / 'validation.bin'
  data = bytearray(path.read_bytes())
  for at in range(7):  # digests below and above the right one
    data[at] ^= 1
    path.write_bytes(data)
    message = refused(prepared.load, path.parent)
    for part in f'{path}', hashlib.sha256(data).hexdigest(), '--force':
      assert part in message


@pytest.mark.parametrize('change', [-1, 1])
def test_wrong_length_is_found(tmp_path, change):
  path = write(tmp_path / 'a') / 'test.bin'
  os.truncate(path, 10 + change)
  found = f'test.bin has {10 + change} bytes, expected 10'
  assert found in refused(prepared.load, path.parent)


def test_a_split_without_tokens_is_refused(tmp_path, monkeypatch):
  monkeypatch.setitem(SIZES, 'test', 0)
  folder = write(tmp_path / 'a')
  assert 'test.bin has 0 bytes, exp' in refused(prepared.load, folder)


@pytest.mark.parametrize('name', ['train.bin', 'manifest.json'])
def test_missing_file_is_found(tmp_path, name):
  path = write(tmp_path / 'a') / name
  path.unlink()
  message = refused(prepared.load, path.parent)
  assert name in message and ': No such file' in message


@pytest.mark.parametrize(
  'changes, found',
  [
    ({'format': 0}, 'format 0, this version reads 1'),
    ({'format': 2}, 'format 2, this version reads 1'),
    ({'digest': '0'}, 'digest does not match'),
    ({'digest': 'g'}, 'digest does not match'),
    ({'vocabulary': VOCABULARY.to_json() | {'symbols': [97, 99, 98]}}, 'match'),
    ({'vocabulary': {'kind': 'bytes'}}, 'symbols'),
    ({'vocabulary': None}, 'NoneType'),
    ({'splits': {}}, 'train'),
  ],
)
def test_manifest_that_is_not_as_written(tmp_path, changes, found):
  folder = write(tmp_path / 'a', **changes)
  message = refused(prepared.load, folder)
  assert found in message and f'{folder}/manifest.json' in message


@pytest.mark.parametrize(
  'text', ['', '{"format": 1', '[]', '\udcff', '[' * 100_000, '{"a":' * 100_000]
)
def test_manifest_that_is_no_json_object(tmp_path, text):
  path = write(tmp_path / 'a') / 'manifest.json'
  path.write_bytes(text.encode(errors='surrogateescape'))
  assert 'manifest.json' in refused(prepared.load, path.parent)


def test_starts_of_sentences(tmp_path):
  folder = write(tmp_path / 'a')
  starts, path = folder / 'test.sentences.bin', folder / 'manifest.json'
  data = np.array([0, 3, 10], np.int64).tobytes()
  manifest = json.loads(path.read_text())
  digest = hashlib.sha256(data).hexdigest()
  manifest['splits']['test'] |= {'sentences': 2, 'sentences_sha256': digest}
  path.write_text(json.dumps(manifest))
  message = refused(prepared.load, folder)
  assert f'{starts}' in message and '--force' in message
  starts.write_bytes(data)
  assert prepared.load(folder).sentences('test').tolist() == [0, 3, 10]
  starts.write_bytes(data[:-8])
  assert 'has 16 bytes, expected 24' in refused(prepared.load, folder)
  starts.write_bytes(b'\1' + data[1:])
  assert f'{starts} has sha256 ' in refused(prepared.load, folder)


@pytest.mark.parametrize(
  'size, dtype',
  [
    (1, 'uint8'),
    (256, 'uint8'),
    (257, 'uint16'),
    (65_536, 'uint16'),
    (65_537, 'int32'),
  ],
)
def test_token_dtype_is_the_smallest(size, dtype):
  assert prepared.token_dtype(size) == dtype
