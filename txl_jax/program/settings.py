"""Keys of a config: declared once, checked, recorded, compared.

A config is a tree of frozen dataclasses, its sections. Each is declared next to
the code that reads it, with fields made by `key`:

  @dataclasses.dataclass(frozen=True)
  class Mesh:
    fsdp: int = key(1, 'Devices that share the parameters.', at_least=1)

    def problems(self):
      if ...:
        yield 'fsdp', 'divisors of 8'

The optional method `problems` yields (key, allowed values) for each key whose
value conflicts with another. A field without `key` is a nested section. Config
files fill in a ConfigDict of the same keys (`to_config_dict`).
"""

import dataclasses
import difflib
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import ml_collections
from ml_collections import config_dict

from txl_jax.program.errors import UserError, refuse, shown

# When a value may differ from the one that the model was trained with.
NEVER = 'never'
AT_TEST_TIME = 'at test time'  # not on resume; `eval.model` can override it
ON_RESUME = 'on resume'  # always
OTHER = 'on resume, as another experiment'  # a row of its own in the report
USED = AT_TEST_TIME, ON_RESUME, OTHER  # allow a change after training

AnyConfig = TypeVar('AnyConfig')  # or a section of one


@dataclasses.dataclass(frozen=True)
class Key:
  """The metadata of a key, besides its name, type and default."""

  meaning: str  # one or more sentences for docs and --help
  choices: Mapping[Any, str]  # {allowed value: its meaning}; empty for any
  at_least: float | None = None
  above: float | None = None  # exclusive
  at_most: float | None = None
  may_change: str = ''  # '': the section's MAY_CHANGE, or else NEVER
  is_path: bool = False  # a path, in which ~ is the home folder
  remote: tuple[str, ...] = ()  # URL schemes that the path may have

  def bounds(self) -> str:
    """The bounds of a number in words; '' if there are none."""
    values = {k: getattr(self, k) for k in ('at_least', 'above', 'at_most')}
    words = (f'{k} {x}' for k, x in values.items() if x is not None)
    return ', '.join(words).replace('_', ' ')

  def holds(self, value: float) -> bool:
    """Whether a number is finite and within the bounds."""
    return (
      abs(value) < math.inf  # isfinite fails for huge integers
      and (self.at_least is None or value >= self.at_least)
      and (self.above is None or value > self.above)
      and (self.at_most is None or value <= self.at_most)
    )


def key(default: Any, meaning: str, *, choices: Any = (), **limits: Any) -> Any:
  """A field of a section; see `Key`. Choices may be a tuple of values."""
  if not isinstance(choices, Mapping):
    choices = dict.fromkeys(choices, '')
  entry = Key(meaning, choices, **limits)
  return dataclasses.field(default=default, metadata={'key': entry})


# Keys that are at least 1, at least 0, lengths of texts, or paths.
size = functools.partial(key, at_least=1)
count = functools.partial(key, at_least=0)
length = functools.partial(count, at_most=1_000_000)
file_path = functools.partial(key, is_path=True)


def keys(section: Any) -> dict[str, Key]:
  """{name: Key} of a section or its class, in the order of declaration."""
  default = getattr(section, 'MAY_CHANGE', NEVER)
  entries = {}
  for f in dataclasses.fields(section):
    if entry := f.metadata.get('key'):
      may_change = entry.may_change or default
      entries[f.name] = dataclasses.replace(entry, may_change=may_change)
  return entries


def sections(config: Any) -> dict[str, Any]:
  """{name: section}: '' is the config, 'eval.model' a section within eval."""
  found = {'': config}
  for f in dataclasses.fields(config):
    if 'key' not in f.metadata:
      for name, section in sections(getattr(config, f.name)).items():
        found[f'{f.name}.{name}'.rstrip('.')] = section
  return found


@dataclasses.dataclass(frozen=True)
class Overrides:
  """Values of model keys at test time; None keeps the value of training."""

  def given(self) -> dict[str, Any]:
    """{key: value} without None."""
    return {k: x for k, x in vars(self).items() if x is not None}


