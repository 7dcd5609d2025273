"""What is converted, in our form: a model with all that belongs to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax import models
from txl_jax.convert import ids, infer, lengths, original, published
from txl_jax.convert.sources import SOURCES
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError


class Weights(NamedTuple):
  """A model, its vocabulary, and what is known of how it was used."""

  fields: dict[str, Any]  # the section `model`, complete
  params: Any  # a nested dict of float32 arrays
  vocabulary: AnyVocabulary
  origin: str = ''  # which file they are from; '' for ours
  notes: Mapping[str, str] = {}  # {key: where its value is from}
  keys: Mapping[str, Any] = {}  # other keys of a config, flat
  warnings: tuple[str, ...] = ()  # a line each

  @property
  def section(self) -> Any:
    """The fields as the dataclass of their model."""
    return settings.read(models.MODELS[self.fields['name']].Config, self.fields)


def of_state(
  state: original.State,
  options: Mapping[str, Any],
  source: str,
  vocabulary: AnyVocabulary | None,
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
  warnings = original.check_frequencies(state, model.section)
  for x in state.values():
    files.release(x)  # most are copies by now
  like = published.like(fields, V)
  keys, notes = lengths.of(fields, options, like, version)
  if 'model.mem_len' in keys:
    fields['mem_len'] = keys.pop('model.mem_len')
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
  if vocabulary is None:
    vocabulary = ids.words(V)
    warnings += ('tokens are their ids; --vocabulary=FILE gives words',)
  return Weights(fields, params, vocabulary, origin, notes, keys, warnings)
