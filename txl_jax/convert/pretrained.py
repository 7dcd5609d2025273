"""Initialises a new run from a trained model: train.init_from.

The model is the folder of a run (or of converted weights), a file written by
--mode=export, or anything that `txl_jax.convert` reads, local or on the Hub.
The run takes its weights, its model config and its vocabulary; everything else
starts as in any new run.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

import flax.traverse_util
import jax
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.convert import read_weights
from txl_jax.convert.hub import client
from txl_jax.data.corpora import fetching
from txl_jax.data.data_config import Data
from txl_jax.data.vocabularies import AnyVocabulary, words
from txl_jax.experiment import saved_model, sections
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, errors, files, hub, settings
from txl_jax.runs import checkpoint, checkpoint_folder, weights_file, workdir
from txl_jax.training import host_state
from txl_jax.training import state as state_lib

_KEY = 'train.init_from'
# {kind of a vocabulary: its data.level}; keys of data that set tokenisation.
_LEVELS = {'bytes': 'byte', 'words': 'word', 'subwords': 'subword', 'ids': 'id'}
_OF_TOKENS = 'level', 'lower', 'eos', 'unk', 'min_count', 'max_size', 'raw'
_OF_TOKENS = *_OF_TOKENS, 'vocab_file', 'tokenizer'


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A trained model; the arrays of a run are restored only in `into`."""

  name: str  # path or Hub address, and step
  origin: str  # for the key `origin` of the new run
  vocabulary: AnyVocabulary
  config: Mapping[str, Any]  # flat; only keys of the model if there is no run
  run: tuple[pathlib.Path, int] | None = None  # folder and step
  params: Any = None  # if there is no run

  def into(
    self, state: state_lib.TrainState, config: sections.Config, mesh: Mesh
  ) -> tuple[state_lib.TrainState, str]:
    """Copies the weights into the state of a new run; also returns a log line.

    The state is on the mesh, before and after. UserError: the arrays do not
    have the expected names or shapes.
    """
    initial = _flat(state.params)
    averaged = 0
    if self.run is None:
      loaded = {
        k: placement.put(x, initial[k].sharding)
        for k, x in _flat(self.params).items()
      }
    else:
      folder, step = self.run
      checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
      model = models.build(config.model, len(self.vocabulary))
      shapes = jax.eval_shape(lambda x: x, state.params)
      found = saved_model.weights(checkpoints, step, model, shapes, mesh)
      loaded = _flat(found[0])
      averaged = found[1]
    params = flax.traverse_util.unflatten_dict(initial | loaded, sep='/')
    count = sum(x.size for x in loaded.values())
    average = f', averaged over {averaged} steps' if averaged else ''
    fresh = [
      state_lib.not_loaded(state),
      *(k for k in initial if k not in loaded),
    ]
    line = f'loaded {count:,} parameters{average} from {self.name}, with its '
    line += f'vocabulary; fresh: {", ".join(fresh)}'
    return state.replace(params=params), line


def _flat(params: Any) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(params, sep='/')


def adopt(
  config: sections.Config,
  folder: pathlib.Path,
  changed: Collection[str],
  new: bool,
) -> tuple[sections.Config, list[str]]:
  """A config with the model and the tokenisation of train.init_from.

  Both come from the run in the folder if it was started from that model; else,
  for a new run, from the model. Keys in `changed` keep their values; `find`
  refuses values that do not fit the model. Also returns a log line listing the
  keys whose values were replaced, if any. UserError: see `find`.
  """
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  step = checkpoints.newest('host') if checkpoints.folder.exists() else None
  saved: Mapping[str, Any] = {}
  if step is not None:
    saved = host_state.HostState.read(checkpoints, step).config
  if saved.get(_KEY):
    of_tokens = {f'data.{k}' for k in _OF_TOKENS}
    values = {k: x for k, x in saved.items() if k in of_tokens}
  elif not new or saved:
    return config, []
  else:
    model = _read(config)
    saved = model.config
    values = {}
    data = config.data
    level = _LEVELS.get(model.vocabulary.kind, data.level)
    # Files of ids contain no text, and files of text no ids.
    free = 'data.level' not in changed and 'id' not in (level, data.level)
    if data.corpus == 'text' and (level == data.level or free):
      values = _tokenisation(data, model.vocabulary, level)
      if {'data.min_count', 'data.max_size'} & {*changed}:
        values.pop('data.tokenizer')  # the vocabulary is to be learned
  flat = settings.flatten(config)
  if saved.get('model.name', flat['model.name']) == flat['model.name']:
    values |= {k: x for k, _, x in saved_model.other_keys(config, saved)}
  values = {k: x for k, x in values.items() if k in flat and k not in changed}
  keys = [f'{k} {errors.shown(x)}' for k, x in values.items() if x != flat[k]]
  lines = [f'as in {config.train.init_from}: {", ".join(keys)}'] if keys else []
  return sections.changed(config, values), lines


