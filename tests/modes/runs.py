"""A run of a tiny model that nobody has trained, and jobs for it."""

import dataclasses
import json

import jax
import jax.numpy as jnp

from tests import refusing
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.experiment import sections
from txl_jax.experiment.job import Job
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import settings
from txl_jax.runs import checkpoint, metrics_log
from txl_jax.runs.terminal import Console
from txl_jax.training import averaging, host_state, optim
from txl_jax.training import state as state_lib

STEP = 7
VOCABULARY = Bytes((32, 97, 98), (5, 3, 2), (10,))


def config(name='transformer_xl', **model):
  """Its config, with some keys of the model replaced."""
  c = common.get_config(name)
  c.model.update(n_layer=1, d_model=8, n_head=2, d_head=3, d_ff=10, mem_len=4)
  c.model.update(model)
  c.checkpoint = 'latest'
  return c


def filled(tree, x):
  """The same pytree, but every number is x."""
  return jax.tree.map(lambda a: jnp.full_like(a, x), tree)


def host(config, **progress):
  """The host state of a checkpoint, as a dict."""
  progress, mark = host_state.Progress(**progress), metrics_log.Mark()
  flat = settings.flatten(config)
  return dataclasses.asdict(host_state.HostState(progress, mark, flat, '', {}))


def write(
  folder,
  *,
  averaged=None,
  vocabulary=VOCABULARY,
  ones=False,
  without='',
  segment_len=512,
  seed=0,
  **model,
):
  """Writes a run.

  Args:
    folder: pathlib.Path of it.
    averaged: how many steps its average is over; None is no average.
    vocabulary: of the model.
    ones: whether parameters are 1 and their average 2; else they are drawn.
    without: a key that it was made before.
    segment_len: T of its training.
    seed: of the drawn parameters.
    **model: as for `config`.

  Returns:
    The parameters.
  """
  c = config(**model)
  c.train.segment_len = segment_len
  averager = None if averaged is None else averaging.Averager(1.0, 0)
  state = jax.jit(
    lambda: state_lib.create(
      models.build(c.model, len(vocabulary)),
      optim.optimiser(c.optim, c.train.steps),
      8,
      jax.random.key(seed),
      averager,
    )
  )()
  if ones:
    state = state.replace(params=filled(state.params, 1))
  if averaged is not None:
    average = filled(state.average, 2).replace(count=jnp.int32(averaged))
    state = state.replace(average=average)
  folder.joinpath('config.json').write_text(settings.to_json(sections.read(c)))
  text = json.dumps(vocabulary.to_json())
  folder.joinpath('vocabulary.json').write_text(text)
  checkpoints = checkpoint.Checkpoints(
    folder / 'checkpoints', texts={'vocabulary.json': text}
  )
  about = host(c.to_dict())
  about['config'].pop(without, None)
  checkpoints.save(STEP, about, **state_lib.split(state))
  return state.params


def refused(mode, config, folder):
  """The one line that a mode is refused with."""
  return refusing.refused(mode.run, job(config, folder))


def job(config, folder, silent=True, export_file='unused.npz'):
  """What a mode is given; the config is checked as in the program."""
  config = sections.read(config)
  console = Console(silent=silent)
  return Job(config, folder, console, Watch(), export_file)
