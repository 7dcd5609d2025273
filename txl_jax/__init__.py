"""Transformer-XL in JAX.

The names in `__all__` are stable: CHANGELOG.md lists any change to one. They
are imported on first use, so `import txl_jax` is fast, and
`txl_jax.attention`, which imports only jax, does not load Flax.

  run = txl_jax.load('runs/x')
  run.generate('The ')

docs/python.md describes the calls.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from txl_jax import attention, kernels, models
  from txl_jax.api.chat import Chat
  from txl_jax.api.loading import load
  from txl_jax.api.results import Attention, Hidden, Score
  from txl_jax.api.text_model import TextModel
  from txl_jax.errors import UserError

__version__ = '0.1.0'
__all__ = [
  'Attention',
  'Chat',
  'Hidden',
  'Score',
  'TextModel',
  'UserError',
  'attention',
  'kernels',
  'load',
  'models',
]

# Where each name is defined; None for a module.
_PLACES = {
  'Attention': 'api.results',
  'Chat': 'api.chat',
  'Hidden': 'api.results',
  'Score': 'api.results',
  'TextModel': 'api.text_model',
  'UserError': 'errors',
  'attention': None,
  'kernels': None,
  'load': 'api.loading',
  'models': None,
}


def __getattr__(name: str) -> Any:
  if name not in _PLACES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  place = _PLACES[name]
  if place is None:
    return importlib.import_module(f'{__name__}.{name}')
  return getattr(importlib.import_module(f'{__name__}.{place}'), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
