"""What the folders of runs hold, for a report."""

import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txl_jax import files, settings
from txl_jax.errors import UserError
from txl_jax.modes import analysis, sections
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
    return self.step >= self.config['train.steps']

  def curve(self, split: str = 'validation') -> tuple[list[int], list[float]]:
    """(Tokens that were trained on, figures) of the evaluations of a split."""
    found = [r for r in self.records if r['split'] == split]
    a_step = self.config['train.batch_size'] * self.config['train.segment_len']
    return [r['step'] * a_step for r in found], [r[self.unit] for r in found]

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
      if not _is_free(declared, name) and name not in ('seed', 'experiment')
    }
    return json.dumps([self.experiment, kept], sort_keys=True)


def _is_free(declared, name):
  """Whether a key may change on resume: it does not make another experiment."""
  section, _, own = name.rpartition('.')
  there = settings.keys(declared[section]) if section in declared else {}
  return own in there and there[own].may_change == settings.ON_RESUME


def runs(folder: pathlib.Path) -> Iterator[Run | UserError]:
  """The runs in a folder, or within those in it; errors of which are damaged.

  UserError: it is no folder.
  """
  if not folder.is_dir():
    raise UserError(f'--runs={folder}; allowed: a folder with runs in it')
  for path in sorted(folder.rglob(workdir.CONFIG)):
    if (path.parent / metrics_log.NAME).exists():
      try:
        yield read(path.parent, f'{path.parent.relative_to(folder)}')
      except UserError as e:
        yield e


def read(folder: pathlib.Path, name: str) -> Run:
  """The run in a folder; UserError if a file of it is damaged."""
  config = settings.flatten(files.read_json(folder / workdir.CONFIG))
  records = metrics_log.read(folder / metrics_log.NAME)
  analyses = {
    path.stem: files.read_json(path)
    for path in sorted((folder / analysis.FOLDER).glob('*.json'))
  }
  return Run(name, config, records, analyses)
