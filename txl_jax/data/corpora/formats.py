"""Texts as records: the lines of a .jsonl, each an object with a `text`."""

import json
import pathlib
from collections.abc import Iterator

from txl_jax.program.errors import UserError
from txl_jax.program.files import ODD, open_regular, reading


def has_records(path: pathlib.Path) -> bool:
  """Whether a file holds records, judged by its name."""
  return path.suffix.lower() == '.jsonl'


def records(path: pathlib.Path, newlines: bool) -> Iterator[bytes]:
  """The text of each record, ended by a newline if that is asked for.

  UserError: the file cannot be read, or a line, unless it is blank, has no
  text.
  """
  with reading(f'{path}'), open_regular(path) as f:
    for number, line in enumerate(f, 1):
      if not line.strip():
        continue
      try:
        text = json.loads(line)['text']
      except ODD:
        text = None
      if not isinstance(text, str):
        allowed = 'a JSON object whose field text is a string'
        raise UserError(f'{path}: line {number}; allowed: {allowed}')
      data = text.encode('utf-8', 'replace')  # JSON may have half a character
      needs_one = newlines and not data.endswith(b'\n')
      yield data + b'\n' if needs_one else data
