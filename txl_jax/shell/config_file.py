"""The file of --config, run so that a mistake in it is reported with its line.

--config=NAME is a config of txl_jax.configs; --config=PATH, which has a / or
ends in .py, is a file. ml_collections sets what the command line overrides.
"""

import os
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Iterable
from typing import Any

import ml_collections
from absl import flags

from txl_jax import configs
from txl_jax.experiment import sections
from txl_jax.program import buckets, errors, files, settings
from txl_jax.program.errors import UserError


class Parser(flags.ArgumentParser):
  """Parser of --config, if all overrides are of declared keys."""

  def parse(self, path: str) -> Any:
    """The locked config of a file; UserError: see `load`."""
    config = load(path)
    note_changes(config, overridden(), '--config.')
    return config.lock()


def overridden() -> list[str]:
  """The keys that the command line sets."""
  argv = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
  matches = (re.match(r'--?(?:no)?config\.([^=]*)', x) for x in argv)
  return [found[1] for found in matches if found]


def note_changes(config: Any, keys: Iterable[str], prefix: str = '') -> None:
  """Marks the experiment of a config as changed in these keys, if it is.

  UserError for an unknown key, which it names with the prefix.
  """
  declared = sections.like(config)
  known = settings.all_keys(declared)
  for key in keys:
    if key not in known:
      raise UserError(f'{prefix}{key}: {settings.no_such_key(declared, key)}')
  if not all(sections.same_experiment(declared, key) for key in keys):
    config.experiment += '+'  # unless its name is given, too


def name(path: str) -> str:
  """The folder of a run with --config=FILE:TEXT in runs/: FILE-TEXT."""
  return re.sub(r'[:/\\]', '-', ':'.join(_experiment(*_parts(path))))


def _experiment(path, argument):
  return [pathlib.Path(path).stem, *argument]


def _parts(path):
  """The path of a file, and [TEXT] or []."""
  # A folder may have a colon in its name, as runs/own_text:bytes.
  found = re.fullmatch(r'(?s)(.*\.py|(?:gs://)?[^:]*)(?::(.*))?', path)
  assert found
  return found[1], [x for x in [found[2]] if x is not None]


def load(path: str) -> Any:
  """The config of a file, or of one of ours by its name.

  :TEXT after the path is the argument of get_config; without it, that is the
  first of VARIANTS, if the file has them. UserError if there is no such file or
  name, its code fails, or it returns another thing than a config.
  """
  path, argument = _parts(os.path.expanduser(path))
  if '/' not in path and not path.endswith('.py'):
    there = configs.paths()
    if path not in there:
      allowed = f'{", ".join(there)}, or a file, as ./mine.py'
      raise UserError(f'--config={path} is unknown; allowed: {allowed}')
    path = f'{there[path]}'
  source = files.read(buckets.place(path, '--config'), f'--config={path}')
  module = types.ModuleType('config_file')
  module.__file__ = path
  sys.modules[module.__name__] = module  # as dataclasses look it up there
  try:
    exec(compile(source, path, 'exec'), vars(module))
    if not argument and (variants := vars(module).get('VARIANTS')):
      argument = [next(iter(variants))]
    config = module.get_config(*argument)
    if type(config) is not ml_collections.ConfigDict:
      found = errors.shown(config)
      allowed = 'allowed: that of common.get_config(), changed'
      raise UserError(f'get_config() returns {found}, no ConfigDict; {allowed}')
    settings.fill(sections.like(config), config)
    named = ':'.join(_experiment(path, argument))
    config.experiment = config.experiment or named
  except KeyboardInterrupt:
    raise
  except BaseException as e:  # SystemExit would end the program in silence
    # ml_collections lists every key that is there.
    why = re.sub(r'(?s)\\n| Other fields present: "{.*}"', ' ', f'{e}')
    what = '' if isinstance(e, UserError) else f'{type(e).__name__}: '
    raise UserError(f'{_where(e, path)}: {what}{why}') from e
  return config


def _where(error, path):
  """The line of a config that raised an error, or else the file."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    of_config = frame.name in ('get_config', '<module>')  # one that it imports
    of_config &= not frame.filename.endswith('/configs/common.py')
    if frame.filename == path or of_config:
      return f'{frame.filename}, line {frame.lineno}, {frame.line}'
  return f'--config={path}'
