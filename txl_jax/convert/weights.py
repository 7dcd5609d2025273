"""What is converted, in our form: a model with all that goes with it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax import models, settings
from txl_jax.convert import ids, infer, original, published
from txl_jax.convert.sources import SOURCES, Source
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError


class Weights(NamedTuple):
  """A model and its vocabulary; what is known of how it was used."""

  fields: dict[str, Any]  # the section `model`, complete
  params: Any  # a nested dict of float32 arrays
  vocabulary: Vocabulary | Words
  origin: str = ''  # which file they are from; '' for ours
  notes: Mapping[str, str] = {}  # {key: where its value is from}
  keys: Mapping[str, Any] = {}  # other keys of a config, flat

  @property
  def section(self) -> Any:
    """The fields as the dataclass of their model."""
    return settings.read(models.MODELS[self.fields['name']].Config, self.fields)


def of_state(
  state: original.State,
  options: Mapping[str, Any],
  source: str,
  vocabulary: Vocabulary | Words | None,
  origin: str = '',
) -> Weights:
  """The Weights of a state dict in the original's form.

  The options are those of `options.known`, the source one of SOURCES; without
  a vocabulary tokens are their ids. UserError: see `infer.model_of` and
  `original.to_params`; or the vocabulary has another size.
  """
  version = SOURCES[source]
  model = infer.model_of(state, options, version)
  fields, V = model.fields, model.vocab_size
  if vocabulary is not None and len(vocabulary) != V:
    raise UserError(
      f'the vocabulary has {len(vocabulary)} symbols, the model {V}; allowed: '
      'the one that it was trained with'
    )
  params = original.to_params(state, model.section, V)
  like = published.like(fields, V)
  lengths, notes = _lengths(fields, options, like, version)
  fields |= {
    name.removeprefix('model.'): x
    for name, x in lengths.items()
    if name.startswith('model.')
  }
  keys = {k: x for k, x in lengths.items() if not k.startswith('model.')}
  notes = {f'model.{k}': x for k, x in model.notes.items()} | notes
  if like:
    keys['eval.split'] = 'test'
    if source == 'tensorflow' and like.data['corpus'] == 'lm1b':
      keys['data.boundaries'] = 2
      notes['data.boundaries'] = f'as {version.title} has it'
  if like and not {'dropout', 'dropatt'} & options.keys():
    fields |= dict(zip(('dropout', 'dropatt'), map(float, like.rates)))
    for name in 'dropout', 'dropatt':
      notes[f'model.{name}'] = f'of the published {like.name}'
  found = vocabulary or ids.words(V)
  return Weights(fields, params, found, origin, notes, keys)


def _lengths(fields, options, like, version: Source):
  """{key: length} of T and M, and where each is from."""
  T, M = options.get('tgt_len'), options.get('mem_len')
  said, L = 'said beside the weights', fields.get('table_len')
  notes = {}
  if fields['name'] in ('vaswani', 'al_rfou'):
    T = _without_memory(fields, options, T or L or 512)
    M, found = 0, {}
  else:
    if like and M is None:
      T = T or like.train[0]
      M = like.train[1]
      notes['model.mem_len'] = f'of the published {like.name}'
      at_test = _at_test_time(like, options, version)
    else:
      notes['model.mem_len'] = said
      at_test = {}
      if M is None:
        M = T or 512
        if L:
          T = T or max(L // 2, 1)
          M = max(L - T, 0)
        notes['model.mem_len'] = infer.UNSAID
    found = {'model.mem_len': M, **at_test}
  if T is None:
    T = like.test[0] if like else min(M or 512, 512)
  named = 'tgt_len' in options
  notes['train.segment_len'] = said if named else infer.UNSAID
  given = dict.fromkeys(
    ('train.segment_len', 'eval.segment_len', 'generate.segment_len'), T
  )
  return given | found, notes


def _at_test_time(like, options, version):
  """The lengths that a published model was measured with."""
  T, M, clamp_len = like.test
  model = {'mem_len': M, 'clamp_len': clamp_len, 'same_length': version.span}
  if 'clamp_len' in options:
    model['clamp_len'] = options['clamp_len']
  found = {}
  for mode in 'eval', 'generate':
    found[f'{mode}.segment_len'] = options.get('tgt_len', T)
    found |= {f'{mode}.model.{k}': x for k, x in model.items()}
  return found


def _without_memory(fields, options, T):
  """T of a model without memory; UserError if it is to have one."""
  if M := options.get('mem_len'):
    settings.refuse('mem_len', M, f'0 for {fields["name"]}, as --mem_len=0')
  clamp_len = options.get('clamp_len')
  if fields['name'] == 'vaswani' and clamp_len and clamp_len < T - 1:
    settings.refuse('clamp_len', clamp_len, '0 for vaswani, as --clamp_len=0')
  return T
