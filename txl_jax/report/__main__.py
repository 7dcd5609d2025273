r"""Shows the curves and figures of runs, beside the tables of the paper.

python -m txl_jax.report RUNS… --output=report

writes report.md and its pictures, which need the extra `plot`. RUNS are folders
of runs, or folders that hold some; by default `runs`.
"""

from txl_jax.program import terminal

if __name__ == '__main__':
  terminal.begin()  # the other imports take a second

import collections
import importlib.util
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from txl_jax.program import command_line, files, pictures
from txl_jax.program.errors import UserError, first_line
from txl_jax.report import collect, curves, page, tables

_OUTPUT = flags.DEFINE(
  command_line.Path(), 'output', 'report', 'Folder to write the report to.'
)
_ALL = flags.DEFINE_bool(
  'all', False, "Also the paper's tables in which no run has a row."
)


def markdown(
  all_: Sequence[collect.Run], folder: pathlib.Path, every: bool = False
) -> str:
  """The report; its pictures are put into the folder.

  The runs come first, then the tables of the paper in which they have a row; or
  every table.
  """
  groups, runs = collections.defaultdict(list), [r for r in all_ if r.trained]
  for run in runs:
    groups[run.identity].append(run)

  def weight(members):
    finished = sum(run.finished for run in members)
    return finished, len(members), max(run.step for run in members)

  # Where an experiment was changed, the variant with the most runs stands for
  # it, finished ones before others; the rest is in the list of runs.
  found: dict[str, list[collect.Run]] = {}
  for members in sorted(groups.values(), key=weight):
    found[members[0].experiment] = members
  found = dict(sorted(found.items()))
  blocks = ['# Runs'] if runs else []
  blocks += curves.learning({run.name: [run] for run in runs}, folder / 'runs')
  blocks += [_list(runs)] if runs else []
  if of_paper := [*tables.of_paper(found, all_, folder, every)]:
    blocks += ['# The tables of the paper', _OF_PAPER, *of_paper]
  return '\n\n'.join(blocks) + '\n'


_OF_PAPER = (
  'Published: Dai et al. 2019, arXiv 1901.02860. Ours: mean and standard '
  'deviation over runs that differ in their seed alone; a row without a run is '
  'empty, or tells that the model is not implemented here. Figures of Tables 1 '
  'to 5 and 7 are of the test split (--mode=eval --config.eval.split=test), of '
  'Tables 6 and 10 of validation.'
)


def _list(runs):
  header = ['run', 'config', 'seed', 'parameters', 'steps', 'tokens seen']
  header += ['validation (best)', 'test', 'hours', 'device']
  rows = []
  for run in runs:
    (count, device), planned = run.made, run.config['train.steps']
    steps = f'{run.step:,}' + ('' if run.finished else f' of {planned:,}')
    cells = [run.name, run.experiment, f'{run.config["seed"]}']
    cells += [f'{count:,}' if count else '', steps]
    cells += [f'{run.step * run.tokens:,}', _figure(run.best)]
    cells += [_figure(run.analyses.get('eval_test', {}))]
    rows.append([*cells, f'{run.seconds / 3600:.2f}', device])
  return page.table(header, rows)


def _figure(record):
  """The figures of a record in the metric of its corpus; '' if it is empty."""
  units = {'bpc': '.4f', 'ppl': '.2f', 'bpb': '.4f'}
  found = {unit: x for unit, x in units.items() if unit in record}
  return ', '.join(f'{record[u]:{digits}} {u}' for u, digits in found.items())


def main(argv: list[str]) -> None:
  """Writes the report."""
  folders, output = argv[1:] or ['runs'], pathlib.Path(_OUTPUT.value)
  where, runs = ' '.join(folders), []
  for run in collect.runs(*(pathlib.Path(x).expanduser() for x in folders)):
    if isinstance(run, UserError):
      print(f'warning: left out: {run}', file=sys.stderr)
    else:
      runs.append(run)
  if not runs:
    raise UserError(f'{where} holds no run; allowed: folders of runs')
  with files.writing(f'{output}'):
    output.mkdir(parents=True, exist_ok=True)
  try:
    text = markdown(runs, output, _ALL.value)
  except files.ODD as e:  # in a file that somebody has changed
    what = f'{type(e).__name__}: {first_line(e)}'
    allowed = 'config.json and records as runs and --mode write them'
    raise UserError(f'{where}: {what}; allowed: {allowed}') from e
  files.write(output / 'report.md', text)
  if importlib.util.find_spec('matplotlib') is None:
    print(pictures.MISSING, file=sys.stderr)
  count = sum(run.trained for run in runs)
  print(f'{count} runs: {output}/report.md')


if __name__ == '__main__':
  command_line.run(main, arguments=sys.maxsize)
