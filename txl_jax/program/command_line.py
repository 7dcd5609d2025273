"""Command lines: parsed, and mistakes of the user reported in one line.

`app.run` of absl would print the help of all flags, or a traceback.
"""

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator

from absl import flags, logging

from txl_jax.program import terminal
from txl_jax.program.errors import UserError, first_line

_NO_MEMORY = 'RESOURCE_EXHAUSTED|Out of memory'


class Path(flags.ArgumentParser):
  """Parser of a flag that is a path, in which ~ is the home folder."""

  def __init__(self, *schemes: str):
    """Takes a local path, or one that begins with a scheme, as gs://."""
    self._schemes = schemes

  def parse(self, argument: str) -> str:
    """The path."""
    if '://' in argument and not argument.startswith(self._schemes):
      others = [f' or {scheme}…' for scheme in self._schemes]
      raise ValueError(f'allowed: a local path{"".join(others)}')
    return os.path.expanduser(argument)


def parse(argv: list[str], arguments: int = 0) -> list[str]:
  """What a command line has besides flags; UserError if it is not allowed."""
  try:
    rest = flags.FLAGS(argv)
  except UserError:
    raise
  except SystemExit:  # after --help, where absl has status 1
    sys.exit(0)
  except flags.Error as e:
    raise UserError(f'{e}') from e
  except Exception as e:  # of the overrides of a config
    raise UserError(f'--config: {type(e).__name__}: {e}') from e
  if extra := rest[1 + arguments :]:
    raise UserError(f'argument {extra[0]!r} is not expected')
  return rest


@contextlib.contextmanager
def told(
  smaller: str = 'a smaller batch_size, segment_len, mem_len or model',
) -> Iterator[None]:
  """Ends the program with a line and status 1 where the block raises.

  Against a lack of memory `smaller` helps; Ctrl-C is status 130; whoever closes
  our output early, as head does, gets no line.
  """
  try:
    try:
      yield
    finally:
      sys.stdout.flush()  # what is left would fail when nobody catches it
  except BrokenPipeError:
    terminal.end(1)  # the interpreter would fail once more, when it ends
  except (UserError, OSError) as e:
    print('error:', ' '.join(str(e).split()), file=sys.stderr)
    sys.exit(1)
  except (MemoryError, RuntimeError) as e:
    # The latter is how XLA tells it; on a CPU it calls it an INTERNAL error.
    if isinstance(e, RuntimeError) and not re.search(_NO_MEMORY, str(e)):
      raise
    text = f'{first_line(e)}; allowed: {smaller}, or more devices'
    print(f'error: out of memory: {text}', file=sys.stderr)
    sys.exit(1)
  except KeyboardInterrupt:
    terminal.interrupt()


@contextlib.contextmanager
def without_echoes() -> Iterator[None]:
  """Leaves out what orbax logs: of a save that fails it would be pages."""
  logger, verbosity = logging.get_absl_logger(), logging.get_verbosity()

  def of_others(record):
    return 'orbax' not in record.pathname

  warnings.filterwarnings('ignore', 'coroutine .* was never awaited')
  logger.addFilter(of_others)
  logging.set_verbosity(logging.WARNING)
  try:
    yield
  finally:
    logger.removeFilter(of_others)
    logging.set_verbosity(verbosity)
