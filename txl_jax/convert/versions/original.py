"""Converts state dicts of the original PyTorch code from and to our parameters.

All other versions are first converted to this form, {name: array}; see
`layout`. The order of the tail logits is kept, and recorded in
model.tail_order; `turn_tails` reverses it.
"""

from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import numpy as np

from txl_jax import attention
from txl_jax.convert.versions import layout
from txl_jax.program import errors
from txl_jax.program.errors import UserError

State = Mapping[str, np.ndarray]

_TAILS = 'crit.cluster_weight', 'crit.cluster_bias'


def to_params(state: State, section: Any, vocab_size: int) -> dict[str, Any]:
  """Our parameters, a nested dict of float32 arrays; see `from_params`.

  The state dict may have tied weights once or twice; `section` is as for
  `layout.tensors`. UserError, with the names of all such tensors, if some are
  missing, unknown, of other shapes or not finite, or tied weights differ.
  """
  tensors = layout.tensors(section, vocab_size)
  state = _without_copies(state, section)
  layout.compare(state, {t.name: t.shape for t in tensors})
  flat, odd = {}, []
  for t in tensors:
    x = state[t.name]
    if x.dtype.kind != 'f' and x.dtype.name != 'bfloat16':
      odd.append(f'{t.name} is {x.dtype}, not floating point')
      continue
    with np.errstate(over='ignore', invalid='ignore'):
      start = 0
      whole = np.asarray(x, np.float32)
      # A sum takes no memory, and is not finite if one value is not.
      if not np.isfinite(np.sum(whole, dtype=np.float64)):
        odd.append(f'{t.name} has values that are not finite')
    for path, shape in t.parts:
      stop = start + layout.rows(shape, t)
      part = whole[start:stop]
      part = (part.T if t.transposed else part).reshape(shape)
      flat[path] = np.ascontiguousarray(part)
      start = stop
  if odd:
    raise UserError('; '.join(odd))
  return flax.traverse_util.unflatten_dict(flat, sep='/')


def from_params(
  params: Any, section: Any, vocab_size: int
) -> dict[str, np.ndarray]:
  """The full state dict, with tied weights twice and buffers.

  It is the inverse of `to_params`. Raises UserError if the parameters do not
  fit the section `model`, or if the original has no such model.
  """
  if (name := section.name) not in layout.ATTENTION:
    errors.refuse('model.name', name, ', '.join(layout.ATTENTION))
  D, K = section.d_model, section.d_head
  if name == 'al_rfou' and section.n_head * K != D:
    errors.refuse('model.d_head', K, 'd_model / n_head with al_rfou')
  if getattr(section, 'tie_positions', False):
    allowed = 'False: no other version projects positions by W_q and W_k'
    errors.refuse('model.tie_positions', True, allowed)
  if any(edge >= vocab_size for edge in section.cutoffs):
    allowed = f'numbers below {vocab_size}, so that no bin is empty'
    errors.refuse('model.cutoffs', section.cutoffs, allowed)
  flat = flax.traverse_util.flatten_dict(params, sep='/')
  tensors = layout.tensors(section, vocab_size)
  expected = {path: shape for t in tensors for path, shape in t.parts}
  layout.compare(flat, expected)
  state = {}
  for t in tensors:
    pieces = []
    for path, shape in t.parts:
      part = np.asarray(flat[path], np.float32)
      piece = (layout.rows(shape, t), *t.shape[1:])
      back = part.reshape(piece[::-1]).T if t.transposed else part
      pieces.append(back.reshape(piece))
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    state[t.name] = np.ascontiguousarray(whole)
  for name, of in layout.copies(section).items():
    state[name] = state[of]
  if section.name in ('transformer_xl', 'vaswani'):
    frequencies = attention.frequencies(section.d_model, single=True)
    state[layout.FREQUENCIES] = np.array(frequencies, np.float32)
  return state


def turn_tails(state: State) -> dict[str, np.ndarray]:
  """The state with the order of the tail logits reversed."""
  return {
    name: np.ascontiguousarray(x[::-1]) if name in _TAILS else x
    for name, x in state.items()
  }


def _without_copies(state, section):
  """The state without buffers and without second copies of tied weights."""
  state = dict(state)
  if section.name in ('transformer_xl', 'vaswani'):
    state.pop(layout.FREQUENCIES, None)
  different = []
  for name, of in layout.copies(section).items():
    copy = state.pop(name, None)
    if copy is not None and of in state and not same(copy, state[of]):
      different.append(f'{name} is not {of}')
  if different:
    raise UserError(
      f'tied weights differ: {", ".join(different)}; set --tie_weight=false or '
      '--tie_projs of txl-jax convert'
    )
  return state


def same(x: np.ndarray, y: np.ndarray) -> bool:
  """Whether two arrays are equal; fast if they are the same object."""
  return x is y or (x.shape == y.shape and bool((x == y).all()))
