"""What is written: a new folder or file, which never replaces another."""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from txl_jax.data.corpora import temporary_folder
from txl_jax.program import files
from txl_jax.program.errors import UserError

FORMATS = ('auto', 'workdir', 'original', 'hugging_face', 'export')
_ENDINGS = {'.pt': 'original', '.pth': 'original', '.npz': 'export'}
_OF_FILES = '.bin', '.safetensors', '.index', '.ckpt', '.pkl', '.h5'
_FILES = 'original', 'export'  # the other formats are folders


def format_of(to: pathlib.Path, chosen: str) -> str:
  """The chosen format, or, if auto, the one that the name implies.

  UserError: the name is that of a kind of file that is not written.
  """
  if chosen != 'auto':
    return chosen
  if to.suffix.lower() in _OF_FILES:
    raise UserError(
      f'--to={to} ends in {to.suffix}; allowed: a name that ends in '
      f'{", ".join(_ENDINGS)}, or a new folder; --format says which other'
    )
  return _ENDINGS.get(to.suffix.lower(), 'workdir')


def hold_new(to: pathlib.Path, form: str) -> None:
  """UserError if the name is taken; a folder may be there if it is empty."""
  if not os.path.lexists(to):
    return
  if form in _FILES:
    raise _taken(to, 'name')
  if to.is_dir():
    with files.writing(f'--to={to}'):
      if not any(to.iterdir()):
        return
  raise _taken(to, 'folder')


@contextlib.contextmanager
def new_folder(to: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder that gets its name at the end, whole or not at all.

  UserError: it cannot be written, or another was there first.
  """
  hold_new(to, 'workdir')
  try:
    with files.writing(f'--to={to}'), temporary_folder.whole(to) as made:
      yield made
  except UserError as e:
    if isinstance(e.__cause__, FileExistsError) and os.path.lexists(to):
      raise _taken(to, 'folder') from e
    raise


@contextlib.contextmanager
def new_file(to: pathlib.Path) -> Iterator[None]:
  """Makes the folders of a new file; UserError if another was there first."""
  hold_new(to, 'original')
  try:
    with files.writing(f'--to={to}'):
      to.parent.mkdir(parents=True, exist_ok=True)
      yield
  except UserError as e:
    if isinstance(e.__cause__, FileExistsError) and os.path.lexists(to):
      raise _taken(to, 'name') from e
    raise


def _taken(to, what):
  return UserError(f'--to={to} is there already; allowed: a new {what}')
