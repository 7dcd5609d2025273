"""Language models behind one interface (`models.base`)."""

from collections.abc import Mapping
from typing import Any

from txl_jax.models import base, transformer_xl, windowed
from txl_jax.models.baselines import al_rfou, gcnn, lstm, qrnn, shaw, vaswani
from txl_jax.models.config import Config
from txl_jax.ops import matmul
from txl_jax.program import errors, settings

# A model of any file: one line here, and its config is known everywhere.
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
  """The model of a section `model` of a config, an unbound Linen module.

  A mapping has a `name` of MODELS and keys of that model's config; those left
  out have their defaults. The changes replace values. UserError if the first
  cutoff is not below V, TypeError if the model has no such key.
  """
  values = vars(config) if isinstance(config, Config) else config
  model = MODELS[values['name']]
  made = settings.read(model.Config, {**values, **changes})
  if made.cutoffs and made.cutoffs[0] >= vocab_size:
    allowed = f'a first number below {vocab_size}, the size of the vocabulary'
    errors.refuse('model.cutoffs', made.cutoffs, allowed)
  return model(vocab_size, made)


def at_test_time(
  config: Any, vocab_size: int, section: str, window: int = 0
) -> base.LanguageModel:
  """The model of a config as its section 'eval' or 'generate' uses it.

  With a window, it is a `windowed.Windowed`. UserError if a model with a memory
  is given a window, or the window is longer than the model can read, or if a
  model with absolute positions and a memory is to write token by token.
  """
  use = getattr(config, section)
  overrides, T = use.model.given(), use.segment_len
  model = build(config.model, vocab_size)
  if section == 'generate':
    dtype = matmul.decoding_dtype(config.model.dtype).name
    model = model.with_keys(dtype=dtype)
  model = model.at_test_time(T, section == 'eval', **overrides)
  if not window:
    if section == 'generate' and model.ABSOLUTE and model.remembers():
      M = overrides.get('mem_len', config.model.mem_len)
      allowed = '0, with generate.window: a token alone has no position'
      errors.refuse('generate.model.mem_len', M, allowed)
    return model
  name = f'{section}.window'
  if model.remembers():
    errors.refuse(name, window, '0, for the model has a memory')
  if window > model.reach():
    errors.refuse(name, window, f'at most {model.reach()} for this model')
  return windowed.Windowed(vocab_size, model.config, model=model, window=window)
