"""Tables in Markdown."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
  """A table with a left-aligned first column and right-aligned others."""
  rule = ['---', *['---:'] * (len(header) - 1)]
  cells = ([plain(cell) for cell in row] for row in (header, *rows))
  first, *others = (f'| {" | ".join(row)} |' for row in cells)
  return '\n'.join([first, f'| {" | ".join(rule)} |', *others])


def code(text: str) -> str:
  """Any text as a code block, with control characters replaced."""
  shown = (x if x.isprintable() or x == '\n' else '\ufffd' for x in text)
  return textwrap.indent(''.join(shown), '    ')


def plain(cell: Any) -> str:
  """A cell as text without Markdown; it may hold any file name."""
  return re.sub(r'([\\|<*`\[\]])', r'\\\1', ' '.join(f'{cell}'.split()))
