"""Parses command lines with absl; a bad flag is a UserError.

absl's own `app.run` would print the help of all flags.
"""

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from absl import app, flags, logging

from txl_jax.program import errors
from txl_jax.program.errors import UserError

flags.disclaim_key_flags()  # `define` makes flags of the calling program


class Path(flags.ArgumentParser):
  """Parser of a flag that is a path, in which ~ is the home folder."""

  def __init__(self, *schemes: str):
    """Allows local paths, and those with a given scheme such as gs://."""
    self._schemes = schemes

  def parse(self, argument: str) -> str:
    """The path."""
    if '://' in argument and not argument.startswith(self._schemes):
      others = ''.join(f' or {scheme}…' for scheme in self._schemes)
      raise ValueError(f'allowed: a local path{others}')
    return os.path.expanduser(argument)


def define(
  field: dataclasses.Field, name: str, default: Any
) -> flags.FlagHolder:
  """Defines the flag of a key, see `settings.key`; values are not checked."""
  key = field.metadata['key']
  choices = '; '.join(f'{x}: {meaning}' for x, meaning in key.choices.items())
  kinds = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
  }
  make = kinds.get(field.type, flags.DEFINE_string)
  return make(name, default, f'{key.meaning} {choices}'.strip())


def parse(
  argv: list[str],
  arguments: int = 0,
  nearest: Callable[[str], str] | None = None,
) -> list[str]:
  """Parses flags, returns the other arguments; UserError if one is bad.

  `nearest` gives a hint for an unknown flag.
  """
  try:
    rest = flags.FLAGS(argv)
  except UserError:
    raise
  except SystemExit:  # after --help, with status 1
    sys.exit(0)
  except flags.Error as e:
    if nearest and isinstance(e, flags.UnrecognizedFlagError):
      name = errors.shorten(e.flagname)
      raise UserError(f'there is no flag --{name}; {nearest(name)}') from e
    text = f'{e}'  # with the value, however long
    middle = '…' if len(text) > 400 else ''
    raise UserError(f'{text[:200]}{middle}{text[200:][-200:]}') from e
  except Exception as e:  # from the overrides of a config
    raise UserError(f'--config: {type(e).__name__}: {e}') from e
  if extra := rest[1 + arguments :]:
    raise UserError(f'argument {errors.shown(extra[0])} is not expected')
  return rest


def run(main: Callable[[list[str]], None], arguments: int = 0) -> None:
  """Runs a program with flags and at most `arguments` positional arguments.

  A UserError is printed as one line; the exit status is then 1.
  """
  with without_echoes(), errors.reporting():
    app.run(main, flags_parser=lambda argv: parse(argv, arguments))


@contextlib.contextmanager
def without_echoes() -> Iterator[None]:
  """Silences TFDS, and Orbax, which logs pages of text when a save fails."""
  logger = logging.get_absl_logger()
  verbosity = logging.get_verbosity()

  def not_of_orbax(record):
    return 'orbax' not in record.pathname

  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
  if sys.unraisablehook is sys.__unraisablehook__:
    sys.unraisablehook = _show  # stays until the interpreter exits
  logger.addFilter(not_of_orbax)
  logging.set_verbosity(logging.WARNING)
  try:
    yield
  finally:
    logger.removeFilter(not_of_orbax)
    logging.set_verbosity(verbosity)


def _show(unraisable):
  # After a failed save Orbax closes its event loop, but TensorStore still
  # reports the remaining arrays to it.
  if 'Event loop is closed' not in str(unraisable.exc_value):
    sys.__unraisablehook__(unraisable)
