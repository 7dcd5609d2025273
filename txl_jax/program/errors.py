"""User-facing errors: one line, and exit status 1."""

import contextlib
import re
import sys
from collections.abc import Iterator

from txl_jax.program import terminal

_LONG = re.compile(r'(\S{199})\S{21,}')  # a name or path that no line has
_NO_MEMORY = 'RESOURCE_EXHAUSTED|Out of memory'


class UserError(Exception):
  """Something the user can mend: an error of one line.

  The message names the key or file, what was found and what is allowed.
  `told` prints it, without a traceback, and exits with status 1.
  """


def first_line(error: BaseException) -> str:
  """The first line of what an error says, or its type if it says nothing."""
  return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def told() -> Iterator[None]:
  """Ends the program with a line and status 1 where the block raises.

  Ctrl-C is status 130; whoever closes our output early, as head does, gets no
  line.
  """
  try:
    try:
      yield
    finally:
      sys.stdout.flush()  # what is left would fail when nobody catches it
  except BrokenPipeError:
    terminal.end(1)  # the interpreter would fail once more, when it ends
  except (UserError, OSError) as e:
    text = _LONG.sub(r'\1…', ' '.join(str(e).split()))
    print('error:', text, file=sys.stderr)
    sys.exit(1)
  except (MemoryError, RuntimeError) as e:
    # The latter is how XLA tells it; on a CPU it calls it an INTERNAL error.
    if isinstance(e, RuntimeError) and not re.search(_NO_MEMORY, str(e)):
      raise
    allowed = 'a smaller batch, segment, memory or model'
    text = f'{first_line(e)}; allowed: {allowed}, or more devices'
    print(f'error: out of memory: {text}', file=sys.stderr)
    sys.exit(1)
  except KeyboardInterrupt:
    terminal.interrupt()
