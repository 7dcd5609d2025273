"""Subwords: nothing is lost, and the same text gives the same ones."""

import functools
import hashlib
import io
import json
import subprocess
import sys
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers

from tests import programs
from tests.refusing import refused
from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import offsets, subwords
from txl_jax.data.vocabularies.subwords import Subwords

TEXT = (
  'The memory of a ségment is read by the next ségment.\n\n'
  "  It wasn't the 1st, nor the 2nd: 漢字 \U0001d11e!\n"
) * 40
some = hypothesis.settings(
  max_examples=80, deadline=None, derandomize=True, database=None
)
pieces = st.sampled_from([*'aébt 漢\n\t.1\u3000', ' the', ' \n', '  '])
texts = st.lists(pieces, max_size=40).map(''.join)


@functools.cache
def learned():
  return subwords.learn([TEXT.encode()], 300)


@functools.cache
def other():
  """One that merges newlines, as that of GPT-2 does."""
  made = tokenizers.Tokenizer(tokenizers.models.BPE())
  levels = tokenizers.pre_tokenizers.ByteLevel
  made.pre_tokenizer = levels(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  made.train_from_iterator(
    [TEXT],
    tokenizers.trainers.BpeTrainer(
      vocab_size=320,
      initial_alphabet=levels.alphabet(),
      special_tokens=['<|endoftext|>'],
      show_progress=False,
    ),
  )
  return Subwords.from_fields(json.loads(made.to_str()))


@pytest.mark.parametrize('make', [learned, other])
@some
@hypothesis.given(texts, st.binary(max_size=5), texts)
def test_every_text_comes_back(make, first, odd, last):
  data = first.encode() + odd + last.encode()
  found = make()
  ids = found.encode(data, 'it')
  assert ids.dtype == np.int32 and found.decode(ids) == data
  decoder = found.decoder()
  assert b''.join(decoder.push([i]) for i in ids) == data
  spans = offsets.of_tokens(found, data, ids)
  for i, (start, end) in zip(ids, spans):
    assert found.symbols[i] == data[start:end]
  assert spans.shape == (len(ids), 2) and spans.dtype == np.int64


@pytest.mark.parametrize('make', [learned, other])
@some
@hypothesis.given(texts, st.integers(1, 20))
def test_blocks_do_not_matter(make, text, size):
  data, found = text.encode(), make()
  whole = next(iter(found._encoder([text])))
  chunks = [data[i : i + 7] for i in range(0, len(data), 7)]
  assert b''.join(subwords.blocks(chunks, size)) == data
  parts = [*subwords.blocks([data], size)]
  ids = [found.encode(part, 'it').tolist() for part in parts]
  assert [i for part in ids for i in part] == whole
  assert found.encode(data, 'it').tolist() == whole


def test_text_without_a_place_to_cut_is_cut_anywhere():
  data = '漢字'.encode() * 800_000
  chunks = [data[i : i + (1 << 20)] for i in range(0, len(data), 1 << 20)]
  parts = [*subwords.blocks(chunks, 99)]
  assert b''.join(parts) == data and len(parts) > 1
  assert max(map(len, parts)) == 1 << 22


def test_a_block_may_end_where_a_chunk_ends():
  parts = [*subwords.blocks([b'abc ', b'de f'], 2)]
  assert parts == [b'abc', b' de', b' f']


def test_text_without_white_space_takes_linear_time():
  """The square of these lengths would be minutes."""
  letters = np.random.default_rng(0).choice([*b'ACGT'], 1 << 21)
  data = letters.astype(np.uint8).tobytes()
  begin = time.process_time()
  chunks = [data[i : i + 500] for i in range(0, len(data), 500)]
  assert b''.join(subwords.blocks(chunks, 99)) == data
  strings = [*subwords._strings([data])]
  assert ''.join(strings).encode() == data and max(map(len, strings)) == 256
  found = subwords.learn([data[:200_000]], 1000)
  assert len(found) == 1000 and {*b''.join(found.symbols[256:])} == {*b'ACGT'}
  assert time.process_time() - begin < 20
  words = 'x' * 300 + ' ' + 'y' * 255 + '\n'
  assert [*subwords._strings([words.encode()])] == ['x' * 256, words[256:]]


@pytest.mark.thorough
def test_what_is_learned_is_always_the_same():
  code = (
    'import hashlib, sys\n'
    'from txl_jax.data.vocabularies import subwords\n'
    'text = sys.stdin.buffer.read()\n'
    'chunks = [text[i : i + 1000] for i in range(0, len(text), 1000)]\n'
    'print(subwords.learn(chunks, 300).sha256())'
  )
  digests = {learned().sha256()}
  for threads in ('1', '3'):
    done = subprocess.run(
      [sys.executable, '-c', code],
      input=TEXT.encode(),
      capture_output=True,
      env=programs.environment() | {'RAYON_NUM_THREADS': threads},
      check=True,
    )
    digests.add(done.stdout.decode().strip())
  assert len(digests) == 1
  listed = json.dumps([x.decode('latin-1') for x in learned().symbols])
  assert hashlib.sha256(listed.encode()).hexdigest()[:16] == '33a6246d04a6c3c9'


def test_what_is_learned():
  """By hand: the most frequent pair first, and a newline stays alone."""
  found = subwords.learn([b'ab ab abc\n\n' * 9], 259)
  assert len(found) == 259 and {*map(len, found.symbols[:256])} == {1}
  assert found.symbols[256:] == (b'ab', b' ab', b' abc')
  assert found.line_end == found.symbols.index(b'\n')
  ids = found.encode(b'ab abc\n\n', 'it')
  assert [found.symbols[i] for i in ids] == [b'ab', b' abc', b'\n', b'\n']
  assert found.sizes[ids].tolist() == [2, 4, 1, 1]
  assert (found.unk_id, found.eos_id, found.unit) == (None, None, 'ppl')
  assert found.start == found.line_end
  # What occurs once is not merged.
  assert subwords.learn([b'xy xy\nzw\n'], 300).symbols[256:] == (b'xy',)


@pytest.mark.parametrize('terminal', [True, False])
@pytest.mark.parametrize('rich', [True, False])
def test_progress_on_a_terminal(terminal, rich, monkeypatch):
  asked, make = [], tokenizers.trainers.BpeTrainer

  def trainer(show_progress, **options):
    asked.append(show_progress)
    return make(show_progress=False, **options)

  kind = type('Drawn', (io.TextIOWrapper,), {}) if rich else io.TextIOWrapper
  stderr = kind(io.BytesIO())
  stderr.isatty = lambda: terminal
  monkeypatch.setattr(tokenizers.trainers, 'BpeTrainer', trainer)
  monkeypatch.setattr(sys, 'stderr', stderr)
  subwords.learn([b'ab'], 257)
  assert asked == [terminal and not rich]


def test_a_line_ends_only_with_a_newline_of_its_own():
  assert any(len(x) > 1 and b'\n' in x for x in other().symbols)
  assert other().line_end is None
  assert other().symbols[other().start] == b'\n'
  assert other().symbols[0] == b'<|endoftext|>'


@pytest.mark.parametrize('make', [learned, other])
def test_json_and_back(make):
  found = make()
  again = vocabularies.from_json(json.loads(json.dumps(found.to_json())))
  assert again == found and again.sha256() == found.sha256()
  assert repr(found) == f'Subwords({len(found)} subwords)'
  for sha256 in '', 'g':  # below and above all digests
    with pytest.raises(ValueError, match='expected'):
      entry = found.entry() | {'sha256': sha256}
      Subwords.from_entry(entry, found.tokenizer.encode())
  tokenizers.Tokenizer.from_str(json.dumps(found.to_json()['tokenizer']))


def changed(**fields):
  return json.loads(learned().tokenizer) | fields


def with_model(**fields):
  model = json.loads(learned().tokenizer)['model']
  return changed(model=model | fields)


@pytest.mark.parametrize(
  'fields, found',
  [
    (with_model(vocab={'漢': 0}), "'漢'"),
    (with_model(vocab={'a': 1}), 'its ids are not 0, 1, 2 and so on: 0 has'),
    (with_model(vocab={'a': 0, 'b': 2}), ' and so on: 1 has no name'),
    (with_model(vocab={'a': 'b'}), ' and so on: 0 has no name'),
    (with_model(vocab={}), ' and so on: 0 has no name'),
    (with_model(vocab={'': 0}), ' and so on: 0 has no name'),
    (with_model(vocab=[1]), 'not a tokenizer.json: '),
    ({}, "not a tokenizer.json: KeyError('model')"),
    ([], 'not a tokenizer.json: '),
    (None, 'not a tokenizer.json: '),
    (changed(added_tokens=[{'id': 300, 'content': 'a'}]), 'twice'),
  ],
)
def test_what_is_no_tokenizer(fields, found):
  with pytest.raises(ValueError, match=r'^[^\n]*$') as error:
    Subwords.from_fields(fields)
  assert found in str(error.value)


def test_a_tokenizer_that_changes_the_text_is_refused():
  of_words = {'type': 'WordPiece', 'prefix': '##', 'cleanup': True}
  for decoder in of_words, {'type': 'BPEDecoder', 'suffix': '</w>'}:
    found = Subwords.from_fields(changed(decoder=decoder))
    said = refused(found.encode, b'the memory', 'it')
    assert 'it: decoding the tokens does not reproduce' in said
  found = Subwords.from_fields(with_model(vocab={'a': 0}, merges=[]))
  assert found.encode(b'aa', 'it').tolist() == [0, 0] and found.start == 0
  for text in (b'ab', b'a\xff'):
    assert 'it: decoding ' in refused(found.encode, text, 'it')
  panics = {'type': 'Precompiled', 'precompiled_charsmap': 'AAAA'}
  for bad in with_model(merges=[['no', 'such']]), changed(normalizer=panics):
    said = refused(Subwords.from_fields(bad).encode, b'a', 'it')
    assert 'it: the tokenizer cannot be used: ' in said


@pytest.mark.parametrize('dropout', [0.5, 1.0])
def test_dropout_is_off(dropout):
  """It would encode the same text in another way each time."""
  found = Subwords.from_fields(with_model(dropout=dropout))
  assert json.loads(found.tokenizer)['model']['dropout'] == dropout
  data = TEXT.encode()
  expected = learned().encode(data, 'it')
  assert len(expected) < len(data)
  for _ in range(2):
    np.testing.assert_array_equal(found.encode(data, 'it'), expected)


def test_the_length_of_a_text_does_not_matter():
  """Truncation and padding, as they are saved with models, are off."""
  truncation = {'direction': 'Right', 'max_length': 4, 'stride': 0}
  padding = {'strategy': {'Fixed': 4000}, 'direction': 'Right', 'pad_id': 0}
  padding |= {'pad_type_id': 0, 'pad_token': '!', 'pad_to_multiple_of': None}
  truncation['strategy'] = 'LongestFirst'
  fields = changed(truncation=truncation, padding=padding)
  found = Subwords.from_fields(fields)
  data = TEXT.encode()
  expected = learned().encode(data, 'it')
  np.testing.assert_array_equal(found.encode(data, 'it'), expected)


@pytest.mark.parametrize(
  'kind, more, kept, changed_text, message',
  [
    ('NFKC', {}, 'd\u00e9j\u00e0', 'de\u0301ja\u0300', r"'de\u0301ja\u0300'"),
    ('Lowercase', {}, 'the memory', 'The memory', "'The memory' becomes 'the"),
    (
      'Sequence',
      {'normalizers': [{'type': 'NFKC'}, {'type': 'Lowercase'}]},
      'the m\u00e9mory',
      'the Memory',
      "'the Memory' becomes 'the memory'",
    ),
    (
      'Lowercase',
      {},
      'x',
      f'{"x" * 30}A{"y" * 30}',
      f"'{'x' * 20}A{'y' * 19}' becomes '{'x' * 20}a{'y' * 19}'",
    ),
    ('Strip', {'strip_left': True, 'strip_right': True}, 'a b', ' a', "'a'"),
  ],
)
def test_a_normaliser(kind, more, kept, changed_text, message):
  """It may leave a text as it is; other texts are refused."""
  found = Subwords.from_fields(changed(normalizer={'type': kind, **more}))
  ids = found.encode(kept.encode(), 'it')
  np.testing.assert_array_equal(ids, learned().encode(kept.encode(), 'it'))
  said = refused(found.encode, changed_text.encode(), 'it')
  assert said.startswith('it: ') and message in said
  kinds = [x['type'] for x in more.get('normalizers', [{'type': kind}])]
  assert f'(normaliser: {", ".join(kinds)}); allowed: ' in said


# The beginnings of files that people have beside a tokenizer.json.
OTHERS = {
  'spm.model': (b'\n\x0e\n\x05<unk>\x15\x00\x00', 'sentencepiece_processor'),
  'gpt2.tiktoken': (b'IQ== 1\nIg== 2\nIw== 3\n', 'its ids are not 0, 1, 2 '),
  'words.txt': (b'the 10\nof 9\n', 'padding'),
  'vocab.json': (b'{"!": 0, "\\"": 1}', 'it is not a tokenizer.json: KeyError'),
  'merges.txt': (b'#version: 0.2\n\xc4\xa0 t\n', 'it is not valid JSON: '),
  'special_tokens_map.json': (b'{"eos_token": "x"}', "KeyError('model'); "),
  'list.json': (b'["a", "b"]', 'it holds a list, not a JSON object; '),
  'deep.json': (b'[' * 10**5, 'it is not valid JSON: '),
  'empty.json': (b'', 'it is not valid JSON: '),
}


@pytest.mark.parametrize('name', OTHERS)
def test_files_of_other_kinds(name):
  data, found = OTHERS[name]
  said = refused(Subwords.from_file, data, 'x')
  assert said.startswith('x: ') and len(said) < 304 and found in said
  assert said.endswith(
    "; allowed: a tokenizer.json, as transformers' AutoTokenizer."
    'save_pretrained writes it, a .model of SentencePiece, or a .tiktoken'
  )


@pytest.mark.parametrize('make', [learned, other])
def test_files_of_tokenizers_and_of_runs(make):
  for fields in json.loads(make().tokenizer), make().to_json():
    for indent in None, 2:  # the first line may be any
      data = json.dumps(fields, indent=indent).encode()
      assert Subwords.from_file(b'\n' + data, 'x') == make()


def test_without_the_library(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  found = Subwords.from_fields(json.loads(learned().tokenizer))
  assert found.decode([found.symbols.index(b'a')]) == b'a'
  for call in (found.encode, b'a', 'it'), (subwords.learn, [], 300):
    assert refused(*call) == (
      "data.level=subword needs tokenizers; run: pip install 'txl_jax[text]'"
    )
