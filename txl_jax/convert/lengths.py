"""T and M of converted weights: as is said, as published, or a choice."""

from collections.abc import Mapping
from typing import Any

from txl_jax import settings
from txl_jax.convert.infer import SAID, UNSAID
from txl_jax.convert.published import Published
from txl_jax.convert.sources import Source

_CHOICE = 512  # where nothing says a length


def of(
  fields: Mapping[str, Any],
  options: Mapping[str, Any],
  like: Published | None,
  version: Source,
) -> tuple[dict[str, Any], dict[str, str]]:
  """{key: value} of all lengths, and {key: where it is from} of T and M.

  The fields are a section `model`, the options as of `options.known`; a
  published model that is like it has the lengths of its recipe where nothing
  else is said. UserError if a model without memory is to have one.
  """
  if fields['name'] in ('vaswani', 'al_rfou'):
    return _without_memory(fields, options)
  T, M = options.get('tgt_len'), options.get('mem_len')
  from_T = UNSAID if T is None else SAID
  if like and M is None:
    of_recipe = f'of the published {like.name}'
    found = {'model.mem_len': like.train[1], **_segments(T or like.train[0])}
    found |= _at_test_time(like, options, version)
    from_T = of_recipe if T is None else SAID
    return found, {'model.mem_len': of_recipe, 'train.segment_len': from_T}
  from_M = UNSAID if M is None else SAID
  L = fields.get('table_len')
  if M is None and L:  # which is as long as both
    T = T or max(L // 2, 1)
    M = max(L - T, 0)
  elif M is None:
    M = T or _CHOICE
  if T is None:
    T = like.test[0] if like else min(M or _CHOICE, _CHOICE)
  notes = {'model.mem_len': from_M, 'train.segment_len': from_T}
  return {'model.mem_len': M, **_segments(T)}, notes


def _segments(T):
  """{key: T} of training and use."""
  modes = ('train', 'eval', 'generate')
  return {f'{mode}.segment_len': T for mode in modes}


def _at_test_time(like, options, version):
  """The lengths that a published model was measured with."""
  T, M, clamp_len = like.test
  span = version.span if options.get('same_length', True) else 'off'
  model = {
    'mem_len': M,
    'clamp_len': options.get('clamp_len', clamp_len),
    'same_length': span,
  }
  found = {}
  for mode in 'eval', 'generate':
    found[f'{mode}.segment_len'] = options.get('tgt_len', T)
    found |= {f'{mode}.model.{k}': x for k, x in model.items()}
  return found


def _without_memory(fields, options):
  """The same of a model without memory."""
  said, L = options.get('tgt_len'), fields.get('table_len')
  T = said or L or _CHOICE
  if M := options.get('mem_len'):
    settings.refuse('mem_len', M, f'0 for {fields["name"]}, as --mem_len=0')
  clamp_len = options.get('clamp_len')
  if fields['name'] == 'vaswani' and clamp_len and clamp_len < T - 1:
    settings.refuse('clamp_len', clamp_len, '0 for vaswani, as --clamp_len=0')
  origin = SAID if said else 'of the table' if L else UNSAID
  return _segments(T), {'train.segment_len': origin}
