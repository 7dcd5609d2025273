"""A model in our own form: parameters, config keys, vocabulary, origin."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_jax.convert import infer, lengths, vocabularies
from txl_jax.convert.versions import layout, original
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.program import errors
from txl_jax.program.errors import UserError


class Weights(NamedTuple):
  """A model, its vocabulary, and the config keys of its training and use."""

  fields: dict[str, Any]  # the section `model`, complete
  params: Any  # a nested dict of float32 arrays
  vocabulary: AnyVocabulary
  origin: str = ''  # the files they were read from
  keys: Mapping[str, Any] = {}  # other keys of a config, flat
  warnings: tuple[str, ...] = ()  # a line each
  step: int | None = None  # of the run, if they are from a run

  @property
  def section(self) -> Any:
    """The fields as the dataclass of their model."""
    return layout.section_of(self.fields)


_SHAPES = (
  'n_layer', 'n_head', 'd_model', 'd_head', 'd_inner', 'd_embed', 'div_val',
  'cutoffs', 'attn_type', 'n_token', 'vocab_size',
)  # fmt: skip


def check_options(
  weights: Weights, options: Mapping[str, Any], where: str
) -> None:
  """Raises UserError, prefixed with `where`, if options contradict the tensors.

  The options are named like the original code's arguments; -1 and None are
  unset. div_val is compared only if there are cutoffs: without them, all values
  above 1 give the same model.
  """
  section = weights.section
  V = len(weights.vocabulary)
  shapes = {**layout.arguments(section), 'n_token': V, 'vocab_size': V}
  for name in _SHAPES:
    value: Any = options.get(name)
    if value in (None, -1) or (name == 'div_val' and not section.cutoffs):
      continue
    if name == 'cutoffs':  # the original's modules append V to it
      value = [x for x in value if x != V]
    if value != shapes[name]:
      allowed = f'{shapes[name]}, by the shapes of the weights'
      errors.refuse(f'{where}{name}', value, allowed)


def of_state(
  state: original.State,
  options: Mapping[str, Any],
  source: str,
  vocabulary: AnyVocabulary | None,
  origin: str = '',
) -> Weights:
  """Converts a state dict in the original's form.

  The options are those of `convert_options.known`, the source is a key of
  SOURCES. Without a vocabulary, each token is written as its id. UserError if
  the vocabulary size is not the model's; see also `infer.model_of` and
  `original.to_params`.
  """
  version = SOURCES[source]
  fields, V = infer.model_of(state, options, version)
  if vocabulary is not None and len(vocabulary) != V:
    raise UserError(
      f'the vocabulary has {len(vocabulary)} symbols, the model {V}; allowed: '
      'the vocabulary of its training'
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
    warnings.append('no vocabulary: tokens are ids; set --vocabulary=FILE')
  if vocabularies.EMPTY in vocabulary.symbols:
    warnings.append(
      f'the empty symbol, here {vocabularies.EMPTY}, never occurs in a text; '
      'the original had one between consecutive spaces, and in blank lines'
    )
  if names := lengths.guessed(fields, options, like):
    warnings.append(f'not specified, guessed: {", ".join(names)}')
  return Weights(fields, params, vocabulary, origin, keys, tuple(warnings))
