"""Keys of a config: declared once, checked, recorded, compared.

A section of a config is a frozen dataclass beside the code that reads it. Its
fields are made by `key`:

  @dataclasses.dataclass(frozen=True)
  class Mesh:
    fsdp: int = key(1, 'Devices that share the parameters.', at_least=1)

    def problems(self):
      if ...:
        yield 'fsdp', 'divisors of 8'

`problems`, where there is one, yields the keys whose values do not go together,
with what is allowed. The config itself is a locked ConfigDict of sections.
"""

import dataclasses
import difflib
import functools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import ml_collections
from ml_collections import config_dict

from txl_jax.program.errors import UserError

# When a value may be another one than the run or the model was made with.
NEVER = 'never'
IN_USE = 'in use'  # when the trained model is used, not when the run goes on
AT_TEST_TIME = 'at test time'  # the same; `eval.model` and others override it
ON_RESUME = 'on resume'  # whenever
OTHER = 'on resume, as another experiment'  # the same, but for the report
USED = IN_USE, AT_TEST_TIME, ON_RESUME, OTHER  # may differ in a use of it

_RECORDED = '"""The config of this run, complete.'
_LIST = 'docs/config.md lists them'
_LINE = 200  # characters of a value that are shown
_LISTED = 5  # values of many that are


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


def keys(section: type) -> dict[str, Key]:
  """{name: Key} of a section, in the order of declaration."""
  may = getattr(section, 'MAY_CHANGE', NEVER)
  found = {}
  for f in dataclasses.fields(section):
    e = f.metadata['key']
    found[f.name] = dataclasses.replace(e, may_change=e.may_change or may)
  return found


def overrides(section: type) -> type:
  """A section with the keys of another that change AT_TEST_TIME, all None."""
  types, fields = {f.name: f.type for f in dataclasses.fields(section)}, []
  for name, entry in keys(section).items():
    if entry.may_change == AT_TEST_TIME:
      entry = dataclasses.replace(entry, may_change=ON_RESUME)
      field = dataclasses.field(default=None, metadata={'key': entry})
      fields.append((name, types[name], field))
  return dataclasses.make_dataclass('Overrides', fields, frozen=True)


def defaults(section: type) -> ml_collections.ConfigDict:
  """A section of a config with the default of every key."""
  made = {}
  for f in dataclasses.fields(section):
    unset = f.default is None
    made[f.name] = config_dict.placeholder(f.type) if unset else f.default
  return ml_collections.ConfigDict(made)


def read(section: type, values: Mapping[str, Any]) -> Any:
  """The dataclass of a section, also from JSON; TypeError for another key."""
  return section(**flatten(values))


def flatten(config: Any) -> dict[str, Any]:
  """A nested config as {'section.key': value}, with tuples for JSON's lists."""
  flat = {}
  for name, value in config.items():
    if hasattr(value, 'items'):
      flat |= {f'{name}.{k}': v for k, v in flatten(value).items()}
    else:
      flat[name] = tuple(value) if isinstance(value, list) else value
  return flat


def shown(value: Any) -> str:
  """A value as Python writes it, but of a length for a line."""
  try:
    text = repr(value)
  except (ValueError, RecursionError):  # a number of thousands of digits
    text = f'a {type(value).__name__}, too long to be shown'
  return cut(text)


def cut(text: str) -> str:
  """A text, or its beginning if it is too long for a line."""
  return text if len(text) <= _LINE else f'{text[: _LINE - 1]}…'


def listed(texts: Sequence[str]) -> str:
  """The first few of several texts, and how many more there are."""
  rest = len(texts) - _LISTED
  first = cut(', '.join(texts[:_LISTED]))
  return f'{first} and {rest:,} more' if rest > 0 else first


def are_sizes(values: tuple, at_most: int) -> bool:
  """Whether a tuple has only whole numbers from 1 to a bound, and some."""
  whole = all(type(x) is int and 0 < x <= at_most for x in values)
  return whole and bool(values)


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
  """Raises the UserError for a value that is not allowed."""
  raise UserError(f'{name} is {shown(value)}; allowed: {allowed}')


def no_such_key(sections: Mapping[str, type], name: str) -> str:
  """Error text for an unknown key, with the nearest known key."""
  nearest = nearest_key(sections, name)
  more = f'the nearest is {nearest}' if nearest else _LIST
  return f'there is no such key; {more}'


