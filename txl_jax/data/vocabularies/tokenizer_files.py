"""Files of tokenizers: the bytes of each token, and how text is encoded.

Every file becomes JSON like a tokenizer.json of the library `tokenizers`; with
a SentencePiece model, its .model is added in base64, with ranks of tiktoken the
pattern that splits a text. No space is added in front of a text.
"""

import base64
import functools
import json
import re
from typing import Any

from txl_jax.program import files
from txl_jax.program.errors import extra

library = functools.partial(extra, 'text', user='data.level=subword')
SPACED = {'WordPiece', 'None'}  # decoders that put a space before a word
_RANKS = re.compile(rb'(?:[A-Za-z0-9+/]+=* \d+\s*\n)+')  # a file of tiktoken
_BYTE = re.compile('<0x([0-9A-F]{2})>')  # name of a byte, in SentencePiece
# Appended to a .model, sets add_dummy_prefix and remove_extra_whitespaces of
# its normalizer_spec to False: the last value of a field counts.
_NO_PREFIX = b'\x1a\x04\x18\x00\x20\x00'
# A file of ranks has no pattern: that of cl100k_base (GPT-4).
_PATTERN = (
  r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def parse(data: bytes) -> dict:
  """The JSON of a file; UserError, ValueError or RuntimeError for others."""
  if _RANKS.fullmatch(data.rstrip() + b'\n'):
    names, vocab = {x: c for c, x in _byte_values().items()}, {}
    for token, i in map(bytes.split, data.splitlines()):
      vocab[''.join(names[x] for x in base64.b64decode(token))] = int(i)
    fields = {'tiktoken': _PATTERN}
    decoder = 'ByteLevel'
  elif data[:1] == b'\n' and b'\0' in data:  # a .model; JSON has no zero bytes
    model = library('sentencepiece').SentencePieceProcessor(model_proto=data)
    vocab = {model.id_to_piece(i): i for i in range(len(model))}
    encoded = base64.b64encode(data).decode()
    fields = {'sentencepiece': encoded}
    decoder = 'Metaspace'
  else:
    return files.parse_json(data, 'it')
  return {**fields, 'model': {'vocab': vocab}, 'decoder': {'type': decoder}}


def symbols(fields: Any) -> tuple[bytes, ...]:
  """Bytes of each token, if a text is their join; ValueError for other JSON."""
  try:
    vocab = fields['model']['vocab']
    decoders = types(fields['decoder'])
    if isinstance(vocab, list):  # Unigram, with scores
      vocab = {token: i for i, (token, _) in enumerate(vocab)}
    ids = {i: _bytes(token, decoders, vocab) for token, i in vocab.items()}
    for added in fields.get('added_tokens') or ():
      ids.setdefault(added['id'], added['content'].encode())
  except (TypeError, LookupError, AttributeError) as e:
    raise ValueError(f'it is not a tokenizer.json: {e!r}') from e
  for i in range(max(len(ids), 1)):
    if not ids.get(i):
      raise ValueError(f'its ids are not 0, 1, 2 and so on: {i} has no name')
  return tuple(ids[i] for i in range(len(ids)))


def types(part: Any) -> list[str]:
  """The types in a normaliser or decoder, ['None'] if there is none."""
  types = re.findall(r'"type": "(?!Sequence)(\w+)"', json.dumps(part))
  return types or ['None']


def encoder(tokenizer: str) -> Any:
  """Maps texts to the token ids of each; UserError without the library."""
  fields = json.loads(tokenizer)
  if 'tiktoken' in fields:
    ranks = {x: i for i, x in enumerate(symbols(fields))}
    options = {'pat_str': fields['tiktoken'], 'special_tokens': {}}
    made = library('tiktoken').Encoding('', mergeable_ranks=ranks, **options)
    return made.encode_ordinary_batch
  if 'sentencepiece' in fields:
    data = base64.b64decode(fields['sentencepiece']) + _NO_PREFIX
    kind = library('sentencepiece').SentencePieceProcessor
    return kind(model_proto=data).encode
  text = tokenizer.replace('"prepend":"▁"', '"prepend":""')
  text = re.sub('(?<="prepend_scheme":")(always|first)', 'never', text)
  text = text.replace('"add_prefix_space":true', '"add_prefix_space":false')
  text = re.sub('(?<="dropout":)[^,}]+', 'null', text)  # skips merges at random
  made = library('tokenizers').Tokenizer.from_str(text)
  made.no_truncation()
  made.no_padding()
  encode = functools.partial(made.encode_batch_fast, add_special_tokens=False)
  return lambda texts: (x.ids for x in encode(texts))


def _bytes(token: str, decoders: list[str], vocab: dict[str, int]) -> bytes:
  if 'ByteLevel' in decoders:
    return bytes(_byte_values()[c] for c in token)
  if match := _BYTE.fullmatch(token):
    byte = bytes.fromhex(match[1])
    # If it is also a character, no text has it: its bytes are its name.
    if byte.decode('ascii', 'ignore').replace(' ', '▁') not in vocab:
      return byte
  if SPACED & {*decoders}:
    token = f' {token}'.removeprefix(' ##') or token
  return token.replace('▁', ' ').encode()


@functools.cache
def _byte_values() -> dict[str, int]:
  """Maps each character of a byte-level BPE to its byte, as in GPT-2.

  Printable bytes map to themselves; the others are characters from 256 on.
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [value for value in range(256) if value not in printable]
  characters = map(chr, [*printable, *range(256, 256 + len(others))])
  return dict(zip(characters, printable + others))