@functools.cache  # one class for each model, so that equal configs are equal
def overrides(section: type) -> type[Overrides]:
  """The Overrides class for the model keys that may change AT_TEST_TIME."""
  types, fields = {f.name: f.type for f in dataclasses.fields(section)}, []
  for name, entry in keys(section).items():
    if entry.may_change == AT_TEST_TIME:
      entry = dataclasses.replace(entry, may_change=ON_RESUME)
      field = dataclasses.field(default=None, metadata={'key': entry})
      fields.append((name, types[name], field))
  return dataclasses.make_dataclass(
    'Overrides', fields, bases=(Overrides,), frozen=True
  )


def to_config_dict(section: Any) -> ml_collections.ConfigDict:
  """A config as a ConfigDict; None becomes a placeholder."""
  values = {}
  for f in dataclasses.fields(section):
    value = getattr(section, f.name)
    if 'key' not in f.metadata:
      value = to_config_dict(value)
    elif value is None:
      value = config_dict.placeholder(f.type)
    values[f.name] = value
  return ml_collections.ConfigDict(values)


def read(section: type, values: Mapping[str, Any]) -> Any:
  """A section from values or JSON data; TypeError for an unknown key."""
  return section(**flatten(values))


def replace(config: AnyConfig, values: Mapping[str, Any]) -> AnyConfig:
  """A config with {'section.key': value} replaced, unchecked."""
  fields, nested = {}, {}
  for name, value in values.items():
    field, _, rest = name.partition('.')
    if rest:
      nested.setdefault(field, {})[rest] = value
    else:
      fields[field] = value
  fields |= {k: replace(getattr(config, k), x) for k, x in nested.items()}
  return dataclasses.replace(cast(Any, config), **fields)


def flatten(config: Any) -> dict[str, Any]:
  """A config or nested dict as {'section.key': value}; lists become tuples."""
  flat = {}
  values = vars(config) if dataclasses.is_dataclass(config) else config
  for name, value in values.items():
    if dataclasses.is_dataclass(value) or hasattr(value, 'items'):
      flat |= {f'{name}.{k}': v for k, v in flatten(value).items()}
    else:
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def no_such_key(config: Any, name: str) -> str:
  """Error text for an unknown key, with the nearest known key."""
  nearest = nearest_key(config, name)
  hint = f'the nearest is {nearest}' if nearest else 'docs/config.md lists all'
  return f'there is no such key; {hint}'


def nearest_key(config: Any, name: str, first: str = '') -> str:
  """The key most similar to `name`, which may lack its section; '' for none.

  Among equally near keys, one of the section `first` is preferred.
  """
  known = sorted(flatten(config), key=lambda x: not x.startswith(f'{first}.'))
  without_section = {x.rpartition('.')[2]: x for x in reversed(known)}
  for names in ({} if '.' in name else without_section, {x: x for x in known}):
    if found := difflib.get_close_matches(name, names, 1, 0.75):
      return names[found[0]]
  return next(iter(difflib.get_close_matches(name, known, 1)), '')


def fill(config: AnyConfig, values: Any, section: str = '') -> AnyConfig:
  """A config with all the values of a ConfigDict or nested dict, unchecked.

  The config may be a single section, named `section`. UserError for an unknown
  or missing key.
  """
  known = flatten(config)
  flat = flatten(values)
  nested = sections(config)
  prefix = f'{section}.' if section else ''
  for name, value in flat.items():
    if name in nested:
      refuse(f'{prefix}{name}', value, 'a section with all its keys')
    if name not in known:
      why = no_such_key(config, name)
      raise UserError(f'{prefix}{name} = {shown(value)}: {why}')
  for name in known:
    if name not in flat:
      raise UserError(f'{prefix}{name} is missing from the config')
  return replace(config, flat)


def expand_home(config: AnyConfig) -> AnyConfig:
  """A config with ~ in its paths replaced by the home folder."""
  flat = flatten(config)
  expanded = {
    name: os.path.expanduser(flat[name])
    for name, entry in all_keys(config).items()
    if entry.is_path and isinstance(flat[name], str)
  }
  return replace(config, expanded)


