"""Collects configs, metrics and analyses from run folders."""

import dataclasses
import functools
import importlib
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
from txl_jax.experiment import saved_model, sections
from txl_jax.models import base
from txl_jax.program import errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log, workdir
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.training import host_state

# A longer gap between two lines of the log, as a multiple of the median gap,
# means that the run was interrupted.
_STOPPED = 10


@dataclasses.dataclass(frozen=True)
class Run:
  """The files of a run folder, and values derived from them."""

  name: str  # its folder, relative to the folder of all runs
  config: Mapping[str, Any]  # flat; empty without training, only measured speed
  records: Sequence[Mapping[str, Any]]  # the lines of metrics.jsonl
  analyses: Mapping[str, Mapping[str, Any]]  # by file name without .json
  damaged: Sequence[UserError] = ()  # errors of unreadable analyses
  folder: pathlib.Path = pathlib.Path()

  @property
  def experiment(self) -> str:
    """The config that was named on the command line, or else its own name."""
    return self.config.get('experiment', '').rstrip('+') or self.name

  @functools.cached_property
  def changes(self) -> str:
    """The keys that a command has changed, 'lr 0.001, steps 300'; '' if none.

    With them, it is another experiment than the config.
    """
    if not self.config.get('experiment', '').endswith('+'):
      return ''
    name, like = named_config(self.config)
    if name != self.experiment:
      return 'some keys'
    changed = sorted(self._settings.items() - settings.flatten(like).items())
    return ', '.join(f'{k.rpartition(".")[2]} {x}' for k, x in changed)

  @property
  def unit(self) -> str:
    """'bpc' or 'ppl'."""
    return 'bpc' if any('bpc' in r for r in self.records) else 'ppl'

  @property
  def step(self) -> int:
    """The step of the newest checkpoint, or else the last one in the log."""
    logged = (r['step'] for r in self.records)
    return self.saved[0] if self.saved else max(logged, default=0)

  @property
  def finished(self) -> bool:
    """Whether it has reached its number of steps or epochs."""
    epochs = max((r.get('epochs', 0) for r in self.records), default=0)
    ended = 0 < self.config.get('train.epochs', 0) <= epochs
    return ended or self.step >= self.config['train.steps']

  @property
  def tokens(self) -> int:
    """Tokens per training step."""
    return self.config['train.batch_size'] * self.config['train.segment_len']

  def finite(self, split: str) -> Sequence[Mapping[str, Any]]:
    """The records of 'train' or 'validation' whose metric is finite."""
    records = [r for r in self.records if r['split'] == split]
    return [r for r in records if math.isfinite(r.get(self.unit, math.nan))]

  def curve(self, split: str) -> dict[int, float]:
    """{tokens trained on: metric} of 'train' or 'validation'."""
    return {r['step'] * self.tokens: r[self.unit] for r in self.finite(split)}

  @property
  def best(self) -> Mapping[str, Any]:
    """The record of the best evaluation; {} without one."""
    records = self.finite('validation')
    return min(records, key=lambda r: r[self.unit], default={})

  @property
  def seconds(self) -> float:
    """Training time, including evaluations but not interruptions."""
    times = [r['time'] for r in self.records if r['split'] == 'train']
    gaps = [b - a for a, b in itertools.pairwise(times)]
    if not gaps:
      return 0.0
    usual = statistics.median(gaps)
    gaps = [usual if gap > _STOPPED * usual else gap for gap in gaps]
    return sum(gaps) * len(times) / len(gaps)  # adds a gap for the first line

  @property
  def _settings(self):
    """The config without seed, folders and reporting."""
    keys = settings.all_keys(sections.defaults(self.config['model.name']))
    same = functools.partial(sections.same_experiment, keys)
    return {k: x for k, x in self.config.items() if not same(k)}

  @functools.cached_property
  def identity(self) -> str:
    """Equal for runs that differ only in seed, folders and reporting."""
    return json.dumps([self.experiment, self._settings], sort_keys=True)

  @functools.cached_property
  def saved(self) -> tuple[int, int, str] | None:
    """Step, parameters and device of the newest checkpoint."""
    checkpoints = Checkpoints(workdir.checkpoints(self.folder))
    try:
      step = saved_model.choose(checkpoints, 'latest', '')
      vocab_size = len(workdir.vocabulary(self.folder, step))
      section = saved_model.recorded(self.folder).model
      shapes = base.param_shapes(models.build(section, vocab_size))
      versions = host_state.HostState.read(checkpoints, step).versions
      count = sum(x.size for x in jax.tree.leaves(shapes))
      return step, count, versions.get('platform', '')
    except UserError:
      return None


def named_config(config: Mapping[str, Any]) -> tuple[str, sections.Config]:
  """The --config of a flat config, and the values before keys were changed.

  common:MODEL, with the defaults of the model, for a config file of the user.
  """
  experiment = config.get('experiment', '').rstrip('+')
  file, _, variant = experiment.partition(':')
  try:
    module = importlib.import_module(f'txl_jax.configs.{file}')
    like = module.get_config(*([variant] if variant else []))
    return experiment, settings.fill(sections.like(like), like)
  except (ImportError, UserError, TypeError):
    model = config['model.name']
    return f'common:{model}', sections.defaults(model)


def runs(*folders: pathlib.Path) -> Iterator[Run | UserError]:
  """Yields the runs at any depth in folders, and errors of skipped files.

  Damaged runs and analyses are skipped, and so are analyses of a checkpoint
  older than the current best one. A folder with only a speed measurement gives
  a Run without a config. Raises UserError if an argument is not a folder.
  """
  for folder in folders:
    if not folder.is_dir():
      raise UserError(f'{folder} is not a folder; allowed: folders of runs')
  paths = list(_folders(folders))
  needed = workdir.CONFIG, metrics_log.NAME
  trained = {x for x in paths if all((x / name).exists() for name in needed)}
  speed = f'{workdir.ANALYSIS}/eval_speed.json'
  paths = sorted(trained | {x for x in paths if (x / speed).exists()})
  root = os.path.commonpath([x.parent for x in paths]) if paths else ''
  for path in paths:
    name = f'{path.relative_to(root)}'
    try:
      if path in trained:
        run = read(path, name)
      else:
        run = Run(name, {}, [], *_analyses(path), folder=path)
    except UserError as e:
      yield e
      continue
    yield from run.damaged
    current = {}
    best_step = run.best.get('step', 0)
    for program, measured in run.analyses.items():
      step = measured.get('checkpoint_step')
      if type(step) is int and step < best_step:
        yield UserError(
          f'{path / workdir.ANALYSIS / program}.json is from step {step}, but '
          f'the best checkpoint is now from step {best_step}'
        )
      else:
        current[program] = measured
    yield dataclasses.replace(run, analyses=current)


def _folders(folders):
  """Yields folders and all folders inside, following links, each once.

  Folders of checkpoints are skipped: they are large and contain no run.
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
  """The run in a folder; UserError if its config or metrics are damaged."""
  path = folder / workdir.CONFIG
  config = settings.flatten(files.read_json(path))
  if (model := config.get('model.name')) not in models.MODELS:
    errors.refuse(f'{path}: model.name', model, ', '.join(models.MODELS))
  records = metrics_log.read(folder / metrics_log.NAME)
  return Run(name, config, records, *_analyses(folder), folder=folder)


def _analyses(folder):
  """{file name without .json: contents}, and the errors of damaged files."""
  found, damaged = {}, []
  for path in sorted((folder / workdir.ANALYSIS).glob('*.json')):
    try:
      found[path.stem] = files.read_json(path)
    except UserError as e:
      damaged.append(e)
  return found, damaged
