"""Files of every version, read into `Weights`."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors

from txl_jax import files
from txl_jax.convert import (
  hugging_face,
  nvidia,
  options,
  tensorflow,
  tensorflow_file,
  torch_file,
  vocabularies,
  weights,
)
from txl_jax.convert.sources import SOURCES
from txl_jax.data import vocabulary as vocabulary_lib
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.errors import UserError, first_line
from txl_jax.modes import trained
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.runs import weights_file, workdir

# Names of files with weights in a folder, the best first.
_IN_FOLDER = (
  'model.safetensors',
  'pytorch_model.bin',
  'model.pt',
  'checkpoint_best.pt',
  'checkpoint_last.pt',
)
_CONFIG = 'config.json'
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
  beside = path.with_name(_CONFIG)
  if path.suffix == '.safetensors':
    state = safe_tensors(path)
  else:
    contents = torch_file.read(path)
    state, found = contents.tensors, options.of_file(contents.options)
  state = {name.removeprefix('module.'): x for name, x in state.items()}
  source = _source(state, source)
  if source == 'hugging_face' and beside.exists():
    found |= hugging_face.options_of(files.read_json(beside))
  known = options.known({**found, **told}, f'{path}')
  if source == 'hugging_face':
    _check_kind(known)
  turn = {'hugging_face': hugging_face, 'nvidia': nvidia}.get(source)
  if turn:
    state = turn.to_original(state, known)
  folder = path.parent if source == 'hugging_face' else None
  words = _vocabulary(vocabulary, folder)
  if words is None and source == 'nvidia':
    with contextlib.suppress(UserError):  # a state dict alone
      words = vocabularies.convert(vocabularies.read(path))
  return weights.of_state(state, known, source, words, _origin(source, path))


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
  found = sorted(path.glob('*.index'))
  if len(found) == 1:
    return found[0]
  if (path / 'checkpoint').is_file():
    return path / 'checkpoint'
  names = ', '.join([*_IN_FOLDER, 'checkpoints/', 'one *.index'])
  raise UserError(f'{path} has no weights; allowed: a folder with {names}')


def _prefix(path):
  """The prefix of a checkpoint of TensorFlow, of one of its files."""
  for ending in '.index', '.meta':
    if path.name.endswith(ending):
      return path.with_name(path.name.removesuffix(ending))
  return path.with_name(path.name.partition('.data-')[0])


def _source(state, source):
  """Which version a state dict is of; UserError if it is said otherwise."""
  found = 'original'
  if hugging_face.is_state(state):
    found = 'hugging_face'
  elif nvidia.is_state(state):
    found = 'nvidia'
  if source not in ('auto', found):
    names = ', '.join([*state][:3])
    raise UserError(
      f'--source={source}, and the tensors have the names of {found}: {names}'
    )
  return found


def _run(path):
  """The Weights of one of our workdirs."""
  config: Any = trained.recorded(path)
  found = trained.load(config, path, mesh_lib.make_mesh())
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
    raise UserError(f'--source={source}, and {prefix} is one of tensorflow')
  variables = tensorflow_file.read(prefix)
  state = tensorflow.to_original(variables)
  said = {'cutoffs': tensorflow.cutoffs(variables)}
  known = options.known({**said, **told}, f'{prefix}')
  words = _vocabulary(vocabulary, None)
  data = pathlib.Path(f'{prefix}.data-00000-of-00001')
  origin = _origin('tensorflow', data)
  return weights.of_state(state, known, 'tensorflow', words, origin)


def _vocabulary(given, folder):
  """The vocabulary of a file, of a folder that may have one, or None."""
  if given == _BYTES:
    return Vocabulary.all_bytes()
  if not given:
    names = _VOCABULARIES if folder else ()
    found = (folder / name for name in names)
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


def safe_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of a file of safetensors, {name: array}; or a UserError."""
  try:
    files.open_regular(path).close()
    with safetensors.safe_open(path, framework='numpy') as f:
      return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror or e}') from e
  except Exception as e:  # its own, and those of kinds that numpy has not
    what = ' '.join(first_line(e).split())[:200]
    raise UserError(f'{path} is no file of safetensors: {what}') from e


def _origin(source, path):
  """Which file weights are from: version, name and sha256."""
  return f'{SOURCES[source].title}, {path.name}, sha256 {files.sha256(path)}'
