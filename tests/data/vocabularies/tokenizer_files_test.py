"""Tokenizers of every kind: a text comes back, or it is refused."""

import base64
import functools
import io
import json
import re
import sys

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests.data.corpora.asking import prepare
from tests.refusing import refused
from txl_jax.data import prepared, vocabularies
from txl_jax.data.vocabularies import offsets, subwords
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.evaluation import units
from txl_jax.experiment import texts

LINES = (
  'the memory of a ségment is read by the next ségment, and  it goes on\n'
  "it wasn't the 1st, nor the 2nd: the memory of a memory!\n"
) * 20
# The tokenizers that lose white space read text in one line.
WORDS = ' '.join(['the memory of a ségment is read by the next ségment'] * 40)


def trained(model, trainer, text, **parts):
  made = tokenizers.Tokenizer(model)
  for name, part in parts.items():
    setattr(made, name, part)
  made.train_from_iterator(text.splitlines(), trainer)
  return made.to_str().encode()


def llama(**parts):
  """A BPE with bytes for characters that it lacks, as that of Llama 2."""
  data = trained(
    models.BPE(unk_token='<unk>', byte_fallback=True, fuse_unk=True),
    trainers.BpeTrainer(
      vocab_size=340,
      special_tokens=['<unk>', '<s>', *(f'<0x{i:02X}>' for i in range(256))],
      show_progress=False,
    ),
    LINES,
    pre_tokenizer=pre_tokenizers.Metaspace(),
  )
  made = tokenizers.Tokenizer.from_str(data.decode())
  for name, part in parts.items():
    setattr(made, name, part)
  fields = json.loads(made.to_str())
  # Bytes are not special, as a decoder would drop them.
  fields['added_tokens'] = fields['added_tokens'][:2]
  return json.dumps(fields).encode()


def prepending():
  steps = [decoders.Replace('▁', ' '), decoders.ByteFallback()]
  steps += [decoders.Fuse(), decoders.Strip(' ', 1, 0)]
  return llama(
    normalizer=normalizers.Sequence(
      [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
    ),
    pre_tokenizer=None,
    decoder=decoders.Sequence(steps),
  )


def unigram():
  trainer = trainers.UnigramTrainer(
    vocab_size=60, unk_token='<unk>', special_tokens=['<unk>', '</s>'],
    initial_alphabet=['\n'], show_progress=False,
  )  # fmt: skip
  parts = pre_tokenizers.Metaspace(), decoders.Metaspace()
  return trained(
    models.Unigram(), trainer, LINES, pre_tokenizer=parts[0], decoder=parts[1]
  )


def word_piece():
  trainer = trainers.WordPieceTrainer(
    vocab_size=60, special_tokens=['[UNK]', '[CLS]'], show_progress=False
  )
  return trained(
    models.WordPiece(unk_token='[UNK]'),
    trainer,
    WORDS,
    normalizer=normalizers.BertNormalizer(lowercase=False, strip_accents=False),
    pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
    decoder=decoders.WordPiece(),
    post_processor=tokenizers.processors.BertProcessing(
      ('[UNK]', 0), ('[CLS]', 1)
    ),
  )


def word_level():
  trainer = trainers.WordLevelTrainer(
    special_tokens=['<unk>'], show_progress=False
  )
  return trained(
    models.WordLevel(unk_token='<unk>'),
    trainer,
    WORDS,
    pre_tokenizer=pre_tokenizers.WhitespaceSplit(),
  )


def nfc():
  levels = pre_tokenizers.ByteLevel(add_prefix_space=True)
  trainer = trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=levels.alphabet(), show_progress=False
  )
  return trained(
    models.BPE(),
    trainer,
    LINES,
    normalizer=normalizers.NFC(),
    pre_tokenizer=levels,
    decoder=decoders.ByteLevel(),
  )


def piece_model(**options):
  written = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES.splitlines()),
    model_writer=written,
    hard_vocab_limit=False,
    minloglevel=2,
    **{'normalization_rule_name': 'identity', **options},
  )
  return written.getvalue()


def piece_unigram():
  options = dict(model_type='unigram', user_defined_symbols=['\n'])
  return piece_model(vocab_size=60, **options)


def ranks():
  tokens = [bytes([i]) for i in range(256)]
  tokens += [b'th', b'the', b' the', b'me', b'mo', b'or', b' m', b'em', b'\n\n']
  lines = (b'%s %d\n' % (base64.b64encode(x), i) for i, x in enumerate(tokens))
  return b''.join(lines)


MAKERS = {
  'metaspace': functools.partial(
    llama,
    decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
  ),
  'prepending': prepending,
  'unigram': unigram,
  'word_piece': word_piece,
  'word_level': word_level,
  'nfc': nfc,
  'piece_bpe': functools.partial(
    piece_model, model_type='bpe', byte_fallback=True, vocab_size=320
  ),
  'piece_unigram': piece_unigram,
  'ranks': ranks,
}
SPACED = 'word_piece', 'word_level'
WHOLE = 'metaspace', 'prepending', 'nfc', 'piece_bpe', 'ranks'  # any text


