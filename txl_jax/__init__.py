"""Transformer-XL in JAX.

The names in `__all__` are stable: CHANGELOG.md lists any change to one. Each is
imported on first use, so `import txl_jax` is fast, and `txl_jax.attention`,
which imports only jax, does not load Flax.

  run = txl_jax.train('own_text:bytes', data=dict(path='book.txt'))
  run = txl_jax.load('runs/own_text-bytes')
  run.generate('The ')

docs/python.md describes the calls.
"""

import importlib

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than this
if TYPE_CHECKING:
  from typing import Any

  from txl_jax import attention, models
  from txl_jax.api.chat import Chat
  from txl_jax.api.loading import load
  from txl_jax.api.text_model import TextModel
  from txl_jax.api.training import train
  from txl_jax.experiment.results import Attention, Hidden, Score
  from txl_jax.ops import kernels
  from txl_jax.program.errors import UserError

__version__ = '1.0.0'
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
  'train',
]

# {public name: its module, or the module itself, without `txl_jax.`}.
_MODULES = {
  'Attention': 'experiment.results',
  'Chat': 'api.chat',
  'Hidden': 'experiment.results',
  'Score': 'experiment.results',
  'TextModel': 'api.text_model',
  'UserError': 'program.errors',
  'attention': 'attention',
  'kernels': 'ops.kernels',
  'load': 'api.loading',
  'models': 'models',
  'train': 'api.training',
}


def __getattr__(name: str) -> 'Any':
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  path = _MODULES[name]
  module = importlib.import_module(f'{__name__}.{path}')
  is_module = path.rpartition('.')[2] == name
  return module if is_module else getattr(module, name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
