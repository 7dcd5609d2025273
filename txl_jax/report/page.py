"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """A table with a left-aligned first column and right-aligned others."""
  rule = ['---', *['---:'] * (len(header) - 1)]
  cells = ([_plain(cell) for cell in row] for row in (header, *rows))
  first, *others = (f'| {" | ".join(row)} |' for row in cells)
  return '\n'.join([first, f'| {" | ".join(rule)} |', *others])


def _plain(cell):
  """Escapes Markdown in text, which may be any file name."""
  return re.sub(r'([\\|<*`\[\]])', r'\\\1', ' '.join(cell.split()))
