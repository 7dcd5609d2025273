"""What is converted, in our form: a model with all that belongs to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax.convert import infer, layout, lengths, original, vocabularies
from txl_jax.convert.sources import SOURCES
from txl_jax.data.vocabularies import AnyVocabulary
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
    return layout.section_of(self.fields)


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
  fields, V, notes = infer.model_of(state, options, version)
  if vocabulary is not None and len(vocabulary) != V:
    raise UserError(
      f'the vocabulary has {len(vocabulary)} symbols, the model {V}; allowed: '
      'the one that it was trained with'
    )
  section = layout.section_of(fields)
  params = original.to_params(state, section, V)
  warnings = original.check_frequencies(state, section)
  like = lengths.published(fields, V)
  keys, of_lengths = lengths.of(fields, options, like, version)
  if 'model.mem_len' in keys:
    fields['mem_len'] = keys.pop('model.mem_len')
  notes = {f'model.{k}': x for k, x in notes.items()} | of_lengths
  if like:
    keys['eval.split'] = 'test'
    if source == 'tensorflow' and like.data.corpus == 'lm1b':
      keys['data.boundaries'] = 2
      notes['data.boundaries'] = f'as {version.title} has it'
    if not {'dropout', 'dropatt'} & options.keys():
      for name in 'dropout', 'dropatt':
        fields[name] = like.model[name]
        notes[f'model.{name}'] = f'of the published {like.experiment}'
  if vocabulary is None:
    vocabulary = vocabularies.of_ids(V)
    warnings += ('tokens are their ids; --vocabulary=FILE gives words',)
  return Weights(fields, params, vocabulary, origin, notes, keys, warnings)
