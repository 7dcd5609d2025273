"""The model that a new run begins with: train.init_from.

That is the folder of a run, also one of converted weights, a file of
--mode=export, or what else `txl_jax.convert` reads, also from the Hub. The run
gets its weights, its shape and its vocabulary; the rest is as in any new run.
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
from txl_jax.data.options import Data
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.experiment import restore, sections
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, files, hub, settings
from txl_jax.runs import checkpoint, seal, weights_file, workdir
from txl_jax.training import resume
from txl_jax.training import state as state_lib

_KEY = 'train.init_from'
# What kinds of vocabularies are as data.level, and the keys of the tokens.
_LEVELS = {'bytes': 'byte', 'words': 'word', 'subwords': 'subword', 'ids': 'id'}
_OF_TOKENS = 'level', 'lower', 'eos', 'unk', 'min_count', 'max_size', 'raw'
_OF_TOKENS = *_OF_TOKENS, 'vocab_file', 'tokenizer'


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """Another model; the arrays of a run are not read yet."""

  name: str  # which weights these are
  origin: str  # for the record of the run that begins with it
  vocabulary: AnyVocabulary
  config: Mapping[str, Any]  # flat; of other weights only keys of the model
  run: tuple[pathlib.Path, int] | None = None  # its folder, and a step
  params: Any = None  # of other weights

  def into(
    self, state: state_lib.TrainState, config: sections.Config, mesh: Mesh
  ) -> tuple[state_lib.TrainState, str]:
    """The state of a new run with what is taken, and what that is, in words.

    The state is on the mesh, and so is the result. UserError: there are other
    arrays than expected.
    """
    own, averaged = _flat(state.params), 0
    if self.run is None:
      taken = _flat(self.params)
      taken = {k: placement.put(x, own[k].sharding) for k, x in taken.items()}
    else:
      folder, step = self.run
      model = models.build(config.model, len(self.vocabulary))
      saved = checkpoint.Checkpoints(workdir.checkpoints(folder))
      shapes = jax.eval_shape(lambda x: x, state.params)
      found = saved, step, model, shapes, mesh
      params, averaged = restore.weights(*found)
      taken = _flat(params)
    params = flax.traverse_util.unflatten_dict(own | taken, sep='/')
    new = state.replace(params=params)
    count = sum(x.size for x in taken.values())
    of = f', averaged over {averaged} steps' if averaged else ''
    fresh = [state_lib.fresh(state), *(x for x in own if x not in taken)]
    line = f'loaded {count:,} parameters{of} from {self.name}'
    return new, f'{line}, with its vocabulary; fresh: {", ".join(fresh)}'


def _flat(params) -> dict[str, Any]:
  return flax.traverse_util.flatten_dict(params, sep='/')


def adopt(
  config: sections.Config,
  folder: pathlib.Path,
  changed: Collection[str],
  new: bool,
) -> tuple[sections.Config, list[str]]:
  """A config with the model and the kind of tokens of train.init_from.

  They are those of the run in the folder, if that has begun with it, and else,
  for a new run, those of the model itself. Keys in `changed` are left alone;
  `find` refuses what then does not fit. Also returns a line that names the keys
  whose values were others, if any. UserError: see `find`.
  """
  saved = checkpoint.Checkpoints(workdir.checkpoints(folder))
  step = saved.newest('host') if saved.folder.exists() else None
  then = resume.HostState.read(saved, step).config if step is not None else {}
  if then.get(_KEY):
    kept = {f'data.{k}' for k in _OF_TOKENS}
    wanted = {k: x for k, x in then.items() if k in kept}
  elif not new or then:
    return config, []
  else:
    found = _read(config)
    then, wanted = found.config, {}
    level = _LEVELS.get(found.vocabulary.kind, config.data.level)
    same = level == config.data.level
    # Files of ids hold no text, and the other way round.
    free = 'data.level' not in changed and 'id' not in (
      level,
      config.data.level,
    )
    if config.data.corpus == 'text' and (same or free):
      wanted = _of_tokens(config, found, level)
  flat = settings.flatten(config)
  if then.get('model.name', flat['model.name']) == flat['model.name']:
    wanted |= {k: x for k, _, x in restore.other_keys(config, then)}
  wanted = {k: x for k, x in wanted.items() if k in flat and k not in changed}
  keys = [f'{k} {settings.shown(x)}' for k, x in wanted.items() if x != flat[k]]
  lines = [f'as in {config.train.init_from}: {", ".join(keys)}'] if keys else []
  return sections.changed(config, wanted), lines


def _of_tokens(config, found, level) -> dict[str, Any]:
  """The keys of data with which a text has the tokens of a vocabulary."""
  wanted: dict[str, Any] = {k: getattr(Data, k) for k in _OF_TOKENS}
  wanted |= {'level': level, 'raw': config.data.raw and level == 'byte'}
  if level == 'word':
    words = found.vocabulary
    unk = config.data.unk or words.unk_id is not None
    eos = words.eos_id is not None
    wanted |= {'eos': eos, 'lower': words.lower, 'unk': unk}
  elif level == 'subword':
    text = workdir.vocabulary_text(found.vocabulary)
    digest = hashlib.sha256(text.encode()).hexdigest()
    root = fetching.root(config.data)
    root = fetching.cache(root) if isinstance(root, buckets.Path) else root
    path = root.absolute() / f'tokenizer-{digest[:12]}.json'
    if not path.exists():
      with files.writing(f'data.dir: {root}'):
        root.mkdir(parents=True, exist_ok=True)
      files.write(path, text)
    wanted['tokenizer'] = f'{path}'
  return {f'data.{k}': x for k, x in wanted.items()}


def find(config: sections.Config) -> Pretrained:
  """What train.init_from names; the key `checkpoint` chooses the step.

  UserError: it is no model, or another one than that of the config.
  """
  found = _read(config)
  where = f'{_KEY} is {settings.shown(found.name)}, another model'
  restore.check_model(config, found.config, where, 'the same values')
  return found


def _read(config: sections.Config) -> Pretrained:
  """What train.init_from names, of whatever model."""
  given = config.train.init_from
  if hub.is_place(given):
    folder, name, _ = client.download(hub.place(given, _KEY))
    return _of_weights(folder, name)
  path = buckets.place(buckets.absolute(given), _KEY)
  if workdir.checkpoints(path).is_dir():
    saved = checkpoint.Checkpoints(workdir.checkpoints(path))
    step = restore.choose(saved, config.checkpoint, f'{_KEY}=')
    host = resume.HostState.read(saved, step)
    digest = processes.on_main(lambda: seal.digest(saved.folder / f'{step}'))
    name = f'{path}, step {step}'
    origin = f'{name}, sha256 {digest or "unknown"}'
    if before := host.config.get('origin'):
      origin += f'; before: {before}'
    vocabulary = workdir.vocabulary(path, step)
    return Pretrained(name, origin, vocabulary, host.config, (path, step))
  if isinstance(path, buckets.Path) or not path.exists():
    allowed = 'the folder of a run, a file of weights, or hf://ORG/NAME'
    settings.refuse(_KEY, f'{path}', allowed)
  if path.suffix != '.npz':
    return _of_weights(path, f'{path}')
  model, params, vocabulary = weights_file.load(path)
  origin = f'{path}, sha256 {files.sha256(path)}'
  fields = dataclasses.asdict(model.config)
  return Pretrained(
    f'{path}', origin, vocabulary, _of_model(fields), params=params
  )


def _of_weights(path, name) -> Pretrained:
  """Published weights, as `txl_jax.convert` reads them."""
  found = read_weights.read(path)
  origin = f'{name}: {found.origin}'
  fields = {
    k: x for k, x in found.fields.items() if k not in read_weights.TRAINING
  }
  return Pretrained(
    name, origin, found.vocabulary, _of_model(fields), params=found.params
  )


def _of_model(fields):
  return {f'model.{k}': x for k, x in fields.items()}
