"""`load` reads a trained model from a folder or a file."""

import dataclasses
import os
from typing import Any

import jax
from jax.sharding import Mesh

from txl_jax.api.text_model import TextModel
from txl_jax.modes import restore, sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import buckets
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file


def load(
  path: str | os.PathLike[str],
  *,
  checkpoint: str | int = 'best',
  mesh: Mesh | None = None,
) -> TextModel:
  """Loads the trained model of a run or of an exported file.

  Args:
    path: the folder of a run, possibly gs://BUCKET/NAME, or a file of
      --mode=export. With a file, options have the defaults of docs/config.md.
    checkpoint: for a run: 'best', 'latest' or a step.
    mesh: from `txl_jax.parallel.mesh.make_mesh`, for a model that is split
      across several devices; None puts a whole model on each device.

  Raises:
    UserError: there is nothing at the path, or it is damaged or of another
      kind; or there is no such checkpoint.
  """
  path = buckets.place(os.path.expanduser(path))
  mesh = mesh_lib.make_mesh() if mesh is None else mesh
  if path.is_dir():
    config: Any = restore.recorded(path)
    config.checkpoint = str(checkpoint)
    sections.check(config)
    found = restore.load(config, path, mesh)
    return TextModel(config, found.params, found.vocabulary, mesh, found.step)
  if isinstance(path, buckets.Path) or not path.exists():
    allowed = 'the folder of a run, or a local file of --mode=export'
    raise UserError(f'{path} is not there; allowed: {allowed}')
  model, params, vocabulary = weights_file.load(path)
  # Segments are no longer than the model can read.
  fields = dataclasses.asdict(model.config)
  made = sections.compose(fields['name'])
  with made.ignore_type():
    made.model.update(fields)
  for section in (made.train, made.eval, made.generate):
    section.segment_len = int(min(section.segment_len, model.reach()))
  shapes = jax.eval_shape(lambda: params)
  placed = mesh_lib.by_rules(shapes, mesh, model.SHARDING)
  return TextModel(made, jax.device_put(params, placed), vocabulary, mesh)
