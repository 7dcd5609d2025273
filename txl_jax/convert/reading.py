"""Files of every version, read into `Weights`."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from txl_jax.convert import infer, options, vocabularies, weights
from txl_jax.convert.formats import safe_file, tensorflow_file, torch_file
from txl_jax.convert.hub import repository
from txl_jax.convert.versions import (
  hugging_face,
  names,
  nvidia,
  sources,
  tensorflow,
)
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.experiment import restore
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file, workdir

# Names of files with weights in a folder, the best first.
_IN_FOLDER = (
  'model.safetensors',
  'model.safetensors.index.json',
  'pytorch_model.bin',
  'pytorch_model.bin.index.json',
  'model.pt',
  'checkpoint_best.pt',
  'checkpoint_last.pt',
)
_PATH = re.compile(r'(?!hf://).*/([^/]*?(?:, step \d+)?, sha256 .*)', re.DOTALL)
_BYTES = 'bytes'  # instead of a file, the vocabulary of all bytes
# Keys of models that only training reads, and their values without it.
TRAINING = {'layer_losses': False, 'second_target': 0.0}
_OURS = 'txl_jax'  # as the origin of what is no other version's


def read(
  path: pathlib.Path,
  told: Mapping[str, Any] | None = None,
  vocabulary: str = '',
) -> weights.Weights:
  """The Weights in a file or folder.

  Told are options that come before those of a file; the vocabulary is a file,
  or `bytes`. UserError: something cannot be read, or does not fit together.
  """
  if repository.is_one(path):
    return repository.read(path)
  path = _weights_in(path)
  if path.is_dir():
    return _run(path)
  if path.suffix == '.npz':
    return _export(path)
  source, state, found, paths = _opened(path)
  default, where, beside = {}, path, path.with_name('config.json')
  if source == 'hugging_face' and beside.exists():
    where, default = beside, hugging_face.DEFAULTS
    found = hugging_face.options_of(files.read_json(beside))
  by_file = options.known(found, f'{where}: ')
  by_flags = options.known(told or {}, '--')
  known = default | by_file | by_flags
  if source == 'hugging_face':
    state = hugging_face.to_original(state, known)
  elif source == 'nvidia':
    state = nvidia.to_original(state)
  elif source == 'tensorflow':
    state = tensorflow.to_original(state)
  V, words, warnings = infer.vocab_size(state), None, ()
  if vocabulary:
    is_all = vocabulary == _BYTES
    words = Bytes.all_bytes() if is_all else vocabularies.read(vocabulary, V)
  elif where == beside:
    words, warnings = vocabularies.of_folder(path.parent, V)
  # A state dict alone has none.
  if words is None and source == 'nvidia' and path.suffix != '.safetensors':
    words = vocabularies.within(path)
  each = (f'{path.name}, sha256 {files.sha256(path)}' for path in paths)
  origin = ', '.join([SOURCES[source].title, *each])
  made = weights.of_state(state, known, source, words, origin)
  of_file = {k: x for k, x in (found | by_file).items() if k not in by_flags}
  for said, begin in (of_file, f'{where}: '), (by_flags, '--'):
    weights.check_options(made, said, begin)
  return made._replace(warnings=(*warnings, *made.warnings))


def _opened(path):
  """Which of SOURCES it is, its tensors and options, and the files of both."""
  prefix = tensorflow_file.prefix_of(path)
  is_other = path.is_file() and prefix == path
  if tensorflow_file.has_index(path) and not is_other:
    state = tensorflow_file.read(prefix)
    found = {'cutoffs': tensorflow.cutoffs(state)}
    return 'tensorflow', state, found, tensorflow_file.data_files(prefix)
  state, found = {}, {}
  paths = _shards(path) if path.name.endswith('.index.json') else [path]
  for part in paths:
    if part.suffix == '.safetensors':
      state |= safe_file.read(part)
    else:
      tensors, said = torch_file.read(part)
      state, found = state | tensors, found | options.of_file(said)
  state = names.without_prefix(state)
  return sources.of_state(state), state, found, paths


def _shards(path):
  """The files that an index of Hugging Face lists, which are beside it."""
  index = files.read_json(path).get('weight_map')
  listed = [*index.values()] if isinstance(index, dict) else ['']
  if any(not x or x != pathlib.Path(f'{x}').name for x in listed or ['']):
    errors.refuse(f'{path}: weight_map', index, 'files beside it, by tensors')
  return [path.with_name(x) for x in sorted({*listed})]


def _weights_in(path):
  """The file with weights, or the folder if it is a run."""
  if not path.is_dir():
    if not path.exists() and not tensorflow_file.has_index(path):
      allowed = 'a run, a file of weights, or hf://ORG/NAME on the Hub'
      name = errors.shorten(f'{path}')
      raise UserError(f'{name} does not exist; allowed: {allowed}')
    return path
  if workdir.checkpoints(path).is_dir():
    return path
  for name in _IN_FOLDER:
    if (path / name).exists():
      return path / name
  found = sorted(path.glob('*.index'))
  if len(found) == 1:
    return found[0]
  allowed = ', '.join([*_IN_FOLDER, 'checkpoints/', 'one *.index'])
  raise UserError(f'{path} has no weights; allowed: a folder with {allowed}')


def _run(path):
  """The Weights of one of our workdirs."""
  made = restore.recorded(path)
  found = restore.load(made, path, mesh_lib.make_mesh())
  then = found.config  # when that step was saved
  now = settings.flatten({'model': vars(made.model)})
  made = settings.replace(made, {k: then.get(k, x) for k, x in now.items()})
  where = f'{path.resolve()}'
  return of_run(made, found.params, found.vocabulary, where, found.step)


def of_run(
  config: Any,
  params: Any,
  vocabulary: AnyVocabulary,
  where: str,
  step: int | None,
) -> weights.Weights:
  """The Weights of a model of ours, with how its config uses it.

  It is from a folder, file or repository, and a step of a run if there is one.
  """
  parts = [_OURS, where if '://' in where else where.rpartition('/')[2]]
  parts += [f'step {step}'] if step is not None else []
  parts += [_without_folders(config.origin)] if config.origin else []
  origin = ', '.join(parts)
  keys = repository.used(config)
  keys = {k: x for k, x in keys.items() if x is not None}
  params = jax.tree.map(np.asarray, jax.device_get(params))
  made = _ours(vars(config.model), params, vocabulary, origin, keys)
  return made._replace(step=step)


def _without_folders(origin):
  """What weights are from, by names: they are pushed with it."""
  each = origin.split('; before: ')
  return '; before: '.join(_PATH.sub(r'\1', part) for part in each)


def _export(path):
  """The Weights of a file that --mode=export has written."""
  model, params, vocabulary = weights_file.load(path)
  fields = dataclasses.asdict(model.config)
  origin = f'{_OURS}, {path.name}, sha256 {files.sha256(path)}'
  return _ours(fields, params, vocabulary, origin, {})


def _ours(fields, params, vocabulary, origin, keys):
  """Weights of ours, which have no parameters of training alone."""
  fields = fields | {k: x for k, x in TRAINING.items() if k in fields}
  return weights.Weights(fields, params, vocabulary, origin, keys)
