"""Runs the file of --config; an error in it is reported with its line.

--config=NAME is a config of txl_jax.configs; --config=PATH, which has a / or
ends in .py, is a file. ml_collections applies command-line overrides.
"""

import difflib
import inspect
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
  """Parser of --config; also rejects overrides of unknown keys."""

  def parse(self, path: str) -> Any:
    """The locked config of a file; UserError: see `load`."""
    config = load(path)
    note_changes(config, overridden(), '--config.')
    return config.lock()


def overridden() -> list[str]:
  """The keys that the command line sets."""
  argv = flags.FLAGS.read_flags_from_files(sys.argv, force_gnu=False)
  matches = (re.match(r'--?(?:no)?config\.([^=]*)', x) for x in argv)
  return [match[1] for match in matches if match]


def note_changes(config: Any, keys: Iterable[str], prefix: str = '') -> None:
  """Appends + to config.experiment if one of the keys changes the experiment.

  Raises UserError for an unknown key, shown with the prefix before it.
  """
  defaults = sections.like(config)
  known = settings.all_keys(defaults)
  for key in keys:
    if inside := [k for k in known if k.startswith(f'{key}.')]:
      allowed = f'one of its keys, such as {prefix}{inside[0]}=…'
      raise UserError(f'{prefix}{key} is a section; allowed: {allowed}')
    if key not in known:
      raise UserError(f'{prefix}{key}: {settings.no_such_key(defaults, key)}')
  if not all(sections.same_experiment(known, key) for key in keys):
    config.experiment += '+'  # an override of config.experiment replaces it


def name(path: str) -> str:
  """FILE-TEXT: the folder in runs/ of a run with --config=FILE:TEXT."""
  return re.sub(r'[:/\\]', '-', ':'.join(_experiment(*_parts(path))))


def _experiment(path: str, argument: list[str]) -> list[str]:
  return [pathlib.Path(path).stem, *argument]


def _parts(path: str) -> tuple[str, list[str]]:
  """The path of a file, and [TEXT] or []."""
  # A folder name may contain a colon, like runs/own_text:bytes.
  match = re.fullmatch(r'(?s)(.*\.py|(?:gs://)?[^:]*)(?::(.*))?', path)
  assert match
  return match[1], [] if match[2] is None else [match[2]]


def load(path: str) -> Any:
  """The config of a file, or one of txl_jax.configs by its name.

  :TEXT after the path is the argument of get_config; the default is the first
  of VARIANTS, if the file has them. UserError if the file does not exist, its
  code fails, or get_config does not return a config.
  """
  path, argument = _parts(os.path.expanduser(path))
  if '/' not in path and not path.endswith('.py'):
    paths = configs.paths()
    if path not in paths:
      hint = f'allowed: {", ".join(paths)}, or a file, such as ./mine.py'
      if near := difflib.get_close_matches(path, paths, cutoff=0.65):
        names = (':'.join([x, *argument]) for x in near)
        hint = f'the nearest: {", ".join(names)}'
        hint += '; a variant is NAME:VARIANT' * ('-' in path)
      name = ':'.join([path, *argument])
      raise UserError(f'--config={name} is unknown; {hint}')
    path = f'{paths[path]}'
  source = files.read(buckets.place(path, '--config'), f'--config={path}')
  module = types.ModuleType('config_file')
  module.__file__ = path
  sys.modules[module.__name__] = module  # dataclasses look it up
  try:
    exec(compile(source, path, 'exec'), vars(module))
    variants = vars(module).get('VARIANTS') or ()
    if argument and not inspect.signature(module.get_config).parameters:
      allowed = 'none, as the file has no variants'
      errors.refuse('the variant', argument[0], allowed)
    argument = argument or [*variants][:1]
    try:
      config = module.get_config(*argument)
    except Exception:  # of a variant that it does not know
      if not argument or argument[0] in variants or not variants:
        raise
      allowed = ', '.join(map(str, variants))
      errors.refuse('the variant', argument[0], allowed)
    if type(config) is not ml_collections.ConfigDict:
      raise UserError(
        f'get_config() returned {errors.shown(config)}, not a ConfigDict; '
        'start from common.get_config() and change its keys'
      )
    settings.fill(sections.like(config), config)
    if not config.experiment:
      config.experiment = ':'.join(_experiment(path, argument))
  except KeyboardInterrupt:
    raise
  except BaseException as e:  # SystemExit would end the program silently
    # ml_collections lists every key.
    why = re.sub(r'(?s)\\n| Other fields present: "{.*}"', ' ', f'{e}')
    kind = '' if isinstance(e, UserError) else f'{type(e).__name__}: '
    raise UserError(f'{_where(e, path)}: {kind}{why}') from e
  return config


def _where(error: BaseException, path: str) -> str:
  """The line of a config that raised an error, or else the file."""
  for frame in reversed(traceback.extract_tb(error.__traceback__)):
    of_config = frame.name in ('get_config', '<module>')  # or one it imports
    of_config &= not frame.filename.endswith('/configs/common.py')
    if frame.filename == path or of_config:
      return f'{frame.filename}, line {frame.lineno}, {frame.line}'
  return f'--config={path}'
