"""Keys of a config: declared once, checked, recorded, compared.

A config is a tree of frozen dataclasses, its sections. Each is declared beside
the code that reads it, and its fields are made by `key`:

  @dataclasses.dataclass(frozen=True)
  class Mesh:
    fsdp: int = key(1, 'Devices that share the parameters.', at_least=1)

    def problems(self):
      if ...:
        yield 'fsdp', 'divisors of 8'

`problems`, where a section has it, yields the keys whose values do not go
together, each with what is allowed. A field that is no `key` is a section
within. Config files fill in a ConfigDict of the same keys (`to_config_dict`).
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

# When a value may be another one than the run or the model was made with.
NEVER = 'never'
IN_USE = 'in use'  # when the trained model is used, not when the run goes on
AT_TEST_TIME = 'at test time'  # the same; `eval.model` and others override it
ON_RESUME = 'on resume'  # whenever
OTHER = 'on resume, as another experiment'  # the same, but for the report
USED = IN_USE, AT_TEST_TIME, ON_RESUME, OTHER  # may differ in a use of it

T = TypeVar('T')  # a config, or a section

_RECORDED = '"""The config of this run, complete.'
_LIST = 'docs/config.md lists them'


@dataclasses.dataclass(frozen=True)
class Key:
  """What is known of a key besides its name, type and default."""

  meaning: str  # a sentence or more, for people
  choices: Mapping[Any, str]  # {allowed value: its meaning}; empty is any
  at_least: float | None = None
  above: float | None = None  # a bound that is not itself allowed
  at_most: float | None = None
  may_change: str = ''  # as the section says in MAY_CHANGE; NEVER without
  is_path: bool = False  # a path, in which ~ is the home folder
  remote: tuple[str, ...] = ()  # schemes that such a path may have

  def bounds(self) -> str:
    """The bounds of a number in words; '' if there are none."""
    found = {k: getattr(self, k) for k in ('at_least', 'above', 'at_most')}
    words = (f'{k} {x}' for k, x in found.items() if x is not None)
    return ', '.join(words).replace('_', ' ')

  def holds(self, value: float) -> bool:
    """Whether a number is finite and within the bounds."""
    return (
      abs(value) < math.inf  # isfinite fails for huge integers
      and (self.at_least is None or value >= self.at_least)
      and (self.above is None or value > self.above)
      and (self.at_most is None or value <= self.at_most)
    )


def key(default: Any, meaning: str, *, choices: Any = (), **more: Any) -> Any:
  """A field of a section; see `Key`. Choices may be a tuple of plain names."""
  if not isinstance(choices, Mapping):
    choices = dict.fromkeys(choices, '')
  entry = Key(meaning, choices, **more)
  return dataclasses.field(default=default, metadata={'key': entry})


# Keys that are at least 1, at least 0, and paths, see `expand_home`.
size = functools.partial(key, at_least=1)
count = functools.partial(key, at_least=0)
file_path = functools.partial(key, is_path=True)


def keys(section: Any) -> dict[str, Key]:
  """{name: Key} of a section or its class, in the order of declaration."""
  may = getattr(section, 'MAY_CHANGE', NEVER)
  found = {}
  for f in dataclasses.fields(section):
    if 'key' in f.metadata:
      e = f.metadata['key']
      found[f.name] = dataclasses.replace(e, may_change=e.may_change or may)
  return found


def sections(config: Any) -> dict[str, Any]:
  """{name: section} of a config: '' is itself, 'eval.model' one within eval."""
  found = {'': config}
  for f in dataclasses.fields(config):
    if 'key' not in f.metadata:
      for name, section in sections(getattr(config, f.name)).items():
        found[f'{f.name}.{name}'.rstrip('.')] = section
  return found


@dataclasses.dataclass(frozen=True)
class Overrides:
  """Keys of a model with other values at test time, None where they are its."""

  def given(self) -> dict[str, Any]:
    """{key: value} of those that are not None."""
    return {k: x for k, x in vars(self).items() if x is not None}


def overrides(section: type) -> type[Overrides]:
  """The Overrides of the keys of a section that may change AT_TEST_TIME.

  Made from the model's declaration, so that a new model states them once.
  """
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
  """A section and those within as a ConfigDict; None becomes a placeholder."""
  made = {}
  for f in dataclasses.fields(section):
    value = getattr(section, f.name)
    if 'key' not in f.metadata:
      made[f.name] = to_config_dict(value)
    else:
      made[f.name] = config_dict.placeholder(f.type) if value is None else value
  return ml_collections.ConfigDict(made)


def read(section: type, values: Mapping[str, Any]) -> Any:
  """The dataclass of a section, also from JSON; TypeError for another key."""
  return section(**flatten(values))


def replace(config: T, values: Mapping[str, Any]) -> T:
  """A config with {'section.key': value} replaced; nothing is checked."""
  own, inner = {}, {}
  for name, value in values.items():
    first, _, rest = name.partition('.')
    if rest:
      inner.setdefault(first, {})[rest] = value
    else:
      own[first] = value
  own |= {k: replace(getattr(config, k), x) for k, x in inner.items()}
  return dataclasses.replace(cast(Any, config), **own)


def flatten(config: Any) -> dict[str, Any]:
  """A nested config as {'section.key': value}, with tuples for JSON's lists."""
  flat = {}
  values = vars(config) if dataclasses.is_dataclass(config) else config
  for name, value in values.items():
    if dataclasses.is_dataclass(value) or hasattr(value, 'items'):
      flat |= {f'{name}.{k}': v for k, v in flatten(value).items()}
    else:
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def are_sizes(values: tuple, at_most: int) -> bool:
  """Whether a tuple has only whole numbers from 1 to a bound, and some."""
  whole = all(type(x) is int and 0 < x <= at_most for x in values)
  return whole and bool(values)


