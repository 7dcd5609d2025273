r"""Sets the runs in a folder beside the tables of the paper.

python -m txl_jax.report --runs=runs --output=report

writes report.md and its pictures, which need the extra `plot`.
"""

from txl_jax.program import terminal

if __name__ == '__main__':
  terminal.begin()  # the other imports take a second

import collections
import importlib.util
import pathlib
import sys

from absl import flags

from txl_jax.program import command_line, files, pictures
from txl_jax.program.errors import UserError, first_line
from txl_jax.report import collect, page, tables
from txl_jax.runs.console import duration

_RUNS = flags.DEFINE(
  command_line.Path(), 'runs', 'runs', 'Folder that holds the run folders.'
)
_OUTPUT = flags.DEFINE(
  command_line.Path(), 'output', 'report', 'Folder to write the report to.'
)


def markdown(all_: list[collect.Run], folder: pathlib.Path) -> str:
  """The report; its pictures are put into the folder."""
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
  blocks = [
    '# Transformer-XL: the paper and these runs',
    'Published: Dai et al. 2019, arXiv 1901.02860. Ours: mean and standard '
    'deviation over runs that differ in their seed alone; a row without a run '
    'is empty, or tells that the model is not implemented here. Figures of '
    'Tables 1 to 5 and 7 are of the test split (--mode=eval '
    '--config.eval.split=test), of Tables 6 and 10 of validation.',
    *tables.of_paper(found, all_, folder),
    *tables.of_studies(found, folder),
    '## Runs',
    _list(runs),
  ]
  return '\n\n'.join(blocks) + '\n'


def _list(runs):
  header = ['run', 'experiment', 'seed', 'step', 'best validation', 'time']
  rows = [
    [
      run.name,
      run.experiment,
      str(run.config['seed']),
      f'{run.step:,}' + ('' if run.finished else ' (not finished)'),
      '' if run.best is None else f'{run.best:.4f} {run.unit}',
      duration(run.seconds),
    ]
    for run in runs
  ]
  return page.table(header, rows)


def main(_: list[str]) -> None:
  """Writes the report."""
  source, output = pathlib.Path(_RUNS.value), pathlib.Path(_OUTPUT.value)
  runs = []
  for run in collect.runs(source):
    if isinstance(run, UserError):
      print(f'warning: left out: {run}', file=sys.stderr)
    else:
      runs.append(run)
  if not runs:
    raise UserError(f'--runs={source} holds no run')
  with files.writing(f'{output}'):
    output.mkdir(parents=True, exist_ok=True)
  try:
    text = markdown(runs, output)
  except files.ODD as e:  # in a file that somebody has changed
    what = f'{type(e).__name__}: {first_line(e)}'
    allowed = 'config.json and records as runs and --mode write them'
    raise UserError(f'--runs={source}: {what}; allowed: {allowed}') from e
  files.write(output / 'report.md', text)
  if importlib.util.find_spec('matplotlib') is None:
    print(pictures.MISSING, file=sys.stderr)
  count = sum(run.trained for run in runs)
  print(f'{count} runs: {output}/report.md')


if __name__ == '__main__':
  command_line.run(main)
