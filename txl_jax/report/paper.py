"""The tables of the paper, from paper.txt, which tells its form."""

import dataclasses
import pathlib
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a table."""

  model: str
  published: tuple[float, ...]  # of each column, () if not in the paper
  experiment: str = ''  # its config
  small: tuple[str, ...] = ()  # those of its twins for a CPU
  length: int = 0  # the attention length that it is of, 0 for the best one

  def twin(self, file: str) -> str:
    """The experiment of a row in a file of small twins, '' for none."""
    return next((x for x in self.small if x.startswith(f'{file}:')), '')


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the paper, or of twins alone."""

  number: int  # 0 for none
  title: str
  columns: tuple[str, ...]  # of the published figures
  rows: tuple[Row, ...]
  kind: str = 'test'  # what they are: see `report.tables`


SHARES = (0.1, 0.5, 1.0)  # r, of the hardest positions (Table 8)
# Of the files of twins: their size and their text.
SMALL: Mapping[str, str] = {
  'pystdlib_ablations': '0.4M parameters, bytes of the sources of '
  "Python's standard library",
  'ptb_tiny': '1.9M parameters, words of Penn Treebank',
  'long_context': '6.2M parameters, subwords of the text in data.path',
}


def _cells(line):
  return [cell.strip() for cell in line.split('|')]


def _row(line):
  model, *more = _cells(line)
  figures, experiment, small, length = (more + [''] * 4)[:4]
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


TABLES = tuple(_tables())  # the last is none of the paper