def no_such_key(config: Any, name: str) -> str:
  """Error text for an unknown key, with the nearest known key."""
  nearest = nearest_key(config, name)
  more = f'the nearest is {nearest}' if nearest else _LIST
  return f'there is no such key; {more}'


def nearest_key(config: Any, name: str, first: str = '') -> str:
  """The key nearest to a name, with its section or without; '' for none.

  Of keys equally near, the one of the section `first` counts.
  """
  there = sorted(flatten(config), key=lambda x: not x.startswith(f'{first}.'))
  alone = {x.rpartition('.')[2]: x for x in reversed(there)}
  for names in ({} if '.' in name else alone, {x: x for x in there}):
    if found := difflib.get_close_matches(name, names, 1, 0.75):
      return names[found[0]]
  return next(iter(difflib.get_close_matches(name, there, 1)), '')


def fill(config: T, values: Any, section: str = '') -> T:
  """A config with all the values of a ConfigDict or nested dict, unchecked.

  It may be a single section of this name. UserError for an unknown key, or a
  missing one.
  """
  known, found = flatten(config), flatten(values)
  for name, value in found.items():
    if name in sections(config):
      refuse(name, value, 'the section of that name, with all its keys')
    if name not in known:
      whole, why = f'{section}.{name}'.lstrip('.'), no_such_key(config, name)
      raise UserError(f'{whole} = {shown(value)}: {why}')
  for name in known:
    if name not in found:
      raise UserError(f'{name} is missing from the config')
  return replace(config, found)


def expand_home(config: T) -> T:
  """A config with the home folder in place of ~ in its paths."""
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
    f'{name}.{own}'.lstrip('.'): entry
    for name, section in sections(config).items()
    for own, entry in keys(section).items()
  }


def check(config: Any, name: str = '') -> None:
  """Raises a UserError for a value that is not allowed.

  The config may be a single section of this name.
  """
  for within, section in sections(config).items():
    prefix = ''.join(f'{x}.' for x in (name, within) if x)
    for f in dataclasses.fields(section):
      value = getattr(section, f.name)
      if 'key' in f.metadata and (may_be := allowed(f, value)):
        refuse(f'{prefix}{f.name}', value, may_be)
    # What does not go together is yielded as (key, what is allowed).
    for own, may_be in getattr(section, 'problems', lambda: ())():
      refuse(f'{prefix}{own}', getattr(section, own), may_be)


_TYPES = {
  bool: (bool, 'True or False'),
  int: (int, 'a whole number'),
  float: (int | float, 'a number'),
  str: (str, 'text'),
}
# Of numbers without a bound: two such lengths add up within int32, and such a
# rate is a float32.
_LARGEST = {int: 10**9, int | float: 1e38}


def allowed(field: dataclasses.Field, value: Any) -> str:
  """What a key may be, in words; '' if the value is allowed."""
  entry = field.metadata['key']
  if value is None and field.default is None:
    return ''
  if entry.choices:
    # True == 1, and a set has no hash.
    there = any(type(x) is type(value) and x == value for x in entry.choices)
    return '' if there else ', '.join(map(str, entry.choices))
  kind, name = _TYPES.get(field.type, (tuple, 'a tuple'))
  # A bool is an int.
  if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
    return name
  if kind is str:
    return _unreadable(value, entry)
  if kind in (bool, tuple):
    return ''
  if entry.at_most is None:
    entry = dataclasses.replace(entry, at_most=_LARGEST[kind])
  return '' if entry.holds(value) else entry.bounds()


def _unreadable(text, entry):
  """What a text may be, in words, if it cannot be one of a file; else ''."""
  try:
    text.encode()
  except UnicodeEncodeError:
    return 'text that is UTF-8'
  if not entry.is_path:
    return ''
  if '://' in text and not text.startswith(('/', *entry.remote)):
    return ', or '.join(['a local path', *(f'{x}…' for x in entry.remote)])
  return 'a path without the character NUL' if '\0' in text else ''


def differences(
  config: Any, now: Mapping[str, Any], then: Mapping[str, Any], *free: str
) -> Iterator[tuple[str, Any, Any]]:
  """Keys of flat configs that differ and may not: (key, now, then).

  The keys are those of a config; one that is missing has its default. Keys
  whose `may_change` is one of `free` may differ.
  """
  declared, entries = sections(config), all_keys(config)
  # The model comes first: what differs besides differs because of it.
  for name in sorted({**now, **then}, key=lambda x: (x != 'model.name', x)):
    entry, default = entries.get(name), None
    if entry:
      section, _, own = name.rpartition('.')
      default = getattr(type(declared[section]), own, None)
    here, there = now.get(name, default), then.get(name, default)
    if here != there and (entry is None or entry.may_change not in free):
      yield name, here, there


def to_json(config: Any) -> str:
  """A config as text that `json.loads` reads."""
  return json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True)


def to_python(
  config: Any, command: str, but: Mapping[str, Any] = MappingProxyType({})
) -> str:
  """A Python file for --config with the values of a config, but some keys.

  The command continues the run.
  """
  values = (flatten(json.loads(to_json(config))) | {**but}).items()
  command = command.replace('\\', r'\\').replace('"', r'\"')
  lines = '\n'.join(f'  c.{k} = {x!r}' for k, x in values if x is not None)
  return f'''{_RECORDED}

{command}
"""

from txl_jax.experiment import sections


def get_config():
  """The config."""
  c = sections.compose({config.model.name!r})
{lines}
  return c
'''
