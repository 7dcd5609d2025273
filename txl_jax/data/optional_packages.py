"""Packages that only some texts need: those in the extra [text]."""

import importlib
from typing import Any

from txl_jax.program.errors import UserError


def load(module: str, what: str) -> Any:
  """A module of an extra package; a UserError says what needs it."""
  try:
    return importlib.import_module(module)
  except ImportError as e:
    package = module.partition('.')[0]
    raise UserError(
      f"{what} needs the package {package}; run: pip install 'txl_jax[text]'"
    ) from e
