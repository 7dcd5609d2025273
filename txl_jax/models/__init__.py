"""Language models that share one interface (`models.base`)."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from txl_jax.models import base, tied_positions
from txl_jax.models.config import Config
from txl_jax.ops import matmul
from txl_jax.program import errors, settings


class _Models(Mapping[str, type[base.LanguageModel]]):
  """{name: class}; the module of a model is imported when it is asked for."""

  # A new model is registered by one line here.
  _PLACES = {
    'transformer_xl': '.transformer_xl.TransformerXL',
    'gcnn': '.baselines.gcnn.GCNN',
    'lstm': '.baselines.lstm.LSTM',
    'qrnn': '.baselines.qrnn.QRNN',
    'shaw': '.baselines.shaw.Shaw',
    'vaswani': '.baselines.vaswani.Vaswani',
    'al_rfou': '.baselines.al_rfou.AlRfou',
  }

  def __getitem__(self, name: str) -> type[base.LanguageModel]:
    module, _, of = self._PLACES[name].rpartition('.')
    return getattr(importlib.import_module(module, __name__), of)

  def __iter__(self) -> Iterator[str]:
    return iter(self._PLACES)

  def __len__(self) -> int:
    return len(self._PLACES)


MODELS = _Models()


def build(
  config: Config | Mapping[str, Any], vocab_size: int, **changes: Any
) -> base.LanguageModel:
  """Builds a model, an unbound Linen module, from the section `model`.

  A mapping has a `name` in MODELS and keys of that model; missing keys get
  their defaults. `changes` replace values. Raises UserError if the first cutoff
  is not below V, and TypeError for a key that the model does not have.
  """
  values = vars(config) if isinstance(config, Config) else config
  model = MODELS[values['name']]
  model_config = settings.read(model.Config, {**values, **changes})
  if model_config.cutoffs and model_config.cutoffs[0] >= vocab_size:
    allowed = f'a first number below {vocab_size}, the size of the vocabulary'
    errors.refuse('model.cutoffs', model_config.cutoffs, allowed)
  if values['name'] == 'transformer_xl' and model_config.tie_positions:
    model = tied_positions.TiedPositions
  return model(vocab_size, model_config)


def at_test_time(
  config: Any, vocab_size: int, section: str, window: int = 0
) -> base.LanguageModel:
  """Builds the model for inference, with the settings of 'eval' or 'generate'.

  `config` is the whole config. A window makes it a `windowed.Windowed`. Raises
  UserError if a model with memory has a window, if the window is longer than
  the model's `reach`, or if a model with absolute positions and memory is to
  generate token by token.
  """
  options = getattr(config, section)
  overrides = options.model.given()
  T = options.segment_len
  model = build(config.model, vocab_size)
  if section == 'generate':
    dtype = matmul.decoding_dtype(config.model.dtype).name
    model = model.with_keys(dtype=dtype)
  model = model.at_test_time(T, several=section == 'eval', **overrides)
  if not window:
    if section == 'generate' and model.ABSOLUTE and model.remembers():
      M = overrides.get('mem_len', config.model.mem_len)
      allowed = '0, with a generate.window (positions are absolute)'
      errors.refuse('generate.model.mem_len', M, allowed)
    return model
  name = f'{section}.window'
  if model.remembers():
    errors.refuse(name, window, '0, because the model has a memory')
  from txl_jax.models import windowed

  return windowed.around(model, window, name)
