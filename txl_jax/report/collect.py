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

import jax

from txl_jax import models
from txl_jax.experiment import restore, sections
from txl_jax.models import base
from txl_jax.program import errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log, workdir
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.training import resume

# Of a gap between two lines of the log, as a multiple of the usual one: the
# run was stopped in between.
_STOPPED = 10


@dataclasses.dataclass(frozen=True)
class Run:
  """A run, as its folder tells."""

  name: str  # its folder, as seen from the one that was given
  config: Mapping[str, Any]  # flat
  records: Sequence[Mapping[str, Any]]  # of metrics.jsonl
  analyses: Mapping[str, Mapping[str, Any]]  # by their file, without .json
  damaged: Sequence[UserError] = ()  # of analyses
  folder: pathlib.Path = pathlib.Path()

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

  @property
  def tokens(self) -> int:
    """Those that a step is trained on."""
    return self.config['train.batch_size'] * self.config['train.segment_len']

  @property
  def evaluations(self) -> Sequence[Mapping[str, Any]]:
    """The records of the validation split, those whose figure is finite."""
    return [
      r
      for r in self.records
      if r['split'] == 'validation'
      and math.isfinite(r.get(self.unit, math.nan))
    ]

  def curve(self) -> tuple[list[int], list[float]]:
    """(Tokens that were trained on, figures) of the evaluations."""
    found = self.evaluations
    steps = [r['step'] * self.tokens for r in found]
    return steps, [r[self.unit] for r in found]

  @property
  def best(self) -> Mapping[str, Any]:
    """The record of the best evaluation, {} before the first."""
    return min(self.evaluations, key=lambda r: r[self.unit], default={})

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
    like = sections.defaults(self.config['model.name'])
    kept = {
      name: value
      for name, value in self.config.items()
      if name.rpartition('.')[0] in settings.sections(like)
      and not sections.same_experiment(like, name)
    }
    return json.dumps([self.experiment, kept], sort_keys=True)

  @functools.cached_property
  def made(self) -> tuple[int, str]:
    """Parameters, 0 without a checkpoint, and device, '' if unknown."""
    saved = Checkpoints(workdir.checkpoints(self.folder))
    try:
      step = restore.choose(saved, 'latest', '')
      vocab_size = len(workdir.vocabulary(self.folder, step))
      section = restore.recorded(self.folder).model
      shapes = base.param_shapes(models.build(section, vocab_size))
      device = resume.HostState.read(saved, step).versions.get('platform', '')
      return sum(x.size for x in jax.tree.leaves(shapes)), device
    except UserError:
      found = (a.get('trained_on') for a in self.analyses.values())
      return 0, next(filter(None, found), '')


def runs(*folders: pathlib.Path) -> Iterator[Run | UserError]:
  """The runs in folders, or within those in it; errors of what is left out.

  That are damaged runs and analyses, and analyses of an older checkpoint than
  the best one of now. A folder where there is no run, but speed was measured,
  has a Run without a config. UserError: it is no folder.
  """
  for folder in folders:
    if not folder.is_dir():
      raise UserError(f'{folder} is no folder; allowed: folders of runs')
  every = list(_folders(folders))
  both = workdir.CONFIG, metrics_log.NAME
  trained = {x for x in every if all((x / name).exists() for name in both)}
  speed = f'{workdir.ANALYSIS}/eval_speed.json'
  found = sorted(trained | {x for x in every if (x / speed).exists()})
  above = os.path.commonpath([x.parent for x in found]) if found else ''
  for path in found:
    name = f'{path.relative_to(above)}'
    try:
      fresh = path not in trained
      own = name, {}, [], *_analyses(path), path
      run = Run(*own) if fresh else read(path, name)
    except UserError as e:
      yield e
      continue
    yield from run.damaged
    current, best_step = {}, run.best.get('step', 0)
    for program, measured in run.analyses.items():
      step = measured.get('checkpoint_step')
      if type(step) is int and step < best_step:
        yield UserError(
          f'{path / workdir.ANALYSIS / program}.json is of step {step}, and '
          f'the best checkpoint of the run is now that of step {best_step}'
        )
      else:
        current[program] = measured
    yield dataclasses.replace(run, analyses=current)


def _folders(folders):
  """Absolute folders and those within them, also by links, each of them once.

  Not those of checkpoints, in which there is much and no run.
  """
  seen = set()
  for folder in folders:
    checkpoints = workdir.checkpoints(folder).name
    for path, inside, _ in os.walk(folder.absolute(), followlinks=True):
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
  if (model := config.get('model.name')) not in models.MODELS:
    errors.refuse(f'{path}: model.name', model, ', '.join(models.MODELS))
  records = metrics_log.read(folder / metrics_log.NAME)
  return Run(name, config, records, *_analyses(folder), folder)


def _analyses(folder):
  found, damaged = {}, []
  for path in sorted((folder / workdir.ANALYSIS).glob('*.json')):
    try:
      found[path.stem] = files.read_json(path)
    except UserError as e:
      damaged.append(e)
  return found, damaged
