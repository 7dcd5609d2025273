"""Names of tensors: renaming a state dict, and listing many in one line."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txl_jax.program.errors import UserError

_LONGEST = 2000  # characters of names in a message
_NAME = 1000  # characters of the name of a tensor


def is_name(text: Any) -> bool:
  """Whether something can be a tensor's name, and be shown in one line."""
  return type(text) is str and 0 < len(text) <= _NAME and text.isprintable()


def by_table(table: Mapping[str, str], name: str) -> str:
  """The name that a table {name: other name} has for one, or else itself.

  A {} in both stands for the number of a layer or bin.
  """
  for pattern, other in table.items():
    number = re.escape(pattern).replace(r'\{\}', r'(0|[1-9]\d{0,3})')
    if match := re.fullmatch(number, name):
      return other.format(*match.groups())
  return name


def renamed(
  state: Mapping[str, Any], rename: Callable[[str], str]
) -> dict[str, Any]:
  """The state with other names; UserError if two become the same."""
  found, before = {}, {}
  for name, x in state.items():
    new = rename(name)
    if new in found:
      raise UserError(
        f'{listed([before[new], name])} would both be {new:.200}; allowed: one '
        'of them'
      )
    found[new], before[new] = x, name
  return found


def unwrapped(name: str) -> str:
  """The name that a tensor had before DataParallel and its like wrapped it."""
  return re.sub(r'^(module\.)+', '', name)


def listed(names: Iterable[str]) -> str:
  """Names separated by commas; if very many, the first and how many more."""
  found, size, names = [], 0, [*names]
  for name in names:
    size += len(name) + 2
    if found and size > _LONGEST:
      return f'{", ".join(found)} and {len(names) - len(found):,} more'
    found.append(f'{name:.{_LONGEST}}')
  return ', '.join(found)
