"""Reads files of every supported code base into `Weights`."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from txl_jax.convert import convert_options, infer, vocabularies, weights
from txl_jax.convert.formats import safe_file, tensorflow_file, torch_file
from txl_jax.convert.hub import repository
from txl_jax.convert.versions import (
  hugging_face,
  names,
  nvidia,
  sources,
  tensorflow,
)
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.experiment import saved_model
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import errors, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file, workdir

# Weight files looked for in a folder, in this order.
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
_BYTES = 'bytes'  # in place of a vocabulary file: all 256 byte values
# Keys of models that only training reads, and their neutral values.
TRAINING = {'layer_losses': False, 'second_target': 0.0}
_OURS = 'txl_jax'  # the origin of our own models


def read(
  path: pathlib.Path,
  flag_options: Mapping[str, Any] | None = None,
  vocabulary: str = '',
) -> weights.Weights:
  """Reads the model in a file or folder, in any format that `--from` accepts.

  `flag_options` override options in the file. `vocabulary` is a file, or
  'bytes' for all 256 byte values. UserError if a file cannot be read, or
  weights, options and vocabulary do not match.
  """
  if repository.is_one(path):
    return repository.read(path)
  path = _weights_in(path)
  if path.is_dir():
    return _run(path)
  if path.suffix == '.npz':
    return _export(path)
  source, state, file_options, paths = _tensors(path)
  defaults = {}
  where = path
  hf_config = path.with_name('config.json')
  if source == 'hugging_face' and hf_config.exists():
    where = hf_config
    defaults = hugging_face.DEFAULTS
    file_options = hugging_face.options_of(files.read_json(hf_config))
  by_file = convert_options.known(file_options, f'{where}: ')
  by_flags = convert_options.known(flag_options or {}, '--')
  known = defaults | by_file | by_flags
  if source == 'hugging_face':
    state = hugging_face.to_original(state, known)
  elif source == 'nvidia':
    state = nvidia.to_original(state)
  elif source == 'tensorflow':
    state = tensorflow.to_original(state)
  V = infer.vocab_size(state)
  words = None
  warnings = ()
  if vocabulary:
    is_all = vocabulary == _BYTES
    words = Bytes.all_bytes() if is_all else vocabularies.read(vocabulary, V)
  elif where == hf_config:
    words, warnings = vocabularies.of_folder(path.parent, V)
  # Only whole checkpoints, not bare state dicts, hold a vocabulary.
  if words is None and source == 'nvidia' and path.suffix != '.safetensors':
    words = vocabularies.within(path)
  hashes = (f'{path.name}, sha256 {files.sha256(path)}' for path in paths)
  origin = ', '.join([sources.SOURCES[source].title, *hashes])
  made = weights.of_state(state, known, source, words, origin)
  all_options = file_options | by_file
  not_overridden = {k: x for k, x in all_options.items() if k not in by_flags}
  weights.check_options(made, not_overridden, f'{where}: ')
  weights.check_options(made, by_flags, '--')
  return made._replace(warnings=(*warnings, *made.warnings))


def _tensors(path):
  """The key of SOURCES, the tensors, the options, and the files read."""
  prefix = tensorflow_file.prefix_of(path)
  is_other = path.is_file() and prefix == path
  if tensorflow_file.has_index(path) and not is_other:
    state = tensorflow_file.read(prefix)
    file_options = {'cutoffs': tensorflow.cutoffs(state)}
    return 'tensorflow', state, file_options, tensorflow_file.data_files(prefix)
  state, file_options = {}, {}
  paths = _shards(path) if path.name.endswith('.index.json') else [path]
  for part in paths:
    if part.suffix == '.safetensors':
      state |= safe_file.read(part)
    else:
      tensors, contents = torch_file.read(part)
      state |= tensors
      file_options |= convert_options.of_file(contents)
  state = names.without_prefix(state)
  return sources.of_state(state), state, file_options, paths


def _shards(path):
  """The files listed by an index of Hugging Face, all in its folder."""
  index = files.read_json(path).get('weight_map')
  listed = [*index.values()] if isinstance(index, dict) else ['']
  if any(not x or x != pathlib.Path(f'{x}').name for x in listed or ['']):
    allowed = '{tensor: file in the same folder}'
    errors.refuse(f'{path}: weight_map', index, allowed)
  return [path.with_name(x) for x in sorted({*listed})]


def _weights_in(path):
  """The weights file of a path, or the folder itself if it is a run."""
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
  indices = sorted(path.glob('*.index'))
  if len(indices) == 1:
    return indices[0]
  wanted = ', '.join([*_IN_FOLDER, 'checkpoints/'])
  raise UserError(f'{path} has no weights: none of {wanted}, nor one *.index')


def _run(path):
  """The Weights of one of our workdirs."""
  config = saved_model.recorded(path)
  found = saved_model.load(config, path, mesh_lib.make_mesh())
  # The section `model` as of the restored step.
  now = settings.flatten({'model': vars(config.model)})
  then = {k: found.config.get(k, x) for k, x in now.items()}
  config = settings.replace(config, then)
  where = f'{path.resolve()}'
  return of_run(config, found.params, found.vocabulary, where, found.step)


def of_run(
  config: Any,
  params: Any,
  vocabulary: AnyVocabulary,
  where: str,
  step: int | None,
) -> weights.Weights:
  """The Weights of one of our models.

  They keep the keys of evaluation and generation. `where` is the folder, file
  or repository of the model; `step` is None if it comes from no run.
  """
  parts = [_OURS, where if '://' in where else where.rpartition('/')[2]]
  parts += [f'step {step}'] if step is not None else []
  parts += [_without_folders(config.origin)] if config.origin else []
  origin = ', '.join(parts)
  keys = {k: x for k, x in repository.used(config).items() if x is not None}
  params = jax.tree.map(np.asarray, jax.device_get(params))
  made = _ours(vars(config.model), params, vocabulary, origin, keys)
  return made._replace(step=step)


def _without_folders(origin):
  """Replaces paths by file names in an origin, which is published."""
  parts = origin.split('; before: ')
  return '; before: '.join(_PATH.sub(r'\1', part) for part in parts)


def _export(path):
  """The Weights of a file written by --mode=export."""
  model, params, vocabulary = weights_file.load(path)
  origin = f'{_OURS}, {path.name}, sha256 {files.sha256(path)}'
  return _ours(vars(model.config), params, vocabulary, origin, {})


def _ours(fields, params, vocabulary, origin, keys):
  """Weights of our model, with keys that only training reads made neutral."""
  fields = fields | {k: x for k, x in TRAINING.items() if k in fields}
  return weights.Weights(fields, params, vocabulary, origin, keys)
