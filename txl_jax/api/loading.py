"""`load` reads a trained model from a folder, a file, or the Hub."""

import os
import warnings

import jax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.api.text_model import TextModel
from txl_jax.convert import read_weights, write_weights
from txl_jax.convert.hub import client
from txl_jax.experiment import restore, sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import buckets, errors, files, hub, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir


@mesh_lib.without_mesh
def load(
  path: str | os.PathLike[str],
  *,
  checkpoint: str | int = 'best',
  mesh: Mesh | None = None,
) -> TextModel:
  """Loads the trained model of a run, of published weights, or of a file.

  Args:
    path: the folder of a run, possibly gs://BUCKET/NAME; a file of
      --mode=export; hf://ORG/NAME or hf://ORG/NAME@REVISION on the Hugging Face
      Hub, in our form or as TransfoXL; or whatever else `txl_jax.convert`
      reads without flags. Options are as these say, or else the defaults of
      docs/config.md.
    checkpoint: for a run: 'best', 'latest' or a step.
    mesh: from `txl_jax.parallel.mesh.make_mesh`, for a model that is split
      across several devices; None puts a whole model on each device.

  Raises:
    UserError: there is nothing at the path, or it is damaged or of another
      kind; or there is no such checkpoint.
  """
  mesh = mesh_lib.make_mesh() if mesh is None else mesh
  if hub.is_place(path):
    _hold_best(checkpoint, f'{path}')
    folder, name, _ = client.download(hub.place(f'{path}'))
    return _of_weights(folder, name, mesh)
  if '://' in f'{path}' and not f'{path}'.startswith(buckets.SCHEME):
    raise UserError(f'{path}; allowed: a path, gs://BUCKET/NAME, hf://ORG/NAME')
  place = buckets.place(os.path.expanduser(path))
  with files.reading(f'{place}'[:200]):  # it may be too long for a name
    is_run = workdir.checkpoints(place).is_dir()
  if is_run:
    config = restore.recorded(place)
    config = sections.changed(config, {'checkpoint': f'{checkpoint}'})
    restored = restore.load(config, place, mesh)
    return TextModel(
      config,
      restored.params,
      restored.vocabulary,
      mesh,
      step=restored.step,
      source=buckets.absolute(f'{place}'),
    )
  if isinstance(place, buckets.Path):
    raise UserError(f'{place} holds no run; allowed: one, or a local file')
  _hold_best(checkpoint, f'{place}')
  return _of_weights(place, buckets.absolute(f'{place}'), mesh)


def _hold_best(checkpoint, name):
  if checkpoint != 'best':
    allowed = f"'best', for {name} is no run, and has only one"
    errors.refuse('checkpoint', checkpoint, allowed)


def _of_weights(path, name, mesh):
  """The model of published or exported weights."""
  found = read_weights.read(path)
  for line in found.warnings:
    warnings.warn(line, stacklevel=4)
  config = write_weights.config_of(path, found)
  model = models.build(config.model, len(found.vocabulary))
  # Segments are no longer than the model can read.
  keys = [f'{x}.segment_len' for x in ('train', 'eval', 'generate')]
  flat, longest = settings.flatten(config), model.reach()
  config = settings.replace(
    config, {k: int(min(flat[k], longest)) for k in keys}
  )
  shapes = jax.eval_shape(lambda: found.params)
  placed = placement.by_rules(shapes, mesh, model.SHARDING)
  params = jax.device_put(found.params, placed)
  return TextModel(config, params, found.vocabulary, mesh, source=name)
