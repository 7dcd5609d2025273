"""Begins a run or continues it: all that precedes the first step.

Order: find the newest intact checkpoint; encode the corpus with its vocabulary;
compare its config and corpus with those of the command; build and compile the
step; restore the arrays onto this mesh; move aside what the folder has of later
steps or of another run; write the files of the folder. The loop then cuts the
log back to the step.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax.data.prepared import Prepared
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, errors, settings
from txl_jax.program.errors import UserError, shown
from txl_jax.runs import workdir
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.runs.metrics_log import Mark
from txl_jax.runs.terminal import Console
from txl_jax.training import optim
from txl_jax.training import plan as plan_lib
from txl_jax.training import state as state_lib
from txl_jax.training.host_state import HostState, Progress
from txl_jax.training.train_config import Config


@dataclasses.dataclass(frozen=True)
class Run:
  """What stays the same while a run trains."""

  config: Config
  corpus: Prepared  # with the vocabulary of the checkpoint, if there is one
  folder: pathlib.Path
  mesh: Mesh
  plan: plan_lib.Plan
  checkpoints: Checkpoints
  console: Console

  @property
  def kernel(self) -> str:
    """That of attention, as saved in checkpoints; '' without attention."""
    return self.plan.kernel.kept or self.plan.kernel.name


class Saved(NamedTuple):
  """A checkpoint, its arrays not yet read."""

  step: int
  host: HostState

  @classmethod
  def read(cls, checkpoints: Checkpoints, step: int) -> 'Saved':
    """UserError if the step is damaged."""
    return cls(step, HostState.read(checkpoints, step))


@dataclasses.dataclass(frozen=True)
class Position:
  """Where a run is: its arrays and its progress after a step."""

  state: state_lib.TrainState  # on the mesh
  step: int = 0
  progress: Progress = dataclasses.field(default_factory=Progress)
  log: Mark = dataclasses.field(default_factory=Mark)  # the end of its log
  # Whether the memory of its checkpoint was left out: saved again, this step
  # would lose it.
  emptied: bool = False
  converted: bool = False  # whether the weights come from elsewhere
  changes: str = ''  # of the config, since the checkpoint


def begin(
  config: Config,
  folder: pathlib.Path,
  corpus: Prepared,
  mesh: Mesh,
  console: Console,
  pretrained: Callable[[], Any] | None,
) -> tuple[Run, Position]:
  """The run in a folder, which this process has locked, and where it is.

  `pretrained` reads the model of train.init_from, None without it; it is called
  only for a new run. UserError: the run cannot continue with this config and
  corpus, no checkpoint is usable, or see `plan.make`.
  """
  found = Checkpoints(workdir.checkpoints(folder))
  step = newest(found, folder, config.train.resume)
  saved = None if step is None else Saved.read(found, step)
  initial, origin = None, ''
  if saved:
    corpus = _encoded_as_saved(config, folder, corpus, saved)
    origin = saved.host.config.get('origin', '')
  elif pretrained:
    initial = pretrained()
    origin = initial.origin
    prepared = corpus
    corpus = prepared.encoded_with(initial.vocabulary)
    if line := corpus.unknown_line(prepared, 'train', 'validation'):
      console.say(line)
  config = settings.replace(config, {'origin': origin})
  if saved:
    processes.on_main(lambda: compare(folder, config, corpus, saved.host))
    if config.train.steps < saved.step:
      allowed = f'at least {saved.step}, which the run in {folder} has made'
      errors.refuse('train.steps', config.train.steps, allowed)
  with console.phase('compiling', plain='compiling'):
    done, kernel = (saved.step, saved.host.kernel) if saved else (0, '')
    plan = plan_lib.make(config, corpus, mesh, done, kernel, console.say)
  for line in plan_lib.summary_lines(config, plan.streams):
    console.say(line)
  checkpoints = Checkpoints(
    workdir.checkpoints(folder),
    asynchronous=config.train.async_checkpoints,
    texts={workdir.VOCABULARY: workdir.vocabulary_text(corpus.vocabulary)},
  )
  run = Run(config, corpus, folder, mesh, plan, checkpoints, console)
  if saved:
    with console.phase(f'restoring step {saved.step}'):
      position = restore(run, saved)
  else:
    position = fresh(run, initial)
  host = saved and saved.host
  processes.on_main(lambda: workdir.describe(folder, config, corpus, host))
  return run, position


def newest(
  checkpoints: Checkpoints, folder: pathlib.Path, resume: str
) -> int | None:
  """The step to continue from, or None for a new run in the folder.

  UserError if there are checkpoints but none can be used, or `resume` (the key
  train.resume) is 'never'; or if it is 'must' and there are none.
  """
  processes.on_main(checkpoints.recover)
  steps = processes.on_main(checkpoints.steps)
  if steps and resume == 'never':
    raise UserError(
      f'{folder} holds checkpoints (newest: step {steps[0]}) and train.resume '
      'is never; allowed: auto, must, or another --workdir'
    )
  found = checkpoints.newest()
  if found is None and steps:
    raise UserError(
      f'{checkpoints.folder} holds checkpoints {steps}, none of which can be '
      'used; restore one, or choose another --workdir'
    )
  if found is None and resume == 'must':
    allowed = 'train.resume is must; allowed: auto, never'
    raise UserError(f'{folder} holds no checkpoint and {allowed}')
  return found


def _encoded_as_saved(config, folder, corpus, saved):
  """The corpus with the vocabulary of the checkpoint; UserError if impossible.

  Converted weights may have the symbols of the corpus in another order; with
  train.init_from, the symbols themselves may differ.
  """
  init_from, host = config.train.init_from, saved.host
  if init_from and not host.trained:
    allowed = f"'', because {folder} already holds initial weights"
    errors.refuse('train.init_from', init_from, allowed)
  if host.corpus == corpus.digest:
    return corpus
  vocabulary = workdir.vocabulary(folder, saved.step)
  began = host.config.get('train.init_from')
  if init_from and began and init_from == buckets.absolute(began):
    return corpus.encoded_with(vocabulary)
  return corpus.ordered_like(vocabulary)


def compare(
  folder: pathlib.Path, config: Config, corpus: Prepared, saved: HostState
) -> None:
  """Checks that a command may continue the run in the folder; writes nothing.

  UserError if its checkpoint has another config or corpus or, for converted
  weights, another model or vocabulary.
  """
  free = () if saved.trained else (settings.AT_TEST_TIME,)
  free = settings.OTHER, settings.ON_RESUME, *free
  now = settings.flatten(config)
  changed = settings.differences(config, now, saved.config, *free)
  for name, here, before in changed:
    if saved.trained or name.startswith('model.'):
      raise UserError(
        f'{folder} holds a run with {name} = {shown(before)}, this command has '
        f'{shown(here)}; continue with the same value, or begin another '
        f'--workdir; train.init_from={folder} gives it this model'
      )
  if not saved.trained:
    ours = corpus.vocabulary
    theirs = workdir.vocabulary(folder, 0)
    if ours.symbols != theirs.symbols:
      raise UserError(
        f'corpus {corpus.name} and the weights in {folder} differ in '
        f'vocabulary ({len(ours)} and {len(theirs)} symbols); allowed: the '
        'same one, or another --workdir with train.init_from'
      )
  elif saved.corpus != corpus.digest:
    raise UserError(
      f'{folder} holds a run on another corpus (sha256 {saved.corpus[:12]}), '
      f'found {corpus.name} (sha256 {corpus.digest[:12]}); allowed: the same '
      'corpus, or another --workdir'
    )


def fresh(run: Run, initial: Any = None) -> Position:
  """The position before the first step, with the weights of a model if any."""
  built = run.plan.built
  with run.console.phase('initialising parameters'):
    # An out-of-memory error is raised here, before anything is written.
    state = placement.create(built.create, built.abstract)
    state = jax.block_until_ready(state)
  if initial:
    state, line = initial.into(state, run.config, run.mesh)
    run.console.say(line)
  return Position(state, converted=initial is not None)


def restore(run: Run, saved: Saved, keep_memory: bool = True) -> Position:
  """The position of a checkpoint of the run.

  Its memory is empty without `keep_memory`, or if the batch has another size.
  UserError: the checkpoint is damaged, or holds other arrays.
  """
  step, host = saved
  if not host.trained:
    return _converted(run, saved)
  built = run.plan.built
  B = run.config.train.batch_size
  same_rows = host.config.get('train.batch_size', B) == B
  has_memory = bool(jax.tree.leaves(built.abstract.memory))
  empties = has_memory and not (keep_memory and same_rows)
  wanted = built.abstract.replace(memory=()) if empties else built.abstract
  opt_state = _saved_optimiser_state(run, host)
  items = state_lib.split(wanted.replace(opt_state=opt_state))
  # The memory may have the dtype of another device, or an earlier model.dtype.
  items = run.checkpoints.restore(step, cast=('memory',), **items)
  state = state_lib.join(items)
  opt_state = _with_structure(state.opt_state, built.abstract.opt_state)
  state = state.replace(opt_state=opt_state)
  if int(state.step) != step:
    where = f'{run.checkpoints.folder}/{step}'
    raise UserError(f'{where} holds the state of step {state.step}')
  processes.on_main(lambda: run.checkpoints.clean(step))
  line = '; the memory starts empty' if empties else ''
  run.console.say(f'continuing from step {step}{line}')
  if empties:
    empty = functools.partial(built.model.init_memory, B)
    memory = placement.create(empty, built.abstract.memory)
    state = state.replace(memory=memory)
  if changes := _changes(run.config, host):
    run.console.say(f'changed: {changes}')
  for line in host.other_versions(run.kernel):
    run.console.say(line)
  state = decided(run, state, host.progress)
  return Position(
    state, step, host.progress, host.record, empties, changes=changes
  )


def _converted(run, saved):
  """The position of converted weights; the rest of the state is fresh."""
  built = run.plan.built
  state = placement.create(built.create, built.abstract)
  weights = run.checkpoints.restore(saved.step, params=built.abstract.params)
  state = state.replace(**weights)
  processes.on_main(lambda: run.checkpoints.clean(saved.step))
  names = state_lib.not_loaded(state)
  run.console.say(f'beginning with converted weights; fresh: {names}')
  host = saved.host
  return Position(state, saved.step, host.progress, host.record, converted=True)


def _changes(config, host):
  """The keys that may differ from the checkpoint and do, in words."""
  now = settings.flatten(config)
  found = settings.differences(config, now, host.config, settings.ON_RESUME)
  return '; '.join(f'{k} {shown(x)}, was {shown(y)}' for k, x, y in found)


def _saved_optimiser_state(run, host):
  """The abstract state of the optimiser, nested as in the checkpoint.

  Other values of optim nest the same arrays, in the same order, in other
  tuples: a rule that they leave out has no array.
  """
  built = run.plan.built
  values = vars(run.config.optim).items()
  then = {k: host.config.get(f'optim.{k}', x) for k, x in values}
  saved = optim.optimiser(
    optim.Optim(**then), run.plan.steps, built.model.NOT_DECAYED
  )
  nested = jax.eval_shape(saved.init, built.abstract.params)
  return _with_structure(built.abstract.opt_state, nested)


def _with_structure(tree, like):
  """The leaves of a pytree in another of as many."""
  return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(tree))


def decided(
  run: Run, state: state_lib.TrainState, progress: Progress
) -> state_lib.TrainState:
  """The state with the decisions of the last evaluation.

  They are the scale of the learning rate, and where averaging starts.
  """
  config = run.config.optim
  average = state.average
  everywhere = placement.replicated(run.mesh)
  if config.average == 'nt':
    start = placement.put(np.int32(progress.trigger.start), everywhere)
    average = average.replace(start=start)
  is_plateau = config.schedule == 'plateau'
  scale = np.float32(progress.plateau.scale if is_plateau else 1)
  scale = placement.put(scale, everywhere)
  return state.replace(lr_scale=scale, average=average)
