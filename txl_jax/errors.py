"""The one exception for what a user can cause."""


class UserError(Exception):
  """Something the user can mend, told in one line.

  The message names the key or file, what was found and what is allowed.
  `main` prints it without a traceback and exits with status 1.
  """
