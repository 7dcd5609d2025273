"""The tables of the paper, parsed from paper.txt, which explains its format."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple


class Row(NamedTuple):
  """A row of a table."""

  model: str
  published: tuple[float, ...]  # one figure per column; () if not in the paper
  experiment: str  # FILE:VARIANT of its config
  small: tuple[str, ...]  # experiments of its CPU-sized twins
  length: int  # its attention length; 0 for the best one

  def experiment_of(self, file: str) -> str:
    """The experiment of its twin in `file`, its own without a file, or ''."""
    twins = (x for x in self.small if x.startswith(f'{file}:'))
    return next(twins, '') if file else self.experiment


class Table(NamedTuple):
  """A table of the paper, or one of our own."""

  number: int  # 0 if not in the paper
  title: str
  columns: tuple[str, ...]  # titles of the published figures
  rows: tuple[Row, ...]
  kind: str  # a key of `tables.MEASURES`


SHARES = (0.1, 0.5, 1.0)  # r, the share of hardest positions (Table 8)
# {config file of twins: their size and text}.
SMALL: Mapping[str, str] = {
  'pystdlib_ablations': '0.4M parameters, bytes of the sources of '
  "Python's standard library",
  'ptb_tiny': '1.9M parameters, words of Penn Treebank',
  'long_context': '6.2M parameters, subwords of the text in data.path',
}


def _cells(line):
  return [cell.strip() for cell in line.split('|')]


def _row(line):
  cells = _cells(line) + [''] * 4  # trailing cells may be missing
  model, figures, experiment, small, length = cells[:5]
  published = tuple(float(x) if '.' in x else int(x) for x in figures.split())
  twins = tuple(small.split())
  return Row(model, published, experiment, twins, int(length or 0))


def _tables():
  text = pathlib.Path(__file__).with_name('paper.txt').read_text('utf-8')
  for part in text.split('\n= ')[1:]:
    head, *lines = part.strip().splitlines()
    number, title, columns, kind = _cells(head)
    names = tuple(columns.split(', ')) if columns else ()
    rows = tuple(map(_row, lines))
    yield Table(int(number), title, names, rows, kind)


TABLES = tuple(_tables())  # the last one is not in the paper
