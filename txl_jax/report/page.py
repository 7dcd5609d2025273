"""A page of headings, text, tables and pictures, as Markdown and as HTML."""

import base64
import dataclasses
import html
import pathlib
import re
from collections.abc import Collection, Sequence


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
  grey: Collection[int] = ()  # indices of rows that stand back, in HTML


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


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #333; max-width: 84em;
  margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-size: 14px; margin: 1em 0; }
th, td { padding: 4px 10px; border-bottom: 1px solid #e4e4e4;
  text-align: right; }
th { border-bottom: 2px solid #8a8a8a; }
th:first-child, td:first-child { text-align: left; }
.grey { color: #767676; }
p { max-width: 60em; }
img { max-width: 100%; }
"""


def web(blocks: Sequence[Block], title: str) -> str:
  """The page as HTML that needs no other file."""
  body = '\n'.join(map(_web, blocks))
  return (
    '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    f'<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n'
    f'{body}\n</html>\n'
  )


def _web(block):
  if isinstance(block, Heading):
    return f'<h{block.level}>{html.escape(block.text)}</h{block.level}>'
  if isinstance(block, Picture):
    data = base64.b64encode(block.path.read_bytes()).decode()
    text = html.escape(block.text)
    return f'<p><img src="data:image/png;base64,{data}" alt="{text}"></p>'
  if isinstance(block, str):
    return f'<p>{html.escape(block)}</p>'
  rows = [_row('td', row, i in block.grey) for i, row in enumerate(block.rows)]
  return '\n'.join(['<table>', _row('th', block.header), *rows, '</table>'])


def _row(tag, cells, grey=False):
  inside = ''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)
  return f'<tr{" class=grey" * grey}>{inside}</tr>'