def all_keys(config: Any) -> dict[str, Key]:
  """{'section.key': Key} of a config."""
  return {
    f'{name}.{k}'.lstrip('.'): entry
    for name, section in sections(config).items()
    for k, entry in keys(section).items()
  }


def check(config: Any, name: str = '') -> None:
  """Raises a UserError for a value that is not allowed.

  The config may be a single section of this name.
  """
  for nested, section in sections(config).items():
    prefix = ''.join(f'{x}.' for x in (name, nested) if x)
    for f in dataclasses.fields(section):
      value = getattr(section, f.name)
      if 'key' in f.metadata and (may_be := allowed(f, value)):
        refuse(f'{prefix}{f.name}', value, may_be)
    for k, may_be in getattr(section, 'problems', lambda: ())():
      refuse(f'{prefix}{k}', getattr(section, k), may_be)


_TYPES = {
  bool: (bool, 'True or False'),
  int: (int, 'a whole number'),
  float: (int | float, 'a number'),
  str: (str, 'text'),
}
# Upper bounds of otherwise unbounded numbers: the sum of two lengths must fit
# int32, a rate float32.
_LARGEST = {int: 10**9, int | float: 1e38}


def allowed(field: dataclasses.Field, value: Any) -> str:
  """The allowed values of a key, in words; '' if this value is allowed."""
  entry = field.metadata['key']
  if value is None and field.default is None:
    return ''
  if entry.choices:
    # True == 1, and a value may not be hashable.
    known = any(type(x) is type(value) and x == value for x in entry.choices)
    return '' if known else ', '.join(map(str, entry.choices))
  kind, name = _TYPES.get(field.type, (tuple, 'a tuple'))
  # bool is a subclass of int.
  if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
    return name
  if kind is str:
    return _allowed_text(value, entry)
  if kind in (bool, tuple):
    return ''
  if entry.at_most is None:
    entry = dataclasses.replace(entry, at_most=_LARGEST[kind])
  return '' if entry.holds(value) else entry.bounds()


def _allowed_text(text: Any, entry: Key) -> str:
  try:
    text.encode()
  except UnicodeEncodeError:
    return 'text in UTF-8'
  if not entry.is_path:
    return ''
  if '://' in text and not text.startswith(('/', *entry.remote)):
    return ', or '.join(['a local path', *(f'{x}…' for x in entry.remote)])
  return 'a path without the character NUL' if '\0' in text else ''


def differences(
  config: Any, now: Mapping[str, Any], then: Mapping[str, Any], *free: str
) -> Iterator[tuple[str, Any, Any]]:
  """Differences of flat configs: (key, value now, value then).

  A missing key has the default of `config`. Keys whose `may_change` is in
  `free` are left out.
  """
  declared = sections(config)
  entries = all_keys(config)
  # The name of the model comes first: it explains the others.
  for name in sorted({**now, **then}, key=lambda x: (x != 'model.name', x)):
    entry = entries.get(name)
    default = None
    if entry:
      section, _, field = name.rpartition('.')
      default = getattr(type(declared[section]), field, None)
    value = now.get(name, default)
    before = then.get(name, default)
    if value != before and (entry is None or entry.may_change not in free):
      yield name, value, before


def to_json(config: Any) -> str:
  """A config as JSON text."""
  return json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True)


def to_python(
  config: Any, command: str, changes: Mapping[str, Any] = MappingProxyType({})
) -> str:
  """A Python file for --config, with a config's values, changed by `changes`.

  `command`, which continues the run, is quoted in its docstring.
  """
  values = (flatten(json.loads(to_json(config))) | {**changes}).items()
  command = command.replace('\\', r'\\').replace('"', r'\"')
  lines = '\n'.join(f'  c.{k} = {x!r}' for k, x in values if x is not None)
  return f'''"""The config of this run, complete.

{command}
"""

from txl_jax.experiment import sections


def get_config():
  """The config."""
  c = sections.compose({config.model.name!r})
{lines}
  return c
'''
