"""Compares runs on Penn Treebank with logs of the authors' code."""

import math
import pathlib
from collections.abc import Iterator, Sequence

from txl_jax.experiment.collect import Run
from txl_jax.paper import pictures
from txl_jax.program import markdown

_NOTE = (
  "Logs: four runs of the authors' code; test divides logits by 1.08. Ours: "
  'validation is exp(nats x 7,375 / 7,376), as they count, but scores nine '
  'words that they skip; test uses eval.temperature, unlike the table above.'
)


def read() -> tuple[list[int], dict[str, list[float]]]:
  """Epochs, and {log: perplexities of all epochs, then of the test split}."""
  text = pathlib.Path(__file__).with_name('ptb_logs.csv').read_text('utf-8')
  lines = [x.split(',') for x in text.splitlines() if x[0] != '#']
  (_, *epochs, _), *columns = zip(*lines)
  return [*map(int, epochs)], {c[0]: [*map(float, c[1:])] for c in columns}


def beside(runs: Sequence[Run], folder: pathlib.Path) -> Iterator[str]:
  """Yields a table and a plot; nothing if no run has finished an epoch."""
  epochs, logs = read()
  rows = []
  ours = {}
  for name, figures in logs.items():
    cells = [f'{epochs[-1]}', *(f'{x:.2f}' for x in figures[-2:])]
    rows.append([f'log, seed {name}', *cells])
  for run in runs:
    if found := _by_epoch(run):
      ours[run.name] = x, y = [*found], [*found.values()]
      test = run.analyses.get('eval_test', {}).get('at_temperature')
      cells = [f'{x[-1]}', f'{y[-1]:.2f}', f'{test["ppl"]:.2f}' if test else '']
      rows.append([f'ours, {run.name}', *cells])
  if not ours:
    return

  def plot(figure):
    axes = figure.subplots()
    for *y, _ in logs.values():
      axes.plot(epochs, y, color=pictures.PALE, linewidth=0.9)
    pictures.lines(axes, ours)
    label = 'validation perplexity; grey: the four logs'
    axes.set(xscale='log', yscale='log', xlabel='epoch', ylabel=label)
    axes.set_xticks(x := (1, 2, 5, 10, 20, 50, 100), x)
    axes.set_yticks(y := (60, 80, 100, 150, 200, 300), y)
    axes.minorticks_off()

  table = markdown.table(['', 'epoch', 'validation', 'test'], rows)
  yield f'{_NOTE}\n\n{table}'
  if pictures.draw(path := folder / 'table_5_logs.png', plot):
    yield f'![validation perplexity by epoch]({path.name})'


def _by_epoch(run):
  """{epoch: validation perplexity, counted as in the logs}."""
  return {
    r['epochs']: math.exp(x)
    for r in run.records
    if r.get('epochs') and (x := r['nats'] * 7375 / 7376) < 700  # False for NaN
  }