def _tokenisation(
  data: Data, vocabulary: AnyVocabulary, level: str
) -> dict[str, Any]:
  """{'data.key': value}, to tokenise text with this vocabulary."""
  values: dict[str, Any] = {k: getattr(Data, k) for k in _OF_TOKENS}
  values |= {'level': level, 'raw': data.raw and level == 'byte'}
  if isinstance(vocabulary, words.Words):
    values['eos'] = vocabulary.eos_id is not None
    values['lower'] = vocabulary.lower
    values['unk'] = data.unk or vocabulary.unk_id is not None
  elif level == 'subword':
    text = workdir.vocabulary_text(vocabulary)
    digest = hashlib.sha256(text.encode()).hexdigest()
    root = fetching.root(data)
    root = fetching.cache(root) if isinstance(root, buckets.Path) else root
    path = root.absolute() / f'tokenizer-{digest[:12]}.json'
    if not path.exists():
      with files.writing(f'data.dir: {root}'):
        root.mkdir(parents=True, exist_ok=True)
      files.write(path, text)
    values['tokenizer'] = f'{path}'
  return {f'data.{k}': x for k, x in values.items()}


def find(config: sections.Config) -> Pretrained:
  """The model of train.init_from; the key `checkpoint` chooses the step.

  UserError: it cannot be read, or differs from the model of the config.
  """
  model = _read(config)
  where = f'{_KEY} is {errors.shown(model.name)}, another model'
  saved_model.check_model(config, model.config, where, 'the same values')
  return model


def _read(config: sections.Config) -> Pretrained:
  """The model of train.init_from, which may differ from that of the config."""
  init_from = config.train.init_from
  if hub.is_place(init_from):
    folder, name, _ = client.download(hub.place(init_from, _KEY))
    return _of_weights(folder, name)
  path = buckets.place(buckets.absolute(init_from), _KEY)
  if workdir.checkpoints(path).is_dir():
    checkpoints = checkpoint.Checkpoints(workdir.checkpoints(path))
    step = saved_model.choose(checkpoints, config.checkpoint, f'{_KEY}=')
    host = host_state.HostState.read(checkpoints, step)
    folder = checkpoints.folder / f'{step}'
    digest = processes.on_main(lambda: checkpoint_folder.digest(folder))
    name = f'{path}, step {step}'
    origin = f'{name}, sha256 {digest or "unknown"}'
    if before := host.config.get('origin'):
      origin += f'; before: {before}'
    vocabulary = workdir.vocabulary(path, step)
    return Pretrained(name, origin, vocabulary, host.config, run=(path, step))
  if isinstance(path, buckets.Path) or not path.exists():
    allowed = 'the folder of a run, a file of weights, or hf://ORG/NAME'
    errors.refuse(_KEY, f'{path}', allowed)
  if path.suffix != '.npz':
    return _of_weights(path, f'{path}')
  model, params, vocabulary = weights_file.load(path)
  return Pretrained(
    name=f'{path}',
    origin=f'{path}, sha256 {files.sha256(path)}',
    vocabulary=vocabulary,
    config=_of_model(dataclasses.asdict(model.config)),
    params=params,
  )


def _of_weights(path: pathlib.Path, name: str) -> Pretrained:
  """Published weights, as `txl_jax.convert` reads them."""
  weights = read_weights.read(path)
  fields = weights.fields.items()
  used = {k: x for k, x in fields if k not in read_weights.TRAINING}
  return Pretrained(
    name=name,
    origin=f'{name}: {weights.origin}',
    vocabulary=weights.vocabulary,
    config=_of_model(used),
    params=weights.params,
  )


def _of_model(fields: Mapping[str, Any]) -> dict[str, Any]:
  return {f'model.{k}': x for k, x in fields.items()}
