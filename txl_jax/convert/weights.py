"""What is converted, in our form: a model with all that belongs to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax.convert import infer, lengths, vocabularies
from txl_jax.convert.versions import layout, original
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.program.errors import UserError


class Weights(NamedTuple):
  """A model, its vocabulary, and what is known of how it was used."""

  fields: dict[str, Any]  # the section `model`, complete
  params: Any  # a nested dict of float32 arrays
  vocabulary: AnyVocabulary
  origin: str = ''  # which file they are from; '' for ours
  keys: Mapping[str, Any] = {}  # other keys of a config, flat
  warnings: tuple[str, ...] = ()  # a line each
  step: int | None = None  # of the run that they are of, if of one

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
  fields, V = infer.model_of(state, options, version)
  if vocabulary is not None and len(vocabulary) != V:
    raise UserError(
      f'the vocabulary has {len(vocabulary)} symbols, the model {V}; allowed: '
      'the one that it was trained with'
    )
  params = original.to_params(state, layout.section_of(fields), V)
  like = lengths.published(fields, V)
  keys = lengths.of(fields, options, like, version)
  if 'model.mem_len' in keys:
    fields['mem_len'] = keys.pop('model.mem_len')
  if like:
    keys['eval.split'] = 'test'
    if source == 'tensorflow' and like.data.corpus == 'lm1b':
      keys['data.boundaries'] = 2
    if not {'dropout', 'dropatt'} & options.keys():
      fields |= {name: like.model[name] for name in ('dropout', 'dropatt')}
  warnings = []
  if vocabulary is None:
    vocabulary = vocabularies.of_ids(V)
    warnings.append('tokens are their ids; --vocabulary=FILE gives words')
  if guessed := lengths.unsaid(fields, options, like):
    warnings.append(f'said by nothing, so guessed: {", ".join(guessed)}')
  return Weights(fields, params, vocabulary, origin, keys, tuple(warnings))
