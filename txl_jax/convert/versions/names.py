"""Names of tensors: renaming a state dict, and listing many in one line."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from txl_jax.program.errors import UserError

_SHOWN = 40  # names in a message
_NAME = 1000  # characters of the name of a tensor
_WRAPPERS = re.compile(r'\b(module|_orig_mod|_fsdp_wrapped_module)\.')
_FIRST = re.compile(r'(.*)word_emb\.emb_layers\.0\.weight')


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
  """The name of a tensor before DataParallel, FSDP or torch.compile."""
  return _WRAPPERS.sub('', name)


def without_prefix(state: Mapping[str, Any]) -> dict[str, Any]:
  """The state without wrappers and the prefix of the model within another.

  Such as Lightning's `model.` or fairseq's `decoder.model.`. The `transformer.`
  of Hugging Face, which its softmax does not have, stays. UserError as from
  `renamed`.
  """
  state = renamed(state, unwrapped)
  found = (match[1] for name in state if (match := _FIRST.fullmatch(name)))
  prefix = next(found, '')
  if not all(name.startswith(prefix) for name in state):
    prefix = prefix.removesuffix('transformer.')
  return renamed(state, lambda name: name.removeprefix(prefix))


def listed(names: Iterable[str]) -> str:
  """Names separated by commas; if very many, the first and how many more."""
  names = [*names]
  shown = ', '.join(f'{name:.100}' for name in names[:_SHOWN])
  more = len(names) - _SHOWN
  return shown if more <= 0 else f'{shown} and {more:,} more'
