"""`train` trains a model, like --mode=train of the program."""

import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_collections
import numpy as np

from txl_jax.api import loading
from txl_jax.api.text_model import TextModel
from txl_jax.data.data_config import SPLITS, Data
from txl_jax.experiment import config_file, sections, texts
from txl_jax.modes import opening
from txl_jax.modes import train as train_mode
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.parallel.watchdog import Stopped
from txl_jax.program import buckets, errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir as workdir_lib

_DATA = (
  'data=dict(path=FILE), an array of token ids, or an iterable of documents: '
  'texts, lists of token ids, or records'
)


@mesh_lib.without_mesh
def train(
  config: str | os.PathLike[str] | ml_collections.ConfigDict | None = None,
  workdir: str | os.PathLike[str] = '',
  *,
  data: Any = None,
  on_log: Callable[[dict], Any] | None = None,
  on_eval: Callable[[dict], Any] | None = None,
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
    data: keys of the section `data`, such as dict(path='book.txt'); or the text
      itself: an array of token ids, or an iterable of documents (texts, lists
      of token ids, or records with data.field, as of a `datasets.Dataset`); or
      a dict of such texts, 'train', 'validation' and 'test', and of keys.
    on_log: called with each record of the log of training, a dict as in
      metrics.jsonl; training ends with this step if it returns a true value.
    on_eval: the same for each evaluation.
    **keys: keys of other sections, such as optim=dict(lr=1e-3), and keys
      outside sections, such as seed=1.

  Returns:
    The trained model, loaded from the workdir with `load`.

  Raises:
    UserError: any error that --mode=train reports.
    KeyboardInterrupt: Ctrl-C, after a checkpoint; the same call continues.
  """
  folder = buckets.path_text(workdir, 'workdir')
  memory = {}
  if data is not None and not isinstance(data, Mapping):
    memory['train'] = data
  elif data is not None:
    memory = {k: x for k, x in data.items() if k in SPLITS}
    keys['data'] = {k: x for k, x in data.items() if k not in SPLITS}
  flat = settings.flatten(keys)
  values, name = _read(config, folder, flat)
  folder = folder or f'runs/{config_file.name(name)}'
  if memory:
    for key in (k for k in flat if re.match(r'data\..*path', k)):
      errors.refuse(key, flat[key], 'no path, since data has the text itself')
    flat = _written(memory, folder, flat) | flat
  config_file.note_changes(values, flat)
  for key, value in flat.items():
    if isinstance(value, os.PathLike) or re.match(r'data\..*path', key):
      flat[key] = buckets.path_text(value, key, f'a path, or {_DATA}')
  with values.ignore_type():
    values.update_from_flattened_dict(flat)

  def tell(record):
    function = {'train': on_log, 'validation': on_eval}[record['split']]
    return function and function(record)

  try:
    with opening.opened(
      opening.prepare(values), folder, 'train', changed=flat, program=False,
      on_record=tell,
    ) as opened:  # fmt: skip
      train_mode.run(opened)
  except Stopped as e:
    raise KeyboardInterrupt(f'{e}') from None
  return loading.load(opened.folder)


def _read(config, folder, flat):
  """A ConfigDict with all keys, and the name that the config was given by."""
  if isinstance(config, ml_collections.ConfigDict):
    values = ml_collections.ConfigDict(config.to_dict())  # it may be frozen
    settings.fill(sections.like(values), values)
    return values, f'{values.experiment or "config"}'
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
  return config_file.load(path), path


def _written(
  memory: Mapping[str, Any], folder: str, flat: Mapping[str, Any]
) -> dict[str, Any]:
  """Writes the texts of splits into a run's folder; returns keys to read them.

  UserError: a text has another type.
  """
  place = buckets.place(folder)
  field = flat.get('data.field', Data.field)
  if isinstance(place, buckets.Path):
    place = pathlib.Path(tempfile.mkdtemp(prefix='txl_jax-'))

  def write(new):
    keys = {'data.corpus': 'text'}
    for split, text in memory.items():
      if texts.is_ids(text) and not isinstance(text, list):
        np.save(new / f'{split}.npy', np.asarray(text))
        keys['data.level'] = 'id'
        continue
      keys['data.documents'] = 'record'
      with (new / f'{split}.jsonl').open('w') as f:
        for document in _documents(text, split, field):
          keys |= {'data.level': 'id'} if type(document) is list else {}
          f.write(f'{json.dumps({field: document})}\n')
    # Other texts have another folder: this call may yet be refused.
    hashes = ''.join(
      f'{x.name}{files.sha256(x)}' for x in sorted(new.iterdir())
    )
    path = place / f'data-{hashlib.sha256(hashes.encode()).hexdigest()[:12]}'
    if not path.exists():
      new.rename(path)
    return keys | {'data.path': buckets.absolute(f'{path}')}

  with files.writing(f'workdir={folder}'):
    place.mkdir(parents=True, exist_ok=True)
    options: Any = dict(prefix='tmp-', dir=place, ignore_cleanup_errors=True)
    with tempfile.TemporaryDirectory(**options) as new:
      return processes.on_main(lambda: write(pathlib.Path(new)))


def _documents(text: Any, split: str, field: str) -> Iterable[Any]:
  """Yields documents, each a str or a list of ints."""
  if isinstance(text, str | bytes | Mapping) or not np.iterable(text):
    errors.refuse(f'data of {split}', text, _DATA)
  for i, document in enumerate(text):
    value = document.get(field) if isinstance(document, Mapping) else document
    value = np.asarray(value).tolist() if texts.is_ids(value) else value
    if not isinstance(value, str | list):
      name = f'document {i} of the data of {split}'
      errors.refuse(name, document, f'a text, token ids, or the field {field}')
    yield value
