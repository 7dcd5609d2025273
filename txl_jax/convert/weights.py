"""What is converted, in our form: a model with all that belongs to it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax.convert import infer, lengths, vocabularies
from txl_jax.convert.versions import layout, original
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.program import errors
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


_SHAPES = 'n_layer', 'n_head', 'd_model', 'd_head', 'd_inner', 'd_embed'
_SHAPES = *_SHAPES, 'div_val', 'cutoffs', 'attn_type', 'n_token', 'vocab_size'


def check_options(
  weights: Weights, options: Mapping[str, Any], where: str
) -> None:
  """UserError, which begins with `where`, if options contradict the tensors.

  The options are named like the original code's arguments; -1 and None are
  unset. Without cutoffs any div_val above 1 makes the same model.
  """
  section, V = weights.section, len(weights.vocabulary)
  shapes = {**layout.arguments(section), 'n_token': V, 'vocab_size': V}
  for name in _SHAPES:
    value: Any = options.get(name)
    if value in (None, -1) or (name == 'div_val' and not section.cutoffs):
      continue
    if name == 'cutoffs':  # with V at the end in modules of the original
      value = [x for x in value if x != V]
    if value != shapes[name]:
      allowed = f'{shapes[name]}, as the shapes of the weights say'
      errors.refuse(f'{where}{name}', value, allowed)


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
  if vocabularies.EMPTY in vocabulary.symbols:
    warnings.append(
      f'the empty symbol, {vocabularies.EMPTY} here, is in no text as read; '
      'in training it was, where symbols end at each space, as in blank lines'
    )
  if guessed := lengths.unsaid(fields, options, like):
    warnings.append(f'not specified, guessed: {", ".join(guessed)}')
  return Weights(fields, params, vocabulary, origin, keys, tuple(warnings))
