"""Shared by the launchers in Python: command-line parsing and errors."""

import argparse
import pathlib
import sys


class Parser(argparse.ArgumentParser):
  """Parses a launcher's options and the arguments after --.

  A user error is one line and exit status 2.
  """

  def __init__(self, description):
    super().__init__(
      prog=f'launch/{pathlib.Path(sys.argv[0]).name}',
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
    )
    self.add_argument(
      '--dry_run', action='store_true', help='only print what would be done'
    )

  def parse(self, argv):
    """(options, the arguments after --) of a command line."""
    cut = argv.index('--') if '--' in argv else len(argv)
    return self.parse_args(argv[:cut]), argv[cut + 1 :]

  def error(self, message):
    """Ends the program."""
    print('error:', message, file=sys.stderr)
    sys.exit(2)

  def refuse(self, name, found, allowed):
    """Ends the program: the value of an option is not allowed."""
    self.error(f'--{name}={found}; allowed: {allowed}')

  def positive(self, options, *names):
    """Ends the program unless the values of these options are above 0."""
    for name in names:
      if getattr(options, name) < 1:
        self.refuse(name, getattr(options, name), '1 or more')


def cannot_start(command, error):
  """Prints the OSError of a command; returns 127, as a shell does."""
  print(f'error: {command[0]}: {error.strerror}', file=sys.stderr)
  return 127
