"""The sections of a config: which dataclass declares each."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import ml_collections

from txl_jax.data.options import Data
from txl_jax.evaluation.perplexity import Eval
from txl_jax.generation.options import Generate
from txl_jax.models import MODELS
from txl_jax.modes.measurements import options
from txl_jax.parallel import mesh
from txl_jax.parallel.watchdog import Watching
from txl_jax.program import settings
from txl_jax.program.settings import ON_RESUME, count, key
from txl_jax.training import options as training
from txl_jax.training.optim import Optim
from txl_jax.training.profiling import Profile


@dataclasses.dataclass(frozen=True)
class Root:
  """The keys outside sections."""

  seed: int = count(
    0,
    'Seed of initialisation, dropout, variable lengths and sentence order.',
    at_most=2**32 - 1,
  )
  experiment: str = key(
    '',
    'Name of the experiment, by which the report finds its row in the tables; '
    "'' is the name of the config file, with :VARIANT if it has variants, and "
    'with + if the command sets a key that makes it a different experiment.',
    may_change=ON_RESUME,
  )
  origin: str = key(
    '',
    'Where the initial weights of the run came from; written by '
    '`txl_jax.convert` and by runs with train.init_from.',
    may_change=ON_RESUME,
  )
  checkpoint: str = key(
    'best',
    'What eval, generate and export read and train.init_from takes: best, '
    'latest or a step.',
    may_change=ON_RESUME,
  )
  deterministic: bool = key(
    True,
    'On GPUs, use only kernels that sum in a fixed order, and do not choose '
    'kernels by measured speed, which may turn out differently after a '
    'restart, so that the same command can give the same bits, as it does on '
    'CPUs.',
    may_change=ON_RESUME,
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    which = self.checkpoint
    if which not in ('best', 'latest') and not which.isdecimal():
      yield 'checkpoint', 'best, latest or a step'


class Config(training.Config, Protocol):
  """A whole config, checked; in truth it is a ConfigDict."""

  experiment: str
  origin: str
  checkpoint: str
  deterministic: bool
  watch: Watching
  generate: Generate
  attention_length: options.AttentionLength
  recl: options.Recl
  eval_speed: options.EvalSpeed
  attention_maps: options.AttentionMaps


def sections(model: str | None = 'transformer_xl') -> dict[str, type]:
  """{name: dataclass} of a config with a model; UserError if it is unknown."""
  if not isinstance(model, str) or model not in MODELS:
    settings.refuse('model.name', model, ', '.join(MODELS))
  of_model = MODELS[model].Config
  overrides = settings.overrides(of_model)
  return {
    '': Root,
    'data': Data,
    'model': of_model,
    'mesh': mesh.Sizes,
    'train': training.Train,
    'optim': Optim,
    'profile': Profile,
    'watch': Watching,
    'eval': Eval,
    'eval.model': overrides,
    'generate': Generate,
    'generate.model': overrides,
    'attention_length': options.AttentionLength,
    'recl': options.Recl,
    'eval_speed': options.EvalSpeed,
    'attention_maps': options.AttentionMaps,
  }


def compose(model: str = 'transformer_xl') -> Any:
  """A locked ConfigDict with the default of every key."""
  config = settings.defaults(Root)
  for name, section in sections(model).items():
    if name:
      outer, _, own = name.rpartition('.')
      within: Any = config[outer] if outer else config
      within[own] = settings.defaults(section)
  return config.lock()


def of(config: Any) -> dict[str, type]:
  """The `sections` of a config; UserError if its keys are another model's."""
  flat = settings.flatten(config)
  name: Any = flat.get('model.name')
  declared = sections(name)
  there = {k for k in flat if k.startswith('model.')}

  def has_keys_of(model):
    return there == {f'model.{k}' for k in settings.keys(MODELS[model].Config)}

  made_for = [*filter(has_keys_of, MODELS)]
  if made_for and name not in made_for:
    begin = f'a config of another begins with common.get_config({name!r})'
    allowed = f'{made_for[0]}, whose keys these are; {begin}'
    settings.refuse('model.name', name, allowed)
  return declared


def check(config: ml_collections.ConfigDict) -> None:
  """`settings.check` of all sections, and of keys of different ones."""
  settings.check(of(config), config)
  flat = settings.flatten(config)
  for name, allowed in _together(flat):
    settings.refuse(name, flat[name], allowed)


def same_experiment(declared: Mapping[str, type], name: str) -> bool:
  """Whether runs that differ in a key are still of one experiment.

  They are with another seed, and with what may change on resume, but for what
  is OTHER then; the sections are those of their model.
  """
  section, _, own = name.rpartition('.')
  entry = settings.keys(declared[section]).get(own)
  # Another version may have recorded other keys.
  may = entry is None or entry.may_change == ON_RESUME
  return name == 'seed' or may


def _together(flat: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """Keys of different sections that do not go together; what is allowed."""
  steps = flat['train.steps']
  if flat['optim.warmup'] > steps:
    shorter = f'type --config.optim.warmup={steps // 10}'
    yield 'optim.warmup', f'at most train.steps, {steps}; {shorter}'
  start, swa = flat['optim.average_start'], flat['optim.average'] == 'swa'
  epoch, epochs = flat['optim.average_start_epoch'], flat['train.epochs']
  if epoch and (start or not swa):
    other = 'with optim.average_start' if start else 'without average swa'
    yield 'optim.average_start_epoch', f'0 {other}'
  if epoch and 0 < epochs <= epoch:
    yield 'optim.average_start_epoch', f'below train.epochs, {epochs}'
  if swa and not epoch and not 0 < start < steps:
    yield 'optim.average_start', f'a step of swa, from 1 to {steps - 1}'
  if flat['optim.schedule'] == 'drop' and not 0 < flat['optim.drop_at'] < steps:
    yield 'optim.drop_at', f'a step of drop, from 1 to {steps - 1}'
