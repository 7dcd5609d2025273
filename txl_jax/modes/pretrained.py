"""The model that a new run begins with: train.init_from.

That is a folder of a run, also one of converted weights, or a file of
--mode=export. Its weights and its vocabulary are taken; the rest is as in any
new run.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.modes import restore, sections
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, seal, weights_file, workdir
from txl_jax.training import resume
from txl_jax.training import state as state_lib

_KEY = 'train.init_from'


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """What is known of another model before its arrays are read."""

  path: pathlib.Path
  step: int | None  # of the checkpoint; None of an export
  sha256: str  # of the file, or of the seal of the checkpoint
  vocabulary: AnyVocabulary
  config: Mapping[str, Any]  # flat; of an export only the section `model`

  @property
  def name(self) -> str:
    """Which weights these are."""
    return f'{self.path}' + ('' if self.step is None else f', step {self.step}')

  def origin(self) -> str:
    """For the record of the run that begins with it."""
    before = self.config.get('origin')
    own = f'{self.name}, sha256 {self.sha256 or "unknown"}'
    return f'{own}; before: {before}' if before else own

  def encode(self, corpus: Prepared) -> Prepared:
    """A corpus with the token ids of its vocabulary; UserError if it cannot."""
    try:
      return corpus.encoded_with(self.vocabulary)
    except UserError as e:
      raise UserError(f'{_KEY} is {settings.shown(str(self.path))}: {e}') from e

  def into(
    self, state: state_lib.TrainState, config: sections.Config, mesh: Mesh
  ) -> tuple[state_lib.TrainState, str]:
    """The state of a new run with what is taken, and what that is, in words.

    The state is on the mesh, and so is the result. UserError: there are other
    arrays than expected.
    """
    own, averaged = _flat(state.params), 0
    if self.step is None:
      taken = _flat(weights_file.load(self.path)[1])
      taken = {k: placement.put(x, own[k].sharding) for k, x in taken.items()}
    else:
      model = models.build(config.model, len(self.vocabulary))
      saved = checkpoint.Checkpoints(workdir.checkpoints(self.path))
      shapes = jax.eval_shape(lambda x: x, state.params)
      found = saved, self.step, model, shapes, mesh
      params, averaged = restore.weights(*found)
      taken = _flat(params)
    params = flax.traverse_util.unflatten_dict(own | taken, sep='/')
    new = state.replace(params=params)
    count = sum(x.size for x in taken.values())
    of = f', averaged over {averaged} steps' if averaged else ''
    fresh = [state_lib.fresh(state), *(x for x in own if x not in taken)]
    line = f'taken from {self.name}: {count:,} parameters{of}'
    return new, f'{line}, and the vocabulary; fresh: {", ".join(fresh)}'


def _flat(params) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(params, sep='/')


def find(config: sections.Config) -> Pretrained:
  """What train.init_from names; the key `checkpoint` chooses the step.

  UserError: it is neither a run nor an export, or its model is another one than
  that of the config.
  """
  path = buckets.place(buckets.absolute(config.train.init_from), _KEY)
  if path.is_dir():
    saved = checkpoint.Checkpoints(workdir.checkpoints(path))
    step = restore.choose(saved, config.checkpoint, f'{_KEY}=')
    host = resume.Host.read(saved, step)
    digest = processes.on_main(lambda: seal.digest(saved.folder / f'{step}'))
    about = step, digest, workdir.vocabulary(path, step), host.config
  elif path.suffix == '.npz' and not isinstance(path, buckets.Path):
    model, _, vocabulary = weights_file.load(path)
    fields = dataclasses.asdict(model.config).items()
    flat = {f'model.{name}': value for name, value in fields}
    about = None, files.sha256(path), vocabulary, flat
  else:
    allowed = 'the folder of a run, or a local file of --mode=export (.npz)'
    settings.refuse(_KEY, f'{path}', allowed)
  found = Pretrained(path, *about)
  where = f'{_KEY} is {settings.shown(str(path))}, another model'
  restore.check_model(config, found.config, where, 'the same values')
  return found
