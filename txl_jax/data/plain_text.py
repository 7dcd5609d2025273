"""Reads text files, for corpora, prompts and texts to score.

Text is UTF-8; bytes of other encodings are kept. A byte-order mark is dropped,
and UTF-16 or UTF-32 with such a mark is decoded. A carriage return without a
newline becomes a newline. Files may be compressed (gzip, bz2, xz). Files whose
first bytes indicate another format, or with a NUL byte, are refused; data.raw
accepts any bytes.
"""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from txl_jax.program.errors import UserError, first_line

_CHUNK = 1 << 20  # bytes read at a time
_RETURN = re.compile(rb'\r(?!\n)')
_PACKED = {b'\x1f\x8b': gzip.open, b'\xfd7zXZ\0': lzma.open}
_PACKED |= {b'BZh%d1AY&SY' % i: bz2.open for i in range(1, 10)}
# UTF-32 comes first: its byte-order mark begins with that of UTF-16.
_CODECS: dict[bytes, str] = {
  codecs.BOM_UTF32_LE: 'utf-32',
  codecs.BOM_UTF32_BE: 'utf-32',
  codecs.BOM_UTF16_LE: 'utf-16',
  codecs.BOM_UTF16_BE: 'utf-16',
}
_POINTER = b'version https://git-lfs'
_UNPACK, _WRITE = 'unpack it', 'write its text to a .txt or .jsonl'
_IDS = 'if it holds token ids, read them with data.level=id'
_KINDS = (  # for messages: format and advice, then the magic bytes
  ('is a Parquet file', 'rename it to *.parquet', b'PAR1'),
  ('is an Arrow file', _WRITE, b'ARROW1', b'\xff\xff\xff\xff'),
  ('is a database', _WRITE, b'SQLite format 3', b'\x89HDF\r\n', b'Obj\x01'),
  ('is a NumPy array', _IDS, b'\x93NUMPY'),
  ('is a pickle', _WRITE, *(bytes([128, i]) for i in range(2, 6))),
  ('is a PDF', 'pdftotext writes its text to a .txt', b'%PDF-'),
  ('is a document', _WRITE, b'{\\rtf', b'\xd0\xcf\x11\xe0'),
  ('is a zip archive (perhaps a .docx)', _UNPACK, b'PK\3\4', b'PK\5\6'),
  ('is a zstd file', 'zstd -d unpacks it', b'\x28\xb5\x2f\xfd'),
  ('is an lz4 file', 'lz4 -d unpacks it', b'\x04\x22\x4d\x18'),
  ('is an archive', _UNPACK, b'7z\xbc\xaf', b'Rar!\x1a', b'\x1f\x9d'),
  ('is a Git LFS pointer', 'git lfs pull fetches its text', _POINTER),
  ('is a picture', 'leave it out', b'\x89PNG', b'\xff\xd8\xff', b'GIF8'),
)
_NUL = 'contains NUL bytes (token ids, binary numbers, or UTF-16 without BOM?)'


def normal(text: bytes) -> bytes:
  """Drops the byte-order mark of a text and normalises its newlines."""
  return _RETURN.sub(b'\n', text.removeprefix(codecs.BOM_UTF8))


def lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
  """Normalises newlines, without changing the size; UserError for NUL bytes."""
  held = b''  # a final carriage return; the next chunk may start with a newline
  for chunk in chunks:
    if b'\0' in chunk:
      _refuse(name, _NUL, _IDS)
    if held or b'\r' in chunk:
      chunk = held + chunk
      held = b'\r' if chunk.endswith(b'\r') else b''
      chunk = _RETURN.sub(b'\n', chunk.removesuffix(held))
    yield chunk
  if held:
    yield b'\n'


def mark(f: Any, name: str) -> bytes:
  """Magic bytes of a compressed or encoded text file; b'' if it is plain.

  UserError if the file is not text.
  """
  head = f.read(512)
  f.seek(0)
  for what, how, *begins in _KINDS:
    if head.startswith(tuple(begins)):
      _refuse(name, what, how)
  if head[257:262] == b'ustar':
    _refuse(name, 'is a tar archive', _UNPACK)
  known = codecs.BOM_UTF8, *_CODECS, *_PACKED
  return next((x for x in known if head.startswith(x)), b'')


def chunks(f: Any, name: str) -> Iterator[bytes]:
  """Reads the text of a seekable file in chunks; UserError if not text."""
  begin = mark(f, name)
  try:
    if begin in _PACKED:
      with _PACKED[begin](f) as inner:
        yield from chunks(inner, name)
      return
    f.seek(len(begin) if begin == codecs.BOM_UTF8 else 0)
    plain = iter(lambda: f.read(_CHUNK), b'')
    if begin in _CODECS:
      plain = (x.encode() for x in codecs.iterdecode(plain, _CODECS[begin]))
    yield from lines(plain, name)
  except (EOFError, OSError, zlib.error, lzma.LZMAError, UnicodeError) as e:
    raise UserError(f'{name} is damaged: {first_line(e)}') from e


def _refuse(name, what, how):
  raise UserError(
    f'{name} {what}, so it is not text; {how}, or train on its raw bytes with '
    'data.raw=True'
  )
