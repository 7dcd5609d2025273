"""User-facing errors."""


class UserError(Exception):
  """Something the user can mend, told in one line.

  The message names the key or file, what was found and what is allowed.
  `command_line.told` prints it, without a traceback, and exits with status 1.
  """


def first_line(error: BaseException) -> str:
  """The first line of what an error says, or its type if it says nothing."""
  return next(iter(str(error).strip().splitlines()), type(error).__name__)
