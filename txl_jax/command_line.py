"""What the programs have in common: a mistake of the user is told in one line.

`app.run` of absl would print the help of all flags, or a traceback.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator

from absl import flags, logging

from txl_jax import terminal
from txl_jax.errors import UserError


def parse(argv: list[str], arguments: int = 0) -> list[str]:
  """What a command line has besides flags; UserError if it is not allowed."""
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as e:
    raise UserError(_in_a_config(e) or f'{e}') from e
  except Exception as e:  # whatever the config file raises, or its overrides
    line = _in_a_config(e) or f'--config: {type(e).__name__}: {e}'
    raise UserError(line) from e
  if extra := rest[1 + arguments :]:
    raise UserError(f'argument {extra[0]!r} is not expected')
  return rest


def _in_a_config(error):
  """What the code of a config file has raised, or '' where none has."""
  while error:  # ml_collections and absl put it into errors of their own
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
      if frame.name in ('get_config', '<module>'):
        where = f'{frame.filename}, line {frame.lineno}, {frame.line}'
        return f'{where}: {type(error).__name__}: {error}'
    error = error.__context__
  return ''


@contextlib.contextmanager
def told() -> Iterator[None]:
  """Ends the program with a line and a status where the block raises.

  A UserError or OSError is status 1, Ctrl-C is 130; whoever closes our output
  early, as head does, gets status 1 and no line.
  """
  try:
    try:
      yield
    finally:
      sys.stdout.flush()  # what is left would fail when nobody catches it
  except BrokenPipeError:
    sys.exit(1)
  except (UserError, OSError) as e:
    print('error:', ' '.join(str(e).split()), file=sys.stderr)
    sys.exit(1)
  except KeyboardInterrupt:
    terminal.interrupt()


@contextlib.contextmanager
def without_echoes() -> Iterator[None]:
  """Keeps orbax from printing pages about what is one line here.

  Its log is left out, what is less than a warning, and tracebacks of threads of
  tensorstore whose event loop is closed: we get the failure as an exception.
  """
  logger, hook = logging.get_absl_logger(), sys.unraisablehook
  verbosity = logging.get_verbosity()

  def of_others(record):
    return 'orbax' not in record.pathname

  def print_others(event):
    if str(event.exc_value) != 'Event loop is closed':
      hook(event)

  logger.addFilter(of_others)
  logging.set_verbosity(logging.WARNING)
  sys.unraisablehook = print_others
  try:
    yield
  finally:
    logger.removeFilter(of_others)
    logging.set_verbosity(verbosity)
    sys.unraisablehook = hook
