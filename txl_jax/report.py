r"""Reports learning curves and results of runs beside the paper's tables.

python -m txl_jax.report RUNS… --output=report

writes report.md and its plots, which need the extra `plot`. RUNS are run
folders or folders that contain them; the default is `runs`.
"""

from txl_jax.program import signals

if __name__ == '__main__':
  signals.begin()  # the other imports take a second

import collections
import importlib.util
import pathlib
import shutil
import sys
import textwrap
import urllib.parse
from collections.abc import Sequence

from absl import flags

from txl_jax.experiment import collect
from txl_jax.paper import curves, pictures, tables
from txl_jax.program import command_line, files, markdown
from txl_jax.program.errors import UserError, first_line
from txl_jax.runs import workdir

_OUTPUT = flags.DEFINE(
  command_line.Path(), 'output', 'report', 'Folder to write the report to.'
)
_ALL = flags.DEFINE_bool(
  'all', False, 'Also includes tables of the paper without runs.'
)


def page(
  runs: Sequence[collect.Run], folder: pathlib.Path, every: bool = False
) -> str:
  """The report as Markdown; plots are written into the folder.

  A list of the trained runs comes first, then the measurements of each run and
  the tables of the paper that have a row for one of the runs; or all tables if
  `every` is true.
  """
  trained = [run for run in runs if run.config]
  seeds = collections.defaultdict(list)  # runs that differ only in the seed
  for run in trained:
    if not run.changes:  # else it is none of the paper's
      seeds[run.identity].append(run)
  # Of an experiment's settings, the tables show that of the most finished runs.
  order = lambda x: (sum(r.finished for r in x), len(x), max(r.step for r in x))
  groups = {x[0].experiment: x for x in sorted(seeds.values(), key=order)}
  blocks = []
  if trained:
    plots = curves.learning({x.name: [x] for x in trained}, folder / 'runs')
    blocks += ['# Runs', *plots, _list(trained)]
  if measured := [*_measured(runs, folder)]:
    blocks += ['# Measurements', *measured]
  if of_paper := [*tables.of_paper(groups, runs, folder, every)]:
    blocks += ['# The tables of the paper', _OF_PAPER, *of_paper]
  return '\n\n'.join(blocks) + '\n'


_OF_PAPER = (
  'Published: Dai et al. 2019, arXiv 1901.02860. Ours: mean and standard '
  'deviation over runs that differ only in their seed; a row without a run is '
  'empty or says that the model is not implemented here. Figures of Tables 1 '
  'to 5 and 7 are on the test split (--mode=eval --config.eval.split=test), '
  'figures of Tables 6 and 10 on validation.'
)


def _list(runs):
  header = ['run', 'config', 'changed', 'seed', 'parameters', 'steps']
  header += ['tokens seen', 'validation (best)', 'test', 'hours', 'device']
  rows = []
  for run in runs:
    devices = (a.get('trained_on') for a in run.analyses.values())
    known = next(filter(None, devices), '')
    _, count, device = run.saved or (None, 0, known)
    planned = '' if run.finished else f' of {run.config["train.steps"]:,}'
    changes = textwrap.shorten(run.changes, 80, placeholder=' …')
    cells = [run.name, run.experiment, changes, run.config['seed']]
    cells += [f'{count:,}' if count else '', f'{run.step:,}{planned}']
    cells += [f'{run.step * run.tokens:,}', _figure(run.best)]
    cells += [_figure(run.analyses.get('eval_test', {}))]
    rows.append([*cells, f'{run.seconds / 3600:.2f}', device])
  return markdown.table(header, rows)


def _measured(runs, folder):
  """Yields the printed tables, pictures and last sample of each run."""
  for run in runs:
    parts = []
    for name, record in run.analyses.items():
      if not (lines := record.get('lines')):  # of an earlier version
        continue
      step = record.get('checkpoint_step')  # None of initial parameters
      at = '' if step is None else f', step {step:,}'
      parts += [f'### {name}{at}', markdown.code('\n'.join(lines))]
      picture = run.folder / workdir.ANALYSIS / f'{name}.png'
      if picture.exists():
        copy = folder / 'measured' / run.name / picture.name
        with files.writing(f'{copy}'):
          copy.parent.mkdir(parents=True, exist_ok=True)
          shutil.copyfile(picture, copy)
        url = urllib.parse.quote(f'{copy.relative_to(folder)}')
        parts.append(f'![{name}]({url})')
    texts = [r for r in run.records if 'text' in r]
    samples = [r for r in texts if r['split'] == 'sample'][:-1]  # but the last
    for r in (r for r in texts if r not in samples):
      parts += [
        f'### {r["split"]}, step {r["step"]:,}',
        markdown.code(r['text']),
      ]
    if parts:
      yield from (f'## {markdown.plain(run.name)}', *parts)


def _figure(record):
  """The metrics of a record with their units; '' if it is empty."""
  formats = {'bpc': '.4f', 'ppl': '.2f', 'bpb': '.4f'}
  units = [unit for unit in formats if unit in record]
  return ', '.join(f'{record[u]:{formats[u]}} {u}' for u in units)


def main(argv: list[str]) -> None:
  """Writes the report."""
  folders = argv[1:] or ['runs']
  output = pathlib.Path(_OUTPUT.value)
  where = ' '.join(folders)
  runs = []
  for run in collect.runs(*(pathlib.Path(x).expanduser() for x in folders)):
    if isinstance(run, UserError):
      print(f'warning: left out: {run}', file=sys.stderr)
    else:
      runs.append(run)
  if not runs:
    raise UserError(f'{where} contains no run; allowed: folders of runs')
  with files.writing(f'{output}'):
    output.mkdir(parents=True, exist_ok=True)
  try:
    text = page(runs, output, _ALL.value)
  except files.ODD as e:  # a file was edited
    reason = f'{type(e).__name__}: {first_line(e)}'
    allowed = 'config.json and records as txl_jax wrote them'
    raise UserError(f'{where}: {reason}; allowed: {allowed}') from e
  files.write(output / 'report.md', text)
  if importlib.util.find_spec('matplotlib') is None:
    print(pictures.MISSING, file=sys.stderr)
  count = sum(bool(run.config) for run in runs)
  print(f'{count} run{"s" * (count != 1)}: {output}/report.md')


if __name__ == '__main__':
  command_line.run(main, arguments=sys.maxsize)
