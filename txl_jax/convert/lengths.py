"""T and M of converted weights: as is said, as published, or a choice."""

from collections.abc import Mapping
from typing import Any

from txl_jax.convert.options import origin, unsaid
from txl_jax.convert.published import Published
from txl_jax.convert.sources import Source
from txl_jax.program import settings
from txl_jax.program.errors import UserError

_CHOICE = 512  # where nothing says a length
_OF_TABLE = 'of the table, whose rows are tgt_len + mem_len'


def of(
  fields: Mapping[str, Any],
  options: Mapping[str, Any],
  like: Published | None,
  version: Source,
) -> tuple[dict[str, Any], dict[str, str]]:
  """{key: value} of all lengths, and {key: where it is from} of some.

  The fields are a section `model`, the options as of `options.known`; a
  published model that is like it has the lengths of its recipe where nothing
  else is said. UserError if a model without memory is to have one, or one whose
  queries see as many keys as the memory has none.
  """
  if options.get('same_length') and options.get('mem_len') == 0:
    settings.refuse('mem_len', 0, 'at least 1 with same_length')
  if fields['name'] in ('vaswani', 'al_rfou'):
    return _without_memory(fields, options)
  if like:
    return _published(fields, options, like, version)
  T, M = options.get('tgt_len'), options.get('mem_len')
  notes = {
    'model.mem_len': origin(options, 'mem_len') or unsaid('mem_len'),
    'train.segment_len': origin(options, 'tgt_len') or unsaid('tgt_len'),
  }
  L = fields.get('table_len')
  if M is None and L:  # which is as long as both
    T = T or max(L // 2, 1)
    M = max(L - T, 0)
  elif M is None:
    M = T or _CHOICE
  if T is None:
    T = max(L - M, 1) if L else min(M or _CHOICE, _CHOICE)
  return {'model.mem_len': M, **_segments(T)}, notes


def _segments(T):
  """{key: T} of training and use."""
  modes = ('train', 'eval', 'generate')
  return {f'{mode}.segment_len': T for mode in modes}


def _published(fields, options, like, version):
  """What is said, and all else as in the recipe of a published model."""
  T, M = (options.get(name) for name in ('tgt_len', 'mem_len'))
  recipe = f'of the published {like.name}'
  M = like.train[1] if M is None else M
  found = {'model.mem_len': M, **_segments(T or like.train[0])}
  T, test_M, clamp_len = like.test
  span = version.span if options.get('same_length', True) else 'off'
  if origin(options, 'clamp_len'):
    clamp_len = options.get('clamp_len', 0)
  model = {
    'mem_len': options.get('mem_len', test_M),
    'clamp_len': clamp_len,
    'same_length': span,
  }
  own = {**fields, 'mem_len': M}
  model = {k: x for k, x in model.items() if x != own.get(k)}
  for mode in 'eval', 'generate':
    found[f'{mode}.segment_len'] = options.get('tgt_len', T)
    found |= {f'{mode}.model.{k}': x for k, x in model.items()}
  where = {
    'pre_lnorm': ['model.pre_norm'],
    'tgt_len': ['train.segment_len', 'eval.segment_len'],
  }
  for name in 'mem_len', 'clamp_len', 'same_length':
    where[name] = [f'model.{name}']
    if name in model:
      where[name].append(f'eval.model.{name}')
  notes = {
    key: origin(options, name) or recipe
    for name, keys in where.items()
    for key in keys
  }
  return found, notes


def _without_memory(fields, options):
  """The same of a model without memory."""
  said, L, name = (
    options.get('tgt_len'),
    fields.get('table_len'),
    fields['name'],
  )
  T = said or L or _CHOICE
  if M := options.get('mem_len'):
    raise UserError(
      f'mem_len is {M}; allowed: 0 for {name}, whose memory is not supported: '
      '--mem_len=0 converts it without, and its figures will differ'
    )
  if L and T > L:
    settings.refuse('tgt_len', T, f'at most the {L} rows of the table')
  clamp_len = options.get('clamp_len')
  if name == 'vaswani' and clamp_len and clamp_len < T - 1:
    settings.refuse('clamp_len', clamp_len, '0 for vaswani, as --clamp_len=0')
  from_there = _OF_TABLE if L else unsaid('tgt_len')
  return _segments(T), {
    'train.segment_len': origin(options, 'tgt_len') or from_there
  }
