"""Language models that share one interface (`models.base`)."""

from collections.abc import Mapping
from typing import Any

from txl_jax.models import base, transformer_xl, windowed
from txl_jax.models.baselines import al_rfou, gcnn, lstm, qrnn, shaw, vaswani
from txl_jax.models.config import Config
from txl_jax.ops import matmul
from txl_jax.program import errors, settings

# A new model is registered by one line here.
MODELS: dict[str, type[base.LanguageModel]] = {
  'transformer_xl': transformer_xl.TransformerXL,
  'gcnn': gcnn.GCNN,
  'lstm': lstm.LSTM,
  'qrnn': qrnn.QRNN,
  'shaw': shaw.Shaw,
  'vaswani': vaswani.Vaswani,
  'al_rfou': al_rfou.AlRfou,
}


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
  overrides, T = options.model.given(), options.segment_len
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
  if window > model.reach():
    errors.refuse(name, window, f'at most {model.reach()} for this model')
  return windowed.Windowed(vocab_size, model.config, model=model, window=window)
