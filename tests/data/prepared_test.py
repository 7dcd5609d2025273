import hashlib
import json
import os

import numpy as np
import pytest

from txl_jax.data import prepared
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words
from txl_jax.program.errors import UserError

VOCABULARY = Bytes((97, 98, 99), (5, 4, 3), dropped=(10,))


def write(folder, dtype='uint8', **changes):
  """A corpus of three symbols, written by hand."""
  folder.mkdir(parents=True)
  splits, digests = {}, []
  for seed, (split, n) in enumerate(
    {'train': 100, 'validation': 20, 'test': 10}.items()
  ):
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
  assert [data.manifest['splits'][s]['bytes'] for s in prepared.SPLITS] == [
    100,
    21,
    12,
  ]
  for seed, (split, n) in enumerate(zip(prepared.SPLITS, [100, 20, 10])):
    tokens = data.tokens(split)
    assert tokens.dtype == dtype
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
  with pytest.raises(
    UserError, match=r'1 bytes missing .* of 2, .* <unk>: 98$'
  ):
    data.encoded_with(Bytes((97, 99)))
  with pytest.raises(UserError, match="bytes, the model's vocabulary of words"):
    data.encoded_with(Words(('a', 'b', 'c')))


def test_a_byte_that_does_not_occur_is_not_needed(tmp_path, monkeypatch):
  data = prepared.load(write(tmp_path / 'a'))
  ones = np.ones(20, np.uint8)
  monkeypatch.setattr(prepared.np, 'memmap', lambda *_: ones)
  found = data.encoded_with(Bytes((1, VOCABULARY.symbols[1])))
  assert {*found.tokens('train').tolist()} == {1}


def test_words_of_the_vocabulary_of_another_model():
  ours = Words(('<eos>', 'The', 'unit', '<unk>', 'new'), (), '<eos>', '<unk>')
  theirs = Words(('unit', 'UNK', '.', 'the'), (), '.', 'UNK', lower=True)
  assert theirs.map_ids(ours).tolist() == [2, 3, 0, 1, -1]
  assert ours.map_ids(theirs).tolist() == [2, 3, 0, -1]


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
  data[7] ^= 1
  path.write_bytes(data)
  with pytest.raises(UserError) as error:
    prepared.load(path.parent)
  message = str(error.value)
  assert str(path) in message
  assert hashlib.sha256(data).hexdigest() in message
  assert '--force' in message
  assert '\n' not in message


@pytest.mark.parametrize('change', [-1, 1])
def test_wrong_length_is_found(tmp_path, change):
  path = write(tmp_path / 'a') / 'test.bin'
  os.truncate(path, 10 + change)
  found = rf'test\.bin has {10 + change} bytes, expected 10'
  with pytest.raises(UserError, match=found):
    prepared.load(path.parent)


@pytest.mark.parametrize('name', ['train.bin', 'manifest.json'])
def test_missing_file_is_found(tmp_path, name):
  path = write(tmp_path / 'a') / name
  path.unlink()
  with pytest.raises(UserError, match=f'{name}.*: No such file'):
    prepared.load(path.parent)


@pytest.mark.parametrize(
  'changes, found',
  [
    ({'format': 2}, 'format 2, this version reads 1'),
    ({'digest': '0'}, 'digest does not match'),
    ({'vocabulary': VOCABULARY.to_json() | {'symbols': [97, 99, 98]}}, 'match'),
    ({'vocabulary': {'kind': 'bytes'}}, 'symbols'),
    ({'vocabulary': None}, 'NoneType'),
    ({'splits': {}}, 'train'),
  ],
)
def test_manifest_that_is_not_as_written(tmp_path, changes, found):
  folder = write(tmp_path / 'a', **changes)
  with pytest.raises(UserError, match=found) as error:
    prepared.load(folder)
  assert str(folder / 'manifest.json') in str(error.value)


@pytest.mark.parametrize(
  'text', ['', '{"format": 1', '[]', '\udcff', '[' * 100_000, '{"a":' * 100_000]
)
def test_manifest_that_is_no_json_object(tmp_path, text):
  path = write(tmp_path / 'a') / 'manifest.json'
  path.write_bytes(text.encode(errors='surrogateescape'))
  with pytest.raises(UserError, match=r'manifest\.json'):
    prepared.load(path.parent)


def test_sentences_of_another_size(tmp_path):
  folder = write(tmp_path / 'a')
  data = np.array([0, 3, 10], np.int64).tobytes()
  (folder / 'test.sentences.bin').write_bytes(data)
  path = folder / 'manifest.json'
  manifest = json.loads(path.read_text())
  entry = manifest['splits']['test']
  entry |= {
    'sentences': 2,
    'sentences_sha256': hashlib.sha256(data).hexdigest(),
  }
  path.write_text(json.dumps(manifest))
  np.testing.assert_array_equal(
    prepared.load(folder).sentences('test'), [0, 3, 10]
  )
  entry['sentences'] = 3
  path.write_text(json.dumps(manifest))
  with pytest.raises(UserError, match=r'has 24 bytes, expected 32'):
    prepared.load(folder)


@pytest.mark.parametrize(
  'size, dtype',
  [
    (1, 'uint8'),
    (256, 'uint8'),
    (257, 'uint16'),
    (65_536, 'uint16'),
    (65_537, 'int32'),
    (267_735, 'int32'),
  ],
)
def test_token_dtype_is_the_smallest(size, dtype):
  assert prepared.token_dtype(size) == dtype