@functools.cache
def data_of(kind):
  return MAKERS[kind]()


@functools.cache
def made(kind):
  return Subwords.from_file(data_of(kind), kind)


def text_of(kind):
  return WORDS if kind in SPACED else LINES


def space(kind):
  """What precedes the text in its tokens."""
  return b' ' * (kind in SPACED)


@pytest.mark.parametrize('kind', MAKERS)
def test_a_text_comes_back(kind):
  found, data = made(kind), text_of(kind).encode()
  ids = found.encode(data, 'it')
  expected = space(kind) + data
  assert found.decode(ids) == expected == found.normal(data)
  assert found.sizes[ids].sum() == len(expected)
  assert len(ids) < 0.9 * len(data)
  decoder = found.decoder()
  assert b''.join(decoder.push([i]) for i in ids) == expected
  for i, (start, end) in zip(ids, offsets.of_tokens(found, expected, ids)):
    assert found.symbols[i] == expected[start:end]
  bits = units.bits(np.log(2) * len(ids), ids, found)
  assert bits == {'bpb': pytest.approx(len(ids) / len(expected))}
  assert found.encode(b'', 'it').tolist() == []


@pytest.mark.parametrize('kind', WHOLE)
def test_any_text_comes_back(kind):
  texts = '漢字 \U0001d11e', '', '  a', 'b \n\n c ', '\t', 'a  b', "Don't 1"
  for data in *map(str.encode, texts), b'the \xff\xfe memory':
    assert made(kind).decode(made(kind).encode(data, 'it')) == data


@pytest.mark.parametrize('kind', MAKERS)
def test_tokens_are_those_of_the_library(kind):
  """Of one text that begins with a space, which a library does not add."""
  text, data = ' ' + text_of(kind), data_of(kind)
  if kind == 'ranks':
    encoding = tiktoken.Encoding(
      '',
      pat_str=r'\p{N}{1,3}|(?i:\'(?:s|t))|[^\r\n\p{L}\p{N}]?\p{L}+|\s+|.',
      mergeable_ranks={x: i for i, x in enumerate(made(kind).symbols)},
      special_tokens={},
    )
    text = ' the memory'
    expected = encoding.encode_ordinary(text)
  elif kind.startswith('piece'):
    text = 'it goes'  # its own prefix is the space that we write
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    expected, text = model.encode(text), ' ' + text
  else:
    library = tokenizers.Tokenizer.from_str(data.decode())
    # Prepend adds a space even to a space.
    text = text[kind == 'prepending' :]
    expected = library.encode(text, add_special_tokens=False).ids
    text = ' ' + text.removeprefix(' ')
  assert made(kind).encode(text.encode(), 'it').tolist() == expected


@pytest.mark.parametrize('kind', MAKERS)
def test_json_and_back(kind, monkeypatch):
  found = made(kind)
  data = json.dumps(found.to_json()).encode()
  for name in 'sentencepiece', 'tiktoken', 'tokenizers':
    monkeypatch.setitem(sys.modules, name, None)
  again = vocabularies.from_json(json.loads(data))
  assert isinstance(again, Subwords)
  assert again == found and again.sha256() == found.sha256()
  assert Subwords.from_file(data, 'x') == found
  assert Subwords.from_entry(found.entry(), found.tokenizer.encode()) == found
  assert again.decode(range(len(again))) == b''.join(found.symbols)
  said = refused(again.encode, b'the', 'it')
  assert "run: pip install 'txl_jax[text]'" in said
  if kind.startswith('piece'):
    said = refused(Subwords.from_file, data_of(kind), 'x')
    assert said.startswith('x: ') and 'needs sentencepiece' in said


@pytest.mark.parametrize('kind', MAKERS)
def test_a_corpus(kind, tmp_path, capsys):
  record, file = tmp_path / 'a.jsonl', tmp_path / 'any'
  record.write_text(f'{json.dumps({"text": WORDS})}\n' * 4)
  file.write_bytes(data_of(kind))
  options = dict(documents='record', level='subword', tokenizer=file)
  data = prepare('text', tmp_path / 'data', path=record, **options)
  assert 'warning' not in capsys.readouterr().err
  words = data.vocabulary
  assert isinstance(words, Subwords) and words == made(kind).of_documents()
  for split in data.manifest['splits']:
    tokens = data.tokens(split)
    text = words.decode(tokens)
    entry = data.manifest['splits'][split]
    assert text in [(space(kind) + WORDS.encode()) * n for n in (1, 2, 3)]
    assert words.sizes[tokens].sum() == len(text) == entry['bytes']
  assert prepared.load(data.folder).vocabulary == words


