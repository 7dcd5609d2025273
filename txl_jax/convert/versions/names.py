"""Renames the tensors of a state dict, and lists names in messages."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txl_jax.program.errors import UserError

_SHOWN = 40  # names in a message
_LONGEST = 1000  # characters of a tensor's name
_WRAPPERS = re.compile(r'\b(module|_orig_mod|_fsdp_wrapped_module)\.')
_FIRST = re.compile(r'(.*)word_emb\.emb_layers\.0\.weight')


def is_name(text: Any) -> bool:
  """Whether an object is a valid tensor name: short, printable text."""
  return type(text) is str and 0 < len(text) <= _LONGEST and text.isprintable()


def by_table(table: Mapping[str, str], name: str) -> str:
  """The new name in a table {pattern: new name}, or else `name`.

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
  """The state with new names; raises UserError if two become equal."""
  result, old_names = {}, {}
  for name, x in state.items():
    new = rename(name)
    if new in result:
      raise UserError(
        f'{listed([old_names[new], name])} are both named {new:.200}; allowed: '
        'one of them'
      )
    result[new], old_names[new] = x, name
  return result


def unwrapped(name: str) -> str:
  """The name without prefixes of DataParallel, FSDP and torch.compile."""
  return _WRAPPERS.sub('', name)


def without_prefix(state: Mapping[str, Any]) -> dict[str, Any]:
  """The state without wrappers and without the prefix of an enclosing module.

  Such a prefix is Lightning's `model.` or fairseq's `decoder.model.`. Hugging
  Face's `transformer.` is kept, because names of its softmax lack it.
  UserError: see `renamed`.
  """
  state = renamed(state, unwrapped)
  found = (match[1] for name in state if (match := _FIRST.fullmatch(name)))
  prefix = next(found, '')
  if not all(name.startswith(prefix) for name in state):
    prefix = prefix.removesuffix('transformer.')
  return renamed(state, lambda name: name.removeprefix(prefix))


def listed(names: Iterable[str]) -> str:
  """The first names, separated by commas, and the number of the others."""
  names = [*names]
  shown = ', '.join(f'{name:.100}' for name in names[:_SHOWN])
  more = len(names) - _SHOWN
  return shown if more <= 0 else f'{shown} and {more:,} more'
