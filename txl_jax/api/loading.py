"""`load` loads a trained model from a folder, a file, or the Hub."""

import os
import warnings

import jax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.api.text_model import TextModel
from txl_jax.experiment import saved_model, sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import buckets, errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir


@mesh_lib.without_mesh
def load(
  path: str | os.PathLike[str],
  *,
  checkpoint: str | int = 'best',
  mesh: Mesh | None = None,
) -> TextModel:
  """Loads a trained model from a run, the Hugging Face Hub, or a file.

  Args:
    path: the folder of a run, possibly gs://BUCKET/NAME; a file written by
      --mode=export; hf://ORG/NAME or hf://ORG/NAME@REVISION on the Hugging Face
      Hub, in the format of txl_jax or of TransfoXL; or any other weights that
      `txl_jax.convert` reads without flags. Options not stored there get
      the defaults of docs/config.md.
    checkpoint: 'best', 'latest' or a step; only for a run.
    mesh: the devices, from `txl_jax.parallel.mesh.make_mesh`, over which the
      model may be split; None puts a whole copy on every device.

  Raises:
    UserError: the path does not exist, is damaged or holds no model, or the
      checkpoint does not exist.
  """
  mesh = mesh_lib.make_mesh() if mesh is None else mesh
  if not isinstance(mesh, Mesh):
    errors.refuse('mesh', mesh, 'None, or a mesh of parallel.mesh.make_mesh')
  path = buckets.path_text(path, 'path')
  if '://' in path and not path.startswith(buckets.SCHEME):
    from txl_jax.program import hub

    if hub.is_place(path):
      from txl_jax.convert.hub import client

      _check_best(checkpoint, path)
      folder, name, _ = client.download(hub.place(path))
      return _from_weights(folder, name, mesh)
    raise UserError(f'{path}; allowed: a path, gs://BUCKET/NAME, hf://ORG/NAME')
  place = buckets.place(path)
  with files.reading(f'{place}'[:200]):  # it may be too long for a name
    is_run = workdir.checkpoints(place).is_dir()
  if not is_run and workdir.own_config(path):
    allowed = 'a run with one; the first is saved after train.save_every steps'
    raise UserError(f'{place} has no checkpoint yet; allowed: {allowed}')
  if is_run:
    config = saved_model.recorded(place)
    config = sections.changed(config, {'checkpoint': f'{checkpoint}'})
    restored = saved_model.load(config, place, mesh)
    source = buckets.absolute(f'{place}')
    params, vocabulary = restored.params, restored.vocabulary
    return TextModel(config, params, vocabulary, mesh, restored.step, source)
  if isinstance(place, buckets.Path):
    raise UserError(f'{place} holds no run; allowed: a run, or a local file')
  _check_best(checkpoint, f'{place}')
  return _from_weights(place, buckets.absolute(f'{place}'), mesh)


def _check_best(checkpoint, name):
  if checkpoint != 'best':
    allowed = f"'best', because {name} is not a run and has only one"
    errors.refuse('checkpoint', checkpoint, allowed)


def _from_weights(path, name, mesh):
  """The model of published or exported weights."""
  from txl_jax.convert import read_weights, write_weights

  weights = read_weights.read(path)
  for line in weights.warnings:
    warnings.warn(line, stacklevel=4)
  config = write_weights.config_of(path, weights)
  model = models.build(config.model, len(weights.vocabulary))
  # The default segments may be longer than the model can read.
  keys = [f'{x}.segment_len' for x in ('train', 'eval', 'generate')]
  flat = settings.flatten(config)
  longest = model.reach()
  config = settings.replace(
    config, {k: int(min(flat[k], longest)) for k in keys}
  )
  shapes = jax.eval_shape(lambda: weights.params)
  shardings = placement.by_rules(shapes, mesh, model.SHARDING)
  params = jax.device_put(weights.params, shardings)
  return TextModel(config, params, weights.vocabulary, mesh, source=name)
