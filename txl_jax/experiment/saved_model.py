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
from txl_jax.program import settings
from txl_jax.program.errors import UserError, refuse, shown
from txl_jax.runs import checkpoint, workdir
from txl_jax.training import averaging, host_state


class Restored(NamedTuple):
  """A checkpoint of a trained model, restored by `load`."""

  step: int
  params: Any  # for inference, on the mesh
  averaged: int  # number of steps that they average; 0 without averaging
  vocabulary: AnyVocabulary
  config: dict[str, Any]  # of the run, flat
  trained_on: str  # platform of the training devices
  mesh: Mesh  # of the parameters
  corpus: str = ''  # digest of the training corpus; '' if unknown


def load(config: sections.Config, folder: pathlib.Path, mesh: Mesh) -> Restored:
  """Restores the model of a run; the key `checkpoint` chooses the step.

  UserError if the checkpoint does not exist or holds another model.
  """
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  step = choose(checkpoints, config.checkpoint)
  host = host_state.HostState.read(checkpoints, step)
  fitting = f'no --config, or that of the run, --config={folder}/config.py'
  check_model(config, host.config, f'{folder} holds another model', fitting)
  vocabulary = workdir.vocabulary(folder, step)
  model = models.build(config.model, len(vocabulary))
  shapes = base.param_shapes(model)
  params, averaged = weights(checkpoints, step, model, shapes, mesh)
  return Restored(
    step=step,
    params=model.inference_params(params),
    averaged=averaged,
    vocabulary=vocabulary,
    config=host.config,
    trained_on=host.versions.get('platform', ''),
    mesh=mesh,
    corpus=host.corpus,
  )


def weights(
  checkpoints: checkpoint.Checkpoints,
  step: int,
  model: base.LanguageModel,
  shapes: Any,
  mesh: Mesh,
) -> tuple[Any, int]:
  """Restores parameters onto the mesh: averaged ones if any, else the latest.

  Also returns the number of averaged steps, 0 for the latest parameters.
  UserError if the checkpoint has other shapes than `shapes`.
  """

  def restore(item: str, abstract: Any) -> Any:
    placed = placement.by_rules(abstract, mesh, model.SHARDING)
    abstract = placement.with_shardings(abstract, placed)
    return checkpoints.restore(step, **{item: abstract})[item]

  if checkpoints.has(step, 'average'):
    averager = averaging.Averager(1.0, averaging.NEVER)
    average = restore('average', jax.eval_shape(averager.init, shapes))
    if averaged := averaging.count(average):
      return average.params, averaged
  return restore('params', shapes), 0


def recorded(folder: pathlib.Path) -> sections.Config:
  """The config in the newest checkpoint of a run.

  Keys that the checkpoint lacks have their defaults. UserError if there is no
  checkpoint.
  """
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  newest = choose(checkpoints, 'latest', '')
  saved = host_state.HostState.read(checkpoints, newest).config
  defaults = sections.defaults(saved.get('model.name'))
  known = settings.flatten(defaults)
  saved = {k: x for k, x in saved.items() if k in known and x is not None}
  return sections.changed(defaults, saved)


def check_model(
  config: sections.Config, saved: Mapping[str, Any], where: str, allowed: str
) -> None:
  """UserError unless a config and a saved, flat config have the same model."""
  differ = other_keys(config, saved)
  if differ and differ[0][0] == 'model.name':
    differ = differ[:1]  # other keys differ because the name does
  if differ:
    lines = [f'{k} is {shown(x)}, not {shown(y)}' for k, x, y in differ]
    raise UserError(f'{where}: {"; ".join(lines)}; allowed: {allowed}')


def other_keys(
  config: sections.Config, saved: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
  """Model keys fixed by training that differ, as (key, value, saved value)."""
  flat = settings.flatten(config)
  differ = settings.differences(config, flat, saved, *settings.USED)
  return [entry for entry in differ if entry[0].startswith('model.')]


def choose(
  checkpoints: checkpoint.Checkpoints, which: str, flag: str = '--workdir='
) -> int:
  """The step that the key `checkpoint` selects; UserError if none exists.

  In messages, `flag` precedes the folder of the run.
  """
  if which.isdecimal():
    if not checkpoints.usable(int(which)):
      steps = checkpoints.steps()
      refuse('checkpoint', which, f'best, latest or one of {steps}')
    return int(which)
  gone = ''
  # The newest host state records the best step, -1 without an evaluation.
  if which == 'best' and (last := checkpoints.newest('host')) is not None:
    best = host_state.HostState.read(checkpoints, last).progress.best_step
    if best >= 0:
      if checkpoints.usable(best):
        return best
      gone = f'warning: the best checkpoint, {best}, is gone'
  newest = checkpoints.newest()
  if newest is None:
    if not checkpoints.folder.exists():
      run = checkpoints.folder.parent
      raise UserError(f'{flag}{run} holds no run; train one first')
    raise UserError(
      f'{checkpoints.folder} has no usable checkpoint; found: '
      f'{checkpoints.steps() or "nothing"}'
    )
  if gone and processes.is_main():
    print(f'{gone}; using {newest}', file=sys.stderr)
  return newest


def weights_line(restored: Restored) -> str:
  """The step and averaging of a checkpoint, for the output of a mode."""
  averaged = f', weights averaged over {restored.averaged} steps'
  return f'step {restored.step}{averaged if restored.averaged else ""}'
