"""Language models behind one interface (`models.base`)."""

from typing import Any

from txl_jax.errors import UserError
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

  Raises:
    UserError: a cutoff is not below V.
  """
  # JSON has no tuples, and the fields of a module are to be hashable.
  fields: dict[str, Any] = {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in {**settings, **changes}.items()
  }
  cutoffs = fields.get('cutoffs', ())
  if cutoffs and cutoffs[-1] >= vocab_size:
    raise UserError(
      f'model.cutoffs is {cutoffs}; allowed: numbers below {vocab_size}, the '
      'size of the vocabulary'
    )
  return MODELS[fields.pop('name')](vocab_size=vocab_size, **fields)
