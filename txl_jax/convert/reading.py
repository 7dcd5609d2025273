"""Files of every version, read into `Weights`."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from txl_jax.convert import (
  hugging_face,
  names,
  nvidia,
  options,
  safe_file,
  sources,
  tensorflow,
  tensorflow_file,
  torch_file,
  vocabularies,
  weights,
)
from txl_jax.convert.sources import SOURCES
from txl_jax.data.vocabularies import vocabulary as vocabulary_lib
from txl_jax.data.vocabularies.vocabulary import Vocabulary
from txl_jax.modes import restore
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import files
from txl_jax.program.errors import UserError, first_line
from txl_jax.runs import weights_file, workdir

# Names of files with weights in a folder, the best first.
_IN_FOLDER = (
  'model.safetensors',
  'pytorch_model.bin',
  f'model.safetensors{safe_file.INDEX}',
  f'pytorch_model.bin{safe_file.INDEX}',
  'model.pt',
  'checkpoint_best.pt',
  'checkpoint_last.pt',
)
_CONFIG = 'config.json'
_CONFIG_SIZE = 1 << 20  # bytes
# With weights of Hugging Face; the first is our own.
_VOCABULARIES = workdir.VOCABULARY, 'vocab.json', 'vocab.bin', 'vocab.pkl'
_VOCABULARIES = *_VOCABULARIES, 'vocab.txt'
_BYTES = 'bytes'  # instead of a file, the vocabulary of all bytes
_OURS = 'txl_jax'  # what we add to a config.json of Hugging Face


def read(
  path: pathlib.Path,
  source: str = 'auto',
  told: Mapping[str, Any] | None = None,
  vocabulary: str = '',
) -> weights.Weights:
  """The Weights in a file or folder.

  The source is one of SOURCES, or auto, which goes by names; told are options
  that come before those of a file; the vocabulary is a file, or `bytes`.
  UserError: something cannot be read, or does not fit together.
  """
  told = told or {}
  path = _weights_in(path)
  is_file = path.is_file()
  if path.is_dir():
    return _run(path)
  if path.suffix == '.npz':
    return _export(path)
  prefix = _prefix(path)
  bundle = pathlib.Path(f'{prefix}.index').exists()
  if source == 'tensorflow' or (bundle and (prefix != path or not is_file)):
    return _tensorflow(prefix, source, told, vocabulary)
  found: dict[str, Any] = {}
  default, paths = {}, [path]
  if path.name.endswith(safe_file.INDEX):
    state, paths = safe_file.shards(path)
  elif path.suffix == '.safetensors':
    state = safe_file.read(path)
  else:
    contents = torch_file.read(path)
    state, found = contents.tensors, options.of_file(contents.options)
  state = names.renamed(state, names.unwrapped)
  source = _source(state, source)
  if source == 'hugging_face':
    said, default = _config(path.with_name(_CONFIG), {**found, **told})
    found |= said
  known = options.known(found, f'{path}', told, default, SOURCES[source].title)
  if source == 'hugging_face':
    _check_kind(known)
  turn = {'hugging_face': hugging_face, 'nvidia': nvidia}.get(source)
  if turn:
    state = turn.to_original(state, known)
  folder = path.parent if source == 'hugging_face' else None
  words = _vocabulary(vocabulary, folder)
  # A state dict alone has none.
  by_torch = paths == [path] and path.suffix != '.safetensors'
  of_checkpoint = words is None and source == 'nvidia' and by_torch
  if contents := vocabularies.within(path) if of_checkpoint else None:
    words = vocabularies.convert(contents)
  made = weights.of_state(state, known, source, words, _origin(source, paths))
  if (M := found.get('mem_len')) and not known.get('mem_len', M):
    line = f'a memory of {M} states is left out, and figures will differ'
    made = made._replace(warnings=(*made.warnings, line))
  return made


def _config(path, known):
  """The options that a config.json says, and those it leaves to the code."""
  if not os.path.lexists(path):
    if missing := [x for x in hugging_face.NEEDED if x not in known]:
      flags = ', '.join(f'--{name}' for name in missing)
      raise UserError(
        f'{path} is missing, and weights do not say {", ".join(missing)}; '
        f'allowed: that file, or {flags}'
      )
    return {}, {}
  data = files.read(path, largest=_CONFIG_SIZE)
  config = files.parse_json(data, f'{path}')
  return hugging_face.options_of(config), hugging_face.defaults(config)


def _check_kind(known):
  if known.get('attn_type'):
    raise UserError(
      f'attn_type is {known["attn_type"]}; allowed: 0, the only one that '
      'the code of Hugging Face has'
    )


def _weights_in(path):
  """The file with weights, or the folder if it is a run."""
  if not path.is_dir():
    return path
  if workdir.checkpoints(path).is_dir():
    return path
  for name in _IN_FOLDER:
    if (path / name).exists():
      return path / name
  if (path / 'checkpoint').is_file():  # which names the newest
    return pathlib.Path(f'{tensorflow_file.prefix_of(path)}.index')
  found = sorted(path.glob('*.index'))
  if len(found) == 1:
    return found[0]
  allowed = ', '.join([*_IN_FOLDER, 'checkpoints/', 'one *.index'])
  raise UserError(f'{path} has no weights; allowed: a folder with {allowed}')


def _prefix(path):
  """The prefix of a checkpoint of TensorFlow, of one of its files."""
  for ending in '.index', '.meta':
    if path.name.endswith(ending):
      return path.with_name(path.name.removesuffix(ending))
  return path.with_name(path.name.partition('.data-')[0])


def _source(state, source):
  """Which version a state dict is of; UserError if it is said otherwise."""
  found = sources.of_state(state)
  if source not in ('auto', found):
    some = ', '.join([*state][:3])
    raise UserError(
      f'--source={source}, and the tensors have the names of {found}: {some}; '
      f'allowed: --source={found}, or to leave it out'
    )
  return found


def _run(path):
  """The Weights of one of our workdirs."""
  config: Any = restore.recorded(path)
  found = restore.load(config, path, mesh_lib.make_mesh())
  fields = {
    k: found.config.get(f'model.{k}', x) for k, x in config.model.items()
  }
  keys = {
    name: config[name.split('.')[0]].segment_len
    for name in ('train.segment_len', 'eval.segment_len')
  }
  params = jax.tree.map(np.asarray, jax.device_get(found.params))
  origin = f'{_OURS}, {path.resolve().name}, step {found.step}'
  return _ours(fields, params, found.vocabulary, origin, keys)


def _export(path):
  """The Weights of a file that --mode=export has written."""
  model, params, vocabulary = weights_file.load(path)
  fields = dataclasses.asdict(model.config)
  origin = f'{_OURS}, {path.name}, sha256 {files.sha256(path)}'
  return _ours(fields, params, vocabulary, origin, {})


def _ours(fields, params, vocabulary, origin, keys):
  """Weights of ours, which have no parameters of training alone."""
  alone = {'layer_losses': False, 'second_target': 0.0}
  fields = fields | {k: x for k, x in alone.items() if k in fields}
  return weights.Weights(fields, params, vocabulary, origin, {}, keys)


def _tensorflow(prefix, source, told, vocabulary):
  """The Weights of a checkpoint of the original TensorFlow code."""
  if source not in ('auto', 'tensorflow'):
    raise UserError(
      f'--source={source}, and {prefix} is one of tensorflow; allowed: '
      '--source=tensorflow, or to leave it out'
    )
  variables = tensorflow_file.read(prefix)
  state = tensorflow.to_original(variables)
  said = {'cutoffs': tensorflow.cutoffs(variables)}
  known = options.known(said, f'{prefix}', told)
  words = _vocabulary(vocabulary, None)
  origin = _origin('tensorflow', tensorflow_file.data_files(prefix))
  return weights.of_state(state, known, 'tensorflow', words, origin)


def _vocabulary(given, folder):
  """The vocabulary of a file, of a folder that may have one, or None."""
  if given == _BYTES:
    return Vocabulary.all_bytes()
  if not given:
    found = (folder / name for name in (_VOCABULARIES if folder else ()))
    given = next((x for x in found if x.is_file()), None)
  if not given:
    return None
  path = pathlib.Path(given)
  if path.suffix == '.json' and 'kind' in (data := files.read_json(path)):
    try:  # of one of our workdirs
      return vocabulary_lib.from_json(data)
    except files.ODD as e:
      raise UserError(f'{path} is damaged: {first_line(e)}') from e
  return vocabularies.convert(vocabularies.read(path))


def _origin(source, paths):
  """Which files weights are from: version, names and sha256."""
  each = (f'{path.name}, sha256 {files.sha256(path)}' for path in paths)
  return ', '.join([SOURCES[source].title, *each])
