"""The whole config of an experiment: a tree of frozen dataclasses.

A config file fills in a ConfigDict of the same keys (`compose`), the command
line overrides it, and `read` turns it into an immutable `Config`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from txl_jax.experiment import measurements
from txl_jax.generation.generate_config import Generate
from txl_jax.models import MODELS
from txl_jax.parallel.watchdog import WatchConfig
from txl_jax.program import errors, settings
from txl_jax.program.settings import ON_RESUME, key
from txl_jax.training import train_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(train_config.Config):
  """A whole config: keys outside sections, then the sections."""

  experiment: str = key(
    '',
    "Row of this run in the report's tables; '' is the name of the config "
    'file, with :VARIANT if it has variants, and with + if the command sets a '
    'key that makes it a different experiment.',
    may_change=ON_RESUME,
  )
  origin: str = key(
    '',
    'Source of the initial weights of the run; written by `txl_jax.convert` '
    'and by runs with train.init_from.',
    may_change=ON_RESUME,
  )
  checkpoint: str = key(
    'best',
    'Checkpoint for eval, generate, export and train.init_from: best, latest '
    'or a step.',
    may_change=ON_RESUME,
  )
  deterministic: bool = key(
    True,
    'On GPUs, use only deterministic kernels, without autotuning, so that the '
    'same command can give bitwise identical results, as on CPUs.',
    may_change=ON_RESUME,
  )

  watch: WatchConfig = dataclasses.field(default_factory=WatchConfig)
  generate: Generate = dataclasses.field(default_factory=Generate)
  attention_length: measurements.AttentionLength = dataclasses.field(
    default_factory=measurements.AttentionLength
  )
  recl: measurements.Recl = dataclasses.field(default_factory=measurements.Recl)
  eval_speed: measurements.EvalSpeed = dataclasses.field(
    default_factory=measurements.EvalSpeed
  )
  attention_maps: measurements.AttentionMaps = dataclasses.field(
    default_factory=measurements.AttentionMaps
  )

  def problems(self) -> Iterator[tuple[str, str]]:
    """Yields conflicting keys with their allowed values; see `settings`."""
    named = self.checkpoint in ('best', 'latest')
    if not named and not self.checkpoint.isdecimal():
      yield 'checkpoint', 'best, latest or a step'


def defaults(model: Any = 'transformer_xl') -> Config:
  """The default config of a model; UserError if there is no such model."""
  if not isinstance(model, str) or model not in MODELS:
    errors.refuse('model.name', model, ', '.join(MODELS))
  model_config = MODELS[model].Config
  overrides = settings.overrides(model_config)
  at_test_time = {f'{x}.model': overrides() for x in ('eval', 'generate')}
  return settings.replace(Config(model=model_config()), at_test_time)


def compose(model: str = 'transformer_xl') -> Any:
  """A locked ConfigDict of `defaults`, for a config file to fill in."""
  return settings.to_config_dict(defaults(model)).lock()


def like(config: ml_collections.ConfigDict) -> Config:
  """The `defaults` of a ConfigDict's model.

  UserError if model.name was changed, but not the keys that go with it.
  """
  flat = settings.flatten(config)
  name = flat.get('model.name')
  declared = defaults(name)
  keys = {k.removeprefix('model.') for k in flat if k.startswith('model.')}
  if keys == {*settings.keys(declared.model)}:
    return declared
  made_for = [m for m in MODELS if keys == {*settings.keys(MODELS[m].Config)}]
  if made_for:
    errors.refuse(
      'model.name',
      name,
      f'{made_for[0]}, which has these keys; for another model, start from '
      f'common.get_config({name!r})',
    )
  return declared


def read(config: ml_collections.ConfigDict) -> Config:
  """The Config of a ConfigDict, with ~ in its paths expanded.

  UserError if a key or value is not allowed.
  """
  return _checked(settings.expand_home(settings.fill(like(config), config)))


def changed(config: Config, values: Mapping[str, Any]) -> Config:
  """A Config with {'section.key': value} replaced; UserError: see `read`."""
  return _checked(settings.replace(config, values))


def _checked(config: Config) -> Config:
  """The Config; UserError if keys or values conflict."""
  settings.check(config)
  for name, allowed in _together(config):
    errors.refuse(name, settings.flatten(config)[name], allowed)
  return config


def same_experiment(keys: Mapping[str, settings.Key], name: str) -> bool:
  """Whether runs that differ in a key are still the same experiment.

  `keys` come from `settings.all_keys`. True for the seed, for keys that may
  change ON_RESUME, and for unknown keys, recorded by another version.
  """
  entry = keys.get(name)
  return name == 'seed' or entry is None or entry.may_change == ON_RESUME


def _together(config: Config) -> Iterator[tuple[str, str]]:
  """Conflicts between keys of different sections: (key, allowed values)."""
  o, train = config.optim, config.train
  swa = o.average == 'swa'
  epoch = o.average_start_epoch
  if epoch and o.average_start:
    yield 'optim.average_start_epoch', '0 with optim.average_start'
  elif epoch and not swa:
    yield 'optim.average_start_epoch', '0 without average swa'
  if epoch and 0 < train.epochs <= epoch:
    yield 'optim.average_start_epoch', f'below train.epochs, {train.epochs}'
  if swa and not epoch and not 0 < o.average_start < train.steps:
    allowed = f'from 1 to {train.steps - 1} with average swa'
    yield 'optim.average_start', allowed
  W = o.warmup or round(o.warmup_fraction * train.steps)
  if 0 < o.cosine_end <= W:
    yield 'optim.cosine_end', f'0, or above the {W} steps of warm-up'
  if o.schedule == 'drop' and not 0 < o.drop_at < train.steps:
    yield 'optim.drop_at', f'from 1 to {train.steps - 1} with schedule drop'
