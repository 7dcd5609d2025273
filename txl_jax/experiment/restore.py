"""Restores the trained model of a run, to evaluate, generate or export."""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.experiment import sections
from txl_jax.models import base
from txl_jax.parallel import placement, processes
from txl_jax.program import errors, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, workdir
from txl_jax.training import averaging, resume


class Restored(NamedTuple):
  """What `load` finds: a checkpoint."""

  step: int
  params: Any  # of the model at test time, on the mesh
  averaged: int  # steps that they are an average over; 0 is no average
  vocabulary: AnyVocabulary
  config: dict[str, Any]  # of the run, flat
  trained_on: str  # the kind of its devices
  mesh: Mesh  # of the parameters
  corpus: str = ''  # the digest of what it was trained on, '' if not here


def load(config: sections.Config, folder: pathlib.Path, mesh: Mesh) -> Restored:
  """The model of the run in a folder; the key `checkpoint` chooses the step.

  UserError if there is no such checkpoint, or it is of another model.
  """
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  step = choose(checkpoints, config.checkpoint)
  host = resume.HostState.read(checkpoints, step)
  then = host.config
  same = f'no --config, or --config={folder}/config.py, that of the run'
  check_model(config, then, f'{folder} holds another model', same)
  vocabulary = workdir.vocabulary(folder, step)
  model = models.build(config.model, len(vocabulary))
  own = checkpoints, step, model, base.param_shapes(model), mesh
  params, averaged = weights(*own)
  params = model.inference_params(params)
  on = host.versions.get('platform', '')
  about = then, on, mesh, host.corpus
  return Restored(step, params, averaged, vocabulary, *about)


def weights(
  checkpoints: checkpoint.Checkpoints,
  step: int,
  model: base.LanguageModel,
  shapes: Any,
  mesh: Mesh,
) -> tuple[Any, int]:
  """The parameters to use of a checkpoint, and over how many steps averaged.

  They have the shapes that are given, and are on the mesh. UserError if those
  of the checkpoint are others.
  """

  def restore(item, abstract):
    placed = placement.by_rules(abstract, mesh, model.SHARDING)
    abstract = placement.with_shardings(abstract, placed)
    return checkpoints.restore(step, **{item: abstract})[item]

  if checkpoints.has(step, 'average'):
    none = averaging.Averager(1.0, averaging.NEVER)
    average = restore('average', jax.eval_shape(none.init, shapes))
    if averaged := averaging.count(average):
      return average.params, averaged
  return restore('params', shapes), 0


def recorded(folder: pathlib.Path) -> sections.Config:
  """The config that the newest checkpoint of the run in a folder was made with.

  Keys that were declared later have their defaults. UserError if there is none.
  """
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  newest = choose(checkpoints, 'latest', '')
  then = resume.HostState.read(checkpoints, newest).config
  defaults = sections.defaults(then.get('model.name'))
  known = settings.flatten(defaults)
  then = {k: x for k, x in then.items() if k in known and x is not None}
  return sections.changed(defaults, then)


def check_model(
  config: sections.Config, then: Mapping[str, Any], where: str, allowed: str
) -> None:
  """Raises a UserError unless the config has the model of another, flat one."""
  found = other_keys(config, then)
  if found and found[0][0] == 'model.name':
    found = found[:1]  # the rest is because of that
  if found:
    shown = errors.shown
    differ = [f'{k} is {shown(x)}, there {shown(y)}' for k, x, y in found]
    raise UserError(f'{where}: {"; ".join(differ)}; allowed: {allowed}')


def other_keys(
  config: sections.Config, then: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
  """The keys of a model that make it another than that of a flat config."""
  now, then = (
    {k: x for k, x in flat.items() if k.startswith('model.')}
    for flat in (settings.flatten(config), then)
  )
  free = settings.IN_USE, settings.AT_TEST_TIME, settings.ON_RESUME
  return [*settings.differences(config, now, then, *free)]


def choose(
  checkpoints: checkpoint.Checkpoints, which: str, named: str = '--workdir='
) -> int:
  """The step that the key `checkpoint` means; UserError without one.

  The run is `named` by what stands before its folder.
  """
  if which.isdecimal():
    if not checkpoints.usable(int(which)):
      steps = checkpoints.steps()
      errors.refuse('checkpoint', which, f'best, latest or one of {steps}')
    return int(which)
  best = -1  # nothing was evaluated yet
  # The newest knows which is the best.
  if which == 'best' and (knows := checkpoints.newest('host')) is not None:
    best = resume.HostState.read(checkpoints, knows).progress.best_step
    if best >= 0 and checkpoints.usable(best):
      return best
  newest = checkpoints.newest()
  if newest is None:
    if not checkpoints.folder.exists():
      run = checkpoints.folder.parent
      raise UserError(f'{named}{run} holds no run; train one first')
    found = checkpoints.steps() or 'nothing'
    none = 'holds no checkpoint that can be used'
    raise UserError(f'{checkpoints.folder} {none}; found: {found}')
  if best >= 0 and processes.is_main():
    gone = f'warning: the best checkpoint, {best}, is gone; using {newest}'
    print(gone, file=sys.stderr)
  return newest


def weights_line(found: Restored) -> str:
  """The checkpoint in words, for what a mode prints."""
  averaged = f', weights averaged over {found.averaged} steps'
  return f'step {found.step}{averaged if found.averaged else ""}'
