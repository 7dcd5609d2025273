"""Language models behind one interface (`models.base`)."""

from txl_jax.models import base, transformer_xl
from txl_jax.models.base import LMOutput, Memory

MODELS = {'transformer_xl': transformer_xl.TransformerXL}

__all__ = ['MODELS', 'LMOutput', 'Memory', 'base', 'build']


def build(settings, vocab_size, **changes):
  """The model that a config's `model` section names.

  Args:
    settings: mapping: `name`, a key of MODELS, and that model's fields.
    vocab_size: V.
    **changes: fields that replace those of settings, say mem_len at test time.

  Returns:
    An unbound Linen module.
  """
  fields = {**settings, **changes}
  return MODELS[fields.pop('name')](vocab_size=vocab_size, **fields)
