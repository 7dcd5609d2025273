"""`train` trains a model, like --mode=train of the program."""

import os
import re
from typing import Any

import ml_collections

from txl_jax.api import loading
from txl_jax.api.text_model import TextModel
from txl_jax.experiment import job, sections
from txl_jax.modes import train as train_mode
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel.watchdog import Stopped
from txl_jax.program import buckets, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir as workdir_lib
from txl_jax.shell import config_file


@mesh_lib.without_mesh
def train(
  config: str | os.PathLike[str] | ml_collections.ConfigDict | None = None,
  workdir: str | os.PathLike[str] = '',
  **keys: Any,
) -> TextModel:
  """Trains a model, or continues its run; see docs/python.md.

  Args:
    config: name of a config, such as 'own_text:bytes', path of a file, such as
      './mine.py', or a ConfigDict with all keys, which is copied. None takes
      the config of the run in the workdir or, if there is none, in
      train.init_from.
    workdir: folder of the run, or gs://BUCKET/NAME; default: runs/ and the name
      of the config.
    **keys: keys of the config by section, such as data=dict(path='book.txt'),
      and keys outside sections, such as seed=1.

  Returns:
    The trained model, loaded from the workdir with `load`.

  Raises:
    UserError: any error that --mode=train reports.
    KeyboardInterrupt: Ctrl-C, after a checkpoint; the same call continues.
  """
  folder, flat = buckets.path_text(workdir, 'workdir'), settings.flatten(keys)
  if isinstance(config, ml_collections.ConfigDict):
    values = ml_collections.ConfigDict(config.to_dict())  # it may be frozen
    settings.fill(sections.like(values), values)
    name = f'{values.experiment or "config"}'
  else:
    kinds = 'the name or path of a config, or a ConfigDict'
    path = buckets.path_text('' if config is None else config, 'config', kinds)
    source = f'{flat.get("train.init_from", "")}'
    for run in () if path else (folder, source):
      path = path or workdir_lib.own_config(run)
    if not path:
      raise UserError(
        f'config is missing, and workdir={folder!r} and train.init_from='
        f'{source!r} hold no run; pass a config, such as pystdlib_tiny'
      )
    if not (folder or config):
      raise UserError('workdir is missing; pass a folder for the new run')
    values, name = config_file.load(path), path
  folder = folder or f'runs/{config_file.name(name)}'
  config_file.note_changes(values, flat)
  allowed = "a path; for an array of token ids, np.save('ids.npy', array), "
  for key, value in flat.items():
    if isinstance(value, os.PathLike) or re.match(r'data\..*path', key):
      array = f"{allowed}{key}='ids.npy' and data.level='id'"
      flat[key] = buckets.path_text(value, key, array)
  with values.ignore_type():
    values.update_from_flattened_dict(flat)
  try:
    with job.opened(
      job.prepare(values), folder, 'train', changed=flat, program=False
    ) as opened:
      train_mode.run(opened)
  except Stopped as e:
    raise KeyboardInterrupt(f'{e}') from None
  return loading.load(opened.folder)
