"""What the folders of runs hold, for a report."""

import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax.models import MODELS
from txl_jax.modes import analysis, sections
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log, workdir

# Of a gap between two lines of the log, as a multiple of the usual one: the
# run was stopped in between.
_STOPPED = 10


@dataclasses.dataclass(frozen=True)
class Run:
  """A run, as its folder tells."""

  name: str  # the folder, as seen from the one that was given
  config: Mapping[str, Any]  # flat
  records: Sequence[Mapping[str, Any]]  # of metrics.jsonl
  analyses: Mapping[str, Mapping[str, Any]]  # by their file, without .json
  damaged: Sequence[UserError] = ()  # of analyses

  @property
  def trained(self) -> bool:
    """Whether there is a run; speed is also measured of fresh weights."""
    return bool(self.config)

  @property
  def experiment(self) -> str:
    """The config that it is a run of, or else its own name."""
    return self.config.get('experiment') or self.name

  @property
  def unit(self) -> str:
    """'bpc' or 'ppl'."""
    return 'bpc' if any('bpc' in r for r in self.records) else 'ppl'

  @property
  def step(self) -> int:
    """The last one in the log."""
    return max((r['step'] for r in self.records), default=0)

  @property
  def finished(self) -> bool:
    """Whether it has made all its steps."""
    epochs = max((r.get('epochs', 0) for r in self.records), default=0)
    ended = 0 < self.config.get('train.epochs', 0) <= epochs
    return ended or self.step >= self.config['train.steps']

  def curve(self, split: str = 'validation') -> tuple[list[int], list[float]]:
    """(Tokens that were trained on, figures) of the evaluations of a split."""
    steps, figures = self._evaluations(split)
    a_step = self.config['train.batch_size'] * self.config['train.segment_len']
    return [step * a_step for step in steps], figures

  def _evaluations(self, split):
    """(Steps, figures) of a split, those that are finite."""
    pairs = [
      (r['step'], r[self.unit])
      for r in self.records
      if r['split'] == split and math.isfinite(r.get(self.unit, math.nan))
    ]
    return [step for step, _ in pairs], [x for _, x in pairs]

  @property
  def sweep(self) -> Mapping[str, Any] | None:
    """That over attention lengths, of the validation split, as in the paper."""
    found = self.analyses.get('attention_length')
    return found if found and found['split'] == 'validation' else None

  @property
  def best(self) -> float | None:
    """The best figure on the validation split, None before the first."""
    return min(self.curve()[1], default=None)

  @property
  def seconds(self) -> float:
    """How long it has trained, evaluations included, interruptions not."""
    times = [r['time'] for r in self.records if r['split'] == 'train']
    gaps = [b - a for a, b in itertools.pairwise(times)]
    if not gaps:
      return 0.0
    usual = statistics.median(gaps)
    gaps = [usual if gap > _STOPPED * usual else gap for gap in gaps]
    return sum(gaps) * len(times) / len(gaps)  # the first line's own

  @functools.cached_property
  def identity(self) -> str:
    """Equal for runs that differ in their seed, folders and reports alone."""
    declared = sections.sections(self.config['model.name'])
    kept = {
      name: value
      for name, value in self.config.items()
      if name.rpartition('.')[0] in declared
      and not sections.same_experiment(declared, name)
    }
    return json.dumps([self.experiment, kept], sort_keys=True)

  @property
  def best_step(self) -> int:
    """That of the best figure on the validation split, 0 before the first."""
    steps, figures = self._evaluations('validation')
    return steps[figures.index(min(figures))] if steps else 0


def runs(folder: pathlib.Path) -> Iterator[Run | UserError]:
  """The runs in a folder, or within those in it; errors of what is left out.

  That are damaged runs and analyses, and analyses of an older checkpoint than
  the best one of now. A folder where there is no run, but speed was measured,
  has a Run without a config. UserError: it is no folder.
  """
  if not folder.is_dir():
    raise UserError(f'--runs={folder}; allowed: a folder with runs in it')
  every = list(_folders(folder))
  both = workdir.CONFIG, metrics_log.NAME
  trained = {x for x in every if all((x / name).exists() for name in both)}
  speed = f'{analysis.FOLDER}/eval_speed.json'
  for path in sorted(trained | {x for x in every if (x / speed).exists()}):
    name = f'{path.relative_to(folder)}'
    try:
      fresh = path not in trained
      run = Run(name, {}, [], *_analyses(path)) if fresh else read(path, name)
    except UserError as e:
      yield e
      continue
    yield from run.damaged
    current = {}
    for program, found in run.analyses.items():
      step = found.get('checkpoint_step')
      if type(step) is int and step < run.best_step:
        yield UserError(
          f'{path / analysis.FOLDER / program}.json is of step {step}, and the '
          f'best checkpoint of the run is now that of step {run.best_step}'
        )
      else:
        current[program] = found
    yield dataclasses.replace(run, analyses=current)


def _folders(folder):
  """A folder and those within it, also by links, each of them once.

  Not those of checkpoints, in which there is much and no run.
  """
  seen, checkpoints = set(), workdir.checkpoints(folder).name
  for path, inside, _ in os.walk(folder, followlinks=True):
    if (real := os.path.realpath(path)) in seen:
      inside.clear()
      continue
    seen.add(real)
    inside[:] = [name for name in inside if name != checkpoints]
    yield pathlib.Path(path)


def read(folder: pathlib.Path, name: str) -> Run:
  """The run in a folder; UserError if its config or record is damaged."""
  path = folder / workdir.CONFIG
  config = settings.flatten(files.read_json(path))
  if (model := config.get('model.name')) not in MODELS:
    settings.refuse(f'{path}: model.name', model, ', '.join(MODELS))
  records = metrics_log.read(folder / metrics_log.NAME)
  return Run(name, config, records, *_analyses(folder))


def _analyses(folder):
  found, damaged = {}, []
  for path in sorted((folder / analysis.FOLDER).glob('*.json')):
    try:
      found[path.stem] = files.read_json(path)
    except UserError as e:
      damaged.append(e)
  return found, damaged
