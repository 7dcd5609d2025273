"""T and M of converted weights: as is said, as published, or a choice.

What checkpoints of the published models do not say is in configs/, from the
scripts of github.com/kimiyoung/transformer-xl.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from txl_jax.convert.versions.sources import Source
from txl_jax.program import errors
from txl_jax.program.errors import UserError

_CHOICE = 512  # where nothing says a length
PUBLISHED = {  # {V: configs}
  204: ('enwik8_12l', 'enwik8_24l'),
  27: ('text8_12l', 'text8_24l'),
  267_735: ('wt103_base', 'wt103_large'),
  793_470: ('lm1b_base', 'lm1b_large'),
  793_471: ('lm1b_base', 'lm1b_large'),
}
_SIZES = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff'


def published(fields: Mapping[str, Any], vocab_size: int) -> Any | None:
  """The config of the published model with the sizes of a section `model`.

  Its `experiment` is its name. None if there is no such model.
  """
  names = PUBLISHED.get(vocab_size, ())
  for name in names if fields['name'] == 'transformer_xl' else ():
    c = importlib.import_module(f'txl_jax.configs.{name}').get_config()
    if all(c.model[key] == fields[key] for key in _SIZES):
      c.experiment = name
      return c
  return None


def of(
  fields: Mapping[str, Any],
  options: Mapping[str, Any],
  like: Any | None,
  version: Source,
) -> dict[str, Any]:
  """{key: value} of all lengths.

  The fields are a section `model`, the options as of `options.known`; `like` is
  the config of `published`, whose lengths count where nothing else is said.
  UserError if a model without memory is to have one.
  """
  if fields['name'] in ('vaswani', 'al_rfou'):
    return _segments(_without_memory(fields, options))
  if like:
    return _published(fields, options, like, version)
  T, M = options.get('tgt_len'), options.get('mem_len')
  if L := fields.get('table_len'):  # which is as long as both
    T = T or max(L // 2 if M is None else L - M, 1)
    M = max(L - T, 0) if M is None else M
  M = T or _CHOICE if M is None else M
  return {'model.mem_len': M, **_segments(T or _CHOICE)}


def unsaid(
  fields: Mapping[str, Any], options: Mapping[str, Any], like: Any | None
) -> list[str]:
  """Names of the options that neither a file nor a recipe says: guesses."""
  if like:
    return []
  of_memory = 'mem_len', 'clamp_len', 'same_length'
  remembers = fields['name'] in ('transformer_xl', 'shaw')
  names = 'pre_lnorm', 'tgt_len', *(of_memory if remembers else ())
  return [name for name in names if name not in options]


def _segments(T):
  """{key: T} of training and use."""
  return {f'{mode}.segment_len': T for mode in ('train', 'eval', 'generate')}


def _published(fields, options, like, version):
  """What is said, and all else as in the recipe of a published model."""
  T, M = options.get('tgt_len'), options.get('mem_len', like.model.mem_len)
  keys = {
    'model.mem_len': M,
    **_segments(T or like.eval.segment_len),
    'train.segment_len': T or like.train.segment_len,
  }
  own = like.eval.model
  at_test_time = {
    'mem_len': options.get('mem_len', own.mem_len),
    'clamp_len': options.get('clamp_len', own.clamp_len or 0),
    'same_length': version.span if options.get('same_length', True) else 'off',
  }
  for name, value in at_test_time.items():
    if value != {**fields, 'mem_len': M}[name]:
      for mode in 'eval', 'generate':
        keys[f'{mode}.model.{name}'] = value
  return keys


def _without_memory(fields, options):
  """T of a model without memory."""
  name, L = fields['name'], fields.get('table_len')
  if M := options.get('mem_len'):
    raise UserError(
      f'mem_len is {M}; allowed: 0 for {name}, whose memory is not supported: '
      '--mem_len=0 converts it without, and its figures will differ'
    )
  T, clamp_len = (
    options.get('tgt_len') or L or _CHOICE,
    options.get('clamp_len'),
  )
  if name == 'vaswani' and clamp_len and clamp_len < T - 1:
    errors.refuse('clamp_len', clamp_len, '0 for vaswani, as --clamp_len=0')
  return T
