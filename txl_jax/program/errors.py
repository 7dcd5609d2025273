"""User-facing errors: one line, and exit status 1."""

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from txl_jax.program import signals

TRACEBACK = 'TXL_JAX_TRACEBACK'  # environment variable, see `reporting`
_LONG = re.compile(r'(\S{199})\S{21,}')  # a name or path too long for a line
_NO_MEMORY = 'RESOURCE_EXHAUSTED|Out of memory'
_LINE = 200  # characters of a value in a message
_LISTED = 5  # values of a list in a message


class UserError(Exception):
  """An error that the user can fix; its message is one line.

  The message names the key or file, the value found and the values allowed.
  `reporting` prints it without a traceback and exits with status 1.
  """


def first_line(error: BaseException) -> str:
  """The first line of an error's message; its type if there is no message."""
  return next(iter(str(error).strip().splitlines()), type(error).__name__)


def reason(error: BaseException) -> str:
  """The first line of an error, shortened to be part of a message."""
  return shorten(' '.join(first_line(error).split()))


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
  """Raises the UserError for a value that is not allowed."""
  raise UserError(f'{name} is {shown(value)}; allowed: {allowed}')


def extra(name: str, module: str, user: str) -> Any:
  """Imports a module of the extra `name`; UserError if it is missing."""
  try:
    return importlib.import_module(module)
  except ImportError as e:
    how = f"run: pip install 'txl_jax[{name}]'"
    raise UserError(f'{user} needs {module}; {how}') from e


def shown(value: Any) -> str:
  """The repr of a value, shortened for a line."""
  try:
    text = repr(value)
  except (ValueError, RecursionError):  # a number of thousands of digits
    text = f'a very long {type(value).__name__}'
  return shorten(re.sub(r'\s*\n\s*', ' ', text))  # an array has several lines


def shorten(text: str) -> str:
  """A text, truncated with … if it is too long for a line."""
  return text if len(text) <= _LINE else f'{text[: _LINE - 1]}…'


def listed(texts: Sequence[str]) -> str:
  """The first texts, comma-separated, and the number of the others."""
  rest = len(texts) - _LISTED
  first = shorten(', '.join(texts[:_LISTED]))
  return f'{first} and {rest:,} more' if rest > 0 else first


@contextlib.contextmanager
def reporting() -> Iterator[None]:
  """Prints an error of the block in one line and exits with status 1.

  If TRACEBACK is set in the environment, the traceback is printed before it.
  Ctrl-C exits with status 130. A reader that closes our output early, as head
  does, gets no line.
  """
  try:
    try:
      yield
    finally:
      sys.stdout.flush()  # a later flush would fail where nobody catches it
  except BrokenPipeError:
    signals.end(1)  # the interpreter would fail again at exit
  except (UserError, OSError, MemoryError, RuntimeError) as e:
    text = _LONG.sub(r'\1…', ' '.join(str(e).split()))
    if isinstance(e, OSError):  # unexpected, unlike a UserError
      text += f'; {TRACEBACK}=1 in the environment prints the traceback'
    elif not isinstance(e, UserError):
      # XLA raises a RuntimeError when out of memory; on a CPU, an INTERNAL one.
      if isinstance(e, RuntimeError) and not re.search(_NO_MEMORY, str(e)):
        raise
      allowed = 'a smaller batch, segment, memory or model, or more devices'
      text = f'out of memory: {first_line(e)}; allowed: {allowed}'
    if os.environ.get(TRACEBACK):
      traceback.print_exc()
    print('error:', text, file=sys.stderr)
    sys.exit(1)
  except KeyboardInterrupt:
    signals.interrupt()