def nearest_key(
  sections: Mapping[str, type], name: str, first: str = ''
) -> str:
  """The key nearest to a name, with its section or without; '' for none.

  Of keys equally near, the one of the section `first` counts.
  """
  there = [f'{x}.{k}'.lstrip('.') for x in sections for k in keys(sections[x])]
  there.sort(key=lambda x: not x.startswith(f'{first}.'))
  alone = {x.rpartition('.')[2]: x for x in reversed(there)}
  for names in ({} if '.' in name else alone, {x: x for x in there}):
    if found := difflib.get_close_matches(name, names, 1, 0.75):
      return names[found[0]]
  return next(iter(difflib.get_close_matches(name, there, 1)), '')


def read_all(
  sections: Mapping[str, type], config: Any
) -> dict[str, dict[str, Any]]:
  """{section: {key: value}}; UserError for a key too many, or a missing one."""
  found = {name: {} for name in sections}
  for name, value in flatten(config).items():
    section, _, own = name.rpartition('.')
    if name in sections:
      refuse(name, value, 'the section of that name, with all its keys')
    if section not in sections or own not in keys(sections[section]):
      why = no_such_key(sections, name)
      raise UserError(f'{name} = {shown(value)}: {why}')
    found[section][own] = value
  for name, section in sections.items():
    for own in keys(section):
      if own not in found[name]:
        raise UserError(f'{name}.{own} is missing from the config'.lstrip('.'))
  return found


def expand_home(sections: Mapping[str, type], config: Any) -> None:
  """Puts the home folder in place of ~ in the paths of a config."""
  for name, section in sections.items():
    for own, entry in keys(section).items():
      holder = config[name] if name and entry.is_path else config
      if entry.is_path and isinstance(holder[own], str):
        holder[own] = os.path.expanduser(holder[own])


def check(sections: Mapping[str, type], config: Any) -> None:
  """Raises a UserError for a value that is not allowed.

  The sections are {name: dataclass}, 'eval.model' for one within another, ''
  for the keys outside sections; the config is a ConfigDict or nested dict.
  """
  for name, values in read_all(sections, config).items():
    section, prefix = sections[name], f'{name}.' if name else ''
    for f in dataclasses.fields(section):
      if may_be := allowed(f, values[f.name]):
        refuse(f'{prefix}{f.name}', values[f.name], may_be)
    # What does not go together is yielded as (key, what is allowed).
    check_all = getattr(section, 'problems', lambda _: ())
    for own, may_be in check_all(read(section, values)):
      refuse(f'{prefix}{own}', values[own], may_be)


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
  sections: Mapping[str, type], now: dict, then: dict, *free: str
) -> Iterator[tuple[str, Any, Any]]:
  """Keys of flat configs that differ and may not: (key, now, then).

  A key that is missing has its default; keys whose `may_change` is one of
  `free` may differ.
  """
  names = sorted(now | then)
  # The model comes first: what differs besides differs because of it.
  for name in sorted(names, key='model.name'.__ne__):
    section, _, own = name.rpartition('.')
    declared = sections.get(section)
    entry = keys(declared).get(own) if declared else None
    default = getattr(declared, own, None) if entry else None
    here, there = now.get(name, default), then.get(name, default)
    if here != there and (entry is None or entry.may_change not in free):
      yield name, here, there


def to_json(config: ml_collections.ConfigDict) -> str:
  """A config as text that `json.loads` reads."""
  return json.dumps(config.to_dict(), indent=1, sort_keys=True)


def to_python(
  config: Any, command: str, but: Mapping[str, Any] = MappingProxyType({})
) -> str:
  """A Python file for --config with the values of a config, but some keys.

  The command continues the run.
  """
  values = (flatten(json.loads(json.dumps(config.to_dict()))) | {**but}).items()
  command = command.replace('\\', r'\\').replace('"', r'\"')
  lines = '\n'.join(f'  c.{k} = {x!r}' for k, x in values if x is not None)
  return f'''{_RECORDED}

{command}
"""

from txl_jax.modes import sections


def get_config():
  """The config."""
  c = sections.compose({config['model']['name']!r})
{lines}
  return c
'''
