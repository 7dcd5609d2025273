"""Reads text files, for corpora, prompts and texts to score.

Text is UTF-8; bytes of other encodings are kept. A byte-order mark is dropped,
and UTF-16 or UTF-32 with such a mark is decoded. A carriage return without a
newline becomes a newline. Files may be compressed (gzip, bz2, xz, zstd). Files
whose first bytes indicate another format, or with a NUL byte, are refused;
data.raw accepts any bytes.
"""

import bz2
import codecs
import gzip
import lzma
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from txl_jax.program.errors import UserError, extra, first_line

HEAD = 512  # bytes at the start of a file that identify its format
_CHUNK = 1 << 20  # bytes read at a time
_CONTROL = re.compile(r'[\0-\x08\x0e-\x1f\x7f\ufffd]')
_RETURN = re.compile(rb'\r(?!\n)')


def _open_zstd(f: Any) -> Any:
  standard = 'compression' in sys.stdlib_module_names  # from Python 3.14 on
  module = 'compression' if standard else 'backports'
  return extra('text', f'{module}.zstd', 'a zstd file').open(f)


_PACKED = {b'\x1f\x8b': gzip.open, b'\xfd7zXZ\0': lzma.open}
_PACKED[b'\x28\xb5\x2f\xfd'] = _open_zstd
_PACKED |= {b'BZh%c1AY&SY' % level: bz2.open for level in b'123456789'}
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
_KINDS = (  # for messages: format and advice, then a pattern of the first bytes
  ('is a Parquet file', 'rename it to *.parquet', rb'PAR1'),
  ('is an Arrow file', _WRITE, rb'ARROW1|\xff{4}..\0\0\x10\0\0\0'),
  ('is a database', _WRITE, rb'SQLite format 3|\x89HDF\r\n|Obj\x01'),
  ('is a NumPy array', _IDS, rb'\x93NUMPY'),
  ('is a pickle', _WRITE, rb'\x80[\x04\x05]\x95.{4}\0{4}'),
  (
    'is a pickle',
    _WRITE,
    rb'\x80[\x02\x03]([]}]q\0|\(|c[\w.]+\n|X..\0\0|\x8a\n)',
  ),
  ('is a PDF', 'pdftotext writes its text to a .txt', rb'%PDF-'),
  ('is a document', _WRITE, rb'{\\rtf|\xd0\xcf\x11\xe0'),
  ('is a zip archive (perhaps a .docx)', _UNPACK, rb'PK(\x03\x04|\x05\x06)'),
  ('is an lz4 file', 'lz4 -d unpacks it', rb'\x04\x22\x4d\x18'),
  ('is an archive', _UNPACK, rb'7z\xbc\xaf|Rar!\x1a|\x1f\x9d\x90'),
  ('is a tar archive', _UNPACK, rb'.{257}ustar'),
  # Longer than magic bytes, which may begin token ids; `mark` comes before.
  ('is a compressed file', _UNPACK, rb'\x1f\x8b\x08.{5}[\0\x02\x04]|BZh\d1A'),
  ('is a compressed file', _UNPACK, rb'\xfd7zXZ|\x28\xb5\x2f\xfd'),
  ('is a Git LFS pointer', 'git lfs pull fetches its text', _POINTER),
  ('is a MIDI file', 'docs/music.md makes token ids of notes', rb'MThd'),
  ('is a picture', 'leave it out', rb'\x89PNG|\xff\xd8\xff[\xdb-\xef]|GIF8'),
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


def kind(head: bytes) -> tuple[str, str] | None:
  """The format, not text, of a file with these first bytes, and advice."""
  known = (x[:2] for x in _KINDS if re.match(x[2], head, re.DOTALL))
  return next(known, None)


def is_text(head: bytes) -> bool:
  """Whether the first bytes of a file are UTF-8 without control characters."""
  # A character may be cut at the end.
  text = codecs.getincrementaldecoder('utf-8')('replace').decode(head)
  return not _CONTROL.search(text)


def mark(f: Any, name: str) -> bytes:
  """Magic bytes of a compressed or encoded text file; b'' if it is plain.

  UserError if the file is not text.
  """
  head = f.read(HEAD)
  f.seek(0)
  known = codecs.BOM_UTF8, *_CODECS, *_PACKED
  found = next((x for x in known if head.startswith(x)), b'')
  if not found and (other := kind(head)):
    _refuse(name, *other)
  return found


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
  except UserError:
    raise
  except Exception as e:  # each format has errors of its own
    raise UserError(f'{name} is damaged: {first_line(e)}') from e


def _refuse(name, what, how):
  raise UserError(
    f'{name} {what}, so it is not text; {how}, or train on its raw bytes with '
    'data.raw=True'
  )
