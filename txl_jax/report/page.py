"""Tables and pictures of a page, as Markdown."""

import pathlib
import re
from collections.abc import Iterable, Sequence


def picture(path: pathlib.Path, text: str) -> str:
  """A PNG beside the page, and what it shows."""
  return f'![{text}]({path.name})'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Cells of text; those of the first column are text, the others figures."""
  rule = ['---', *['---:'] * (len(header) - 1)]
  cells = ([_plain(cell) for cell in row] for row in (header, *rows))
  first, *others = (f'| {" | ".join(row)} |' for row in cells)
  return '\n'.join([first, f'| {" | ".join(rule)} |', *others])


def _plain(cell):
  """The Markdown of text that is a name of a file, and may be anything."""
  return re.sub(r'([\\|<*`\[\]])', r'\\\1', ' '.join(cell.split()))