@pytest.mark.parametrize('kind', MAKERS)
def test_a_prompt(kind):
  found = made(kind)
  ids, data = texts.tokenise(found, 'text', 'the memory')
  assert found.decode(ids) == data == space(kind) + b'the memory'
  scored = texts.with_offsets(found, 'text', 'the ségment', frames=2)
  assert scored.size == scored.ends[-1] == len(space(kind) + b'the s\0\0gment')
  assert scored.offsets[-1, 1] == len(space(kind) + b'the segment')


@pytest.mark.parametrize(
  'kind, text, shown',
  [
    ('unigram', 'the 漢 memory', r"'the \u6f22 memory' becomes 'the <unk> mem"),
    ('piece_unigram', 'the 漢', r"'the \u6f22' becomes 'the <unk>'"),
    ('piece_unigram', 'the\u2581a', r"'the\u2581a' becomes 'the a'"),
    ('word_piece', 'the memory.', "' the memory.' becomes ' the memory [UNK"),
    ('word_piece', 'the  memory', "' the  memory' becomes ' the memory'"),
    ('word_piece', 'the\nmemory', r"' the\nmemory' becomes ' the memory'"),
    ('word_level', 'the memories', "' the memories' becomes ' the <unk>'"),
    ('metaspace', 'the<s>\u2581', r"'the<s>\u2581' becomes 'the<s> '"),
  ],
)
def test_a_text_that_does_not_come_back(kind, text, shown):
  said = refused(made(kind).encode, text.encode(), 'it')
  assert said.startswith('it: decoding the tokens ') and shown in said
  assert re.search(r'\(normaliser: \w+\);', said)


def test_a_normaliser_nfc(tmp_path, capsys):
  """The text is read as normalised, which a line says once."""
  found = made('nfc')
  text = 'the se\u0301gment \u212b'
  expected = 'the s\u00e9gment \u00c5'.encode()
  assert found.normal(text.encode()) == expected
  assert found.decode(found.encode(text.encode(), 'it')) == expected
  with pytest.warns(texts.UnknownWords, match='text: normalised by NFC'):
    scored = texts.with_offsets(found, 'text', text, frames=2)
  assert scored.size == len(expected)
  assert scored.offsets[-1, 1] == len(expected.decode())
  path, file = tmp_path / 'a.txt', tmp_path / 'tokenizer.json'
  path.write_text(f'{text}\n' * 100)
  file.write_bytes(data_of('nfc'))
  folder = tmp_path / 'data'
  data = prepare('text', folder, path=path, level='subword', tokenizer=file)
  said = capsys.readouterr().err
  assert said.count('warning: ') == 1
  assert f'warning: {path}: normalised by NFC' in said
  splits = data.manifest['splits'].values()
  assert sum(x['bytes'] for x in splits) == 100 * len(expected + b'\n')
  whole = b''.join(
    data.vocabulary.decode(data.tokens(x)) for x in data.manifest['splits']
  )
  assert whole == (expected + b'\n') * 100


def test_tokens_of_several_words():
  """They may be cut at the end of a block, which loses nothing."""
  options = dict(byte_fallback=True, split_by_whitespace=False)
  data = piece_model(model_type='bpe', vocab_size=400, **options)
  found = Subwords.from_file(data, 'x')
  assert any(re.search(rb'\w \w', symbol) for symbol in found.symbols)
  text = LINES.encode() * 40
  assert len(text) > subwords._SIZE
  ids = found.encode(text, 'it')
  assert found.decode(ids) == text
  (whole,) = found._encoder([text.decode()])
  assert abs(len(ids) - len(whole)) < 9


@pytest.mark.thorough
def test_a_long_text_is_cut_between_characters():
  data = piece_model(model_type='bpe', vocab_size=60, required_chars='𝄞')
  found = Subwords.from_file(data, 'x')
  # The cut would be before the last of the four bytes of a character.
  text = b'a' + '𝄞'.encode() * (subwords._LONGEST // 4 + 9)
  assert found.decode(found.encode(text, 'it')) == text


def test_a_byte_that_is_also_a_character():
  """It is never used, so symbols differ."""
  found = made('metaspace')
  names = [*json.loads(found.tokenizer)['model']['vocab']]
  assert found.symbols[names.index('<0x61>')] == b'<0x61>'
  assert found.symbols[names.index('a')] == b'a'
  assert found.symbols[names.index('<0x0A>')] == b'\n'
  assert found.line_end == found.start == names.index('<0x0A>')


@pytest.mark.parametrize(
  'model', [{}, {'type': 'WordLevel', 'unk_token': '<unk>'}]
)
def test_a_library_that_fails(model):
  fields = {'model': {'vocab': {'a': 0}, **model}, 'decoder': None}
  said = refused(Subwords.from_fields(fields).encode, b'x', 'it')
  assert said.startswith('it: the tokenizer cannot be used: ')


def test_ranks_without_all_bytes():
  lines = ranks().splitlines(keepends=True)
  said = refused(Subwords.from_file, b''.join(lines[1:]), 'x')
  assert said.startswith('x: its ids are not 0, 1, 2')
  found = Subwords.from_file(lines[0], 'x')
  assert 'cannot be used' in refused(found.encode, b'a', 'it')
