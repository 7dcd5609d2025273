"""Segment length T and memory length M of converted weights.

They come from the options; for a published model, from its config in configs/
(the scripts of github.com/kimiyoung/transformer-xl); or they are guessed.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from txl_jax.convert.versions.sources import Source
from txl_jax.program import errors
from txl_jax.program.errors import UserError

_GUESS = 512  # the length if nothing specifies one
PUBLISHED = {  # {V: configs}
  204: ('enwik8_12l', 'enwik8_24l'),
  27: ('text8_12l', 'text8_24l'),
  267_735: ('wt103_base', 'wt103_large'),
  793_470: ('lm1b_base', 'lm1b_large'),
  793_471: ('lm1b_base', 'lm1b_large'),
}
_SIZES = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff'


def published(fields: Mapping[str, Any], vocab_size: int) -> Any | None:
  """The config of the published model with the same sizes, or None.

  `fields` is a section `model`; `experiment` of the config is its name.
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
  """{key: value} of all length keys.

  `fields` is a section `model`. The options, see `convert_options.known`,
  override `like`, the config returned by `published`. UserError if they give a
  memory to a model without one.
  """
  if fields['name'] in ('vaswani', 'al_rfou'):
    return _segments(_without_memory(fields, options))
  if like:
    return _published(fields, options, like, version)
  T, M = options.get('tgt_len'), options.get('mem_len')
  if L := fields.get('table_len'):  # L = T + M
    T = T or max(L // 2 if M is None else L - M, 1)
    M = max(L - T, 0) if M is None else M
  M = T or _GUESS if M is None else M
  return {'model.mem_len': M, **_segments(T or _GUESS)}


def guessed(
  fields: Mapping[str, Any], options: Mapping[str, Any], like: Any | None
) -> list[str]:
  """Names of the options that neither a file, a flag nor `like` specifies."""
  if like:
    return []
  names = ['pre_lnorm', 'tgt_len']
  if fields['name'] in ('transformer_xl', 'shaw'):
    names += ['mem_len', 'clamp_len', 'same_length']
  return [name for name in names if name not in options]


def _segments(T):
  """{key: T} for training, evaluation and generation."""
  return {f'{mode}.segment_len': T for mode in ('train', 'eval', 'generate')}


def _published(fields, options, like, version):
  """Lengths from the options, or else from a published model's config."""
  T, M = options.get('tgt_len'), options.get('mem_len', like.model.mem_len)
  keys = {
    'model.mem_len': M,
    **_segments(T or like.eval.segment_len),
    'train.segment_len': T or like.train.segment_len,
  }
  overrides = like.eval.model
  at_test_time = {
    'mem_len': options.get('mem_len', overrides.mem_len),
    'clamp_len': options.get('clamp_len', overrides.clamp_len or 0),
    'same_length': version.span if options.get('same_length', True) else 'off',
  }
  for name, value in at_test_time.items():
    if value != {**fields, 'mem_len': M}[name]:
      for mode in 'eval', 'generate':
        keys[f'{mode}.model.{name}'] = value
  return keys


def _without_memory(fields, options):
  """T of a model without memory; UserError if mem_len is not 0."""
  name = fields['name']
  L = fields.get('table_len')
  if M := options.get('mem_len'):
    raise UserError(
      f'mem_len is {M}; allowed: 0, as {name} has no memory here: --mem_len=0 '
      'converts the model without its memory, and its results will differ'
    )
  T = options.get('tgt_len') or L or _GUESS
  clamp_len = options.get('clamp_len')
  if name == 'vaswani' and clamp_len and clamp_len < T - 1:
    errors.refuse('clamp_len', clamp_len, '0 for vaswani; set --clamp_len=0')
  return T
