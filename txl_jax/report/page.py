"""A page of headings, text, tables and pictures, as Markdown."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Heading:
  """Of a level from 1 on."""

  level: int
  text: str


@dataclasses.dataclass(frozen=True)
class Table:
  """Cells of text; the first column is text, the others are figures."""

  header: Sequence[str]
  rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Picture:
  """A PNG beside the page."""

  path: pathlib.Path
  text: str  # what it shows


Block = Heading | Table | Picture | str  # a str is a paragraph


def markdown(blocks: Sequence[Block]) -> str:
  """The page as Markdown, which refers to its pictures."""
  return '\n\n'.join(map(_markdown, blocks)) + '\n'


def _markdown(block):
  if isinstance(block, Heading):
    return f'{"#" * block.level} {block.text}'
  if isinstance(block, Picture):
    return f'![{block.text}]({block.path.name})'
  if isinstance(block, str):
    return block
  rule = ['---', *['---:'] * (len(block.header) - 1)]
  rows = [block.header, rule, *block.rows]
  cells = ([_plain(cell) for cell in row] for row in rows)
  return '\n'.join(f'| {" | ".join(row)} |' for row in cells)


def _plain(cell):
  """The Markdown of text that is a name of a file, and may be anything."""
  return re.sub(r'([\\|<*`\[\]])', r'\\\1', ' '.join(cell.split()))
