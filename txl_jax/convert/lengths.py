"""T and M of converted weights: as is said, as published, or a choice.

What checkpoints of the published models do not say is in configs/, from the
scripts of github.com/kimiyoung/transformer-xl.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from txl_jax.convert.options import origin, unsaid
from txl_jax.convert.sources import Source
from txl_jax.program import settings
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
# The PyTorch script for lm1b_base has a smaller model, of the same lengths.
_SMALLER: dict[tuple, tuple] = {
  (18, 1024, 8, 128, 4096): (20, 1024, 8, 128, 6144)
}


def published(fields: Mapping[str, Any], vocab_size: int) -> Any | None:
  """The config of the published model with the sizes of a section `model`.

  Its `experiment` is its name. None if there is no such model.
  """
  sizes = tuple(fields.get(name) for name in _SIZES)
  names = PUBLISHED.get(vocab_size, ())
  for name in names if fields['name'] == 'transformer_xl' else ():
    c = importlib.import_module(f'txl_jax.configs.{name}').get_config()
    own = tuple(c.model[key] for key in _SIZES)
    if own in (sizes, _SMALLER.get(sizes)):
      c.experiment = name
      return c
  return None


def of(
  fields: Mapping[str, Any],
  options: Mapping[str, Any],
  like: Any | None,
  version: Source,
) -> tuple[dict[str, Any], dict[str, str]]:
  """{key: value} of all lengths, and {key: where it is from} of some.

  The fields are a section `model`, the options as of `options.known`; `like` is
  the config of `published`, whose lengths count where nothing else is said.
  UserError if a model without memory is to have one, or one whose queries see
  as many keys as the memory has none.
  """
  if options.get('same_length') and options.get('mem_len') == 0:
    settings.refuse('mem_len', 0, 'at least 1 with same_length')
  if fields['name'] in ('vaswani', 'al_rfou'):
    return _without_memory(fields, options)
  if like:
    return _published(fields, options, like, version)
  T, M = options.get('tgt_len'), options.get('mem_len')
  L = fields.get('table_len')
  notes = {
    'model.mem_len': origin(options, 'mem_len') or unsaid('mem_len'),
    'train.segment_len': origin(options, 'tgt_len') or unsaid('tgt_len'),
  }
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
  return {f'{mode}.segment_len': T for mode in ('train', 'eval', 'generate')}


def _published(fields, options, like, version):
  """What is said, and all else as in the recipe of a published model."""
  recipe = f'of the published {like.experiment}'
  M = options.get('mem_len', like.model.mem_len)
  keys = {
    'model.mem_len': M,
    **_segments(options.get('tgt_len', like.eval.segment_len)),
    'train.segment_len': options.get('tgt_len', like.train.segment_len),
  }
  clamp_len = like.eval.model.clamp_len or 0
  if origin(options, 'clamp_len'):
    clamp_len = options.get('clamp_len', 0)
  at_test_time = {
    'mem_len': options.get('mem_len', like.eval.model.mem_len),
    'clamp_len': clamp_len,
    'same_length': version.span if options.get('same_length', True) else 'off',
  }
  of_T = origin(options, 'tgt_len') or recipe
  notes = {
    'model.pre_norm': origin(options, 'pre_lnorm') or recipe,
    'train.segment_len': of_T,
    'eval.segment_len': of_T,
  }
  for name, value in at_test_time.items():
    notes[f'model.{name}'] = origin(options, name) or recipe
    if value != {**fields, 'mem_len': M}.get(name):
      notes[f'eval.model.{name}'] = notes[f'model.{name}']
      for mode in 'eval', 'generate':
        keys[f'{mode}.model.{name}'] = value
  return keys, notes


def _without_memory(fields, options):
  """The same of a model without memory."""
  name, L = fields['name'], fields.get('table_len')
  T = options.get('tgt_len') or L or _CHOICE
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
  of_table = 'of the table, whose rows are tgt_len + mem_len'
  note = of_table if L else unsaid('tgt_len')
  note = origin(options, 'tgt_len') or note
  return _segments(T), {'train.segment_len': note}
