"""Keys of the section `model` that every model has."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from txl_jax.ops import matmul, softmax
from txl_jax.program.settings import IN_USE, count, key, size


def rate(default: float, meaning: str, at_least: float = 0) -> Any:
  """The key of a dropout rate."""
  bounds = dict(at_least=at_least, at_most=0.999)
  return key(default, meaning, **bounds, may_change=IN_USE)


def model_name(name: str, title: str) -> Any:
  """The key `name` of one model, and what it is called."""
  return key(name, 'The model.', choices={name: title})


@dataclasses.dataclass(frozen=True)
class Config:
  """Keys that every model has; the config of each adds its own."""

  name: str = key('', 'The model.')
  d_model: int = size(512, 'D: width of the states.', at_most=10**6)
  tie_weights: bool = key(True, 'The output weights are the embedding table.')
  cutoffs: tuple[int, ...] = key(
    (),
    'Adaptive embedding and softmax: the first token id of each tail of rarer '
    'words, such as (20000, 40000, 200000); () is a plain softmax. Tails that '
    'begin beyond the vocabulary have no words, but a logit each.',
  )
  d_embed: int = count(0, "Width of the head's embeddings; 0 is d_model.")
  div_val: int = size(1, 'Word vectors of tail i are div_val^i times narrower.')
  tie_projs: tuple[bool, ...] = key(
    (),
    'Whether the output projection of each bin, head first, is that of the '
    'embedding; () ties none.',
  )
  tail_order: str = key(
    'ascending',
    "Which tail each logit after those of the head's words stands for.",
    choices=softmax.TAIL_ORDERS,
  )
  init_std: float = key(
    0.02, 'Standard deviation of initial weights.', above=0, may_change=IN_USE
  )
  proj_init_std: float = key(
    0.01, 'The same for embedding projections.', above=0, may_change=IN_USE
  )
  dropout: float = rate(
    0.1, 'Dropout rate of embeddings and final states, and within the layers.'
  )
  dropout_embed: float = rate(
    -1.0, 'Dropout rate of the embeddings; -1 is model.dropout.', at_least=-1
  )
  dropout_final: float = rate(
    -1.0, 'Dropout rate of the final states; -1 is model.dropout.', at_least=-1
  )
  dropout_final_plain: float = rate(
    0.0,
    'Rate of a dropout of the final states before that of dropout_final; each '
    'entry has a draw of its own, also with locked_dropout.',
  )
  locked_dropout: bool = key(
    False,
    'One mask for all positions of a segment (variational dropout). The '
    'position table, which has no batch rows, and the attention probabilities, '
    'where it would hide a key from the whole segment, keep ordinary dropout.',
    may_change=IN_USE,
  )
  word_dropout: float = rate(
    0.0,
    'Dropout rate of whole words: every occurrence in a batch, or in each part '
    'of it if train.accumulate divides it.',
  )
  dropped_words: str = key(
    'zero',
    'What the embedding of a dropped word becomes.',
    choices={
      'zero': '0, but the first position of a segment is never dropped',
      'tiny': '1e-12 before scaling, at every position',
    },
    may_change=IN_USE,
  )
  activation_reg: float = count(
    0.0,
    'Weight in the training loss of the mean square of the final states.',
    may_change=IN_USE,
  )
  activation_reg_dropped: bool = key(
    True,
    'activation_reg is of the final states after dropout (Merity et al. 2017), '
    'not before.',
    may_change=IN_USE,
  )
  temporal_activation_reg: float = count(
    0.0,
    'The same for their changes from one position to the next, before dropout.',
    may_change=IN_USE,
  )
  dtype: str = key(
    'float32',
    'Compute dtype; parameters, softmax, norms and nll stay float32.',
    choices={
      'float32': 'everywhere',
      'bfloat16': 'states and products on GPUs and TPUs; on CPUs products, if '
      'the CPU has instructions for them (AMX, AVX512-BF16), else nothing',
    },
    may_change=IN_USE,
  )

  @property
  def operand_dtype(self) -> Any:
    """The dtype of the operands of products on the device in use."""
    return matmul.operand_dtype(self.dtype)

  @property
  def state_dtype(self) -> Any:
    """The dtype of states between products on the device in use."""
    return matmul.state_dtype(self.dtype)

  def replace(self, **changes: Any) -> 'Config':
    """The same config with other values."""
    return dataclasses.replace(self, **changes)

  @property
  def d_softmax(self) -> int:
    """Width of the final states if softmax and embedding share nothing, else 0.

    The embedding is then a single table.
    """
    return 0

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    edges = 0, *self.cutoffs
    whole = all(type(x) is int for x in self.cutoffs)
    if not whole or any(a >= b for a, b in itertools.pairwise(edges)):
      yield 'cutoffs', 'whole numbers above 0, each above the one before'
    ties = self.tie_projs
    if ties and (len(ties) != len(edges) or set(map(type, ties)) != {bool}):
      yield 'tie_projs', f'() or {len(edges)} of True and False'
    width = self.d_embed or self.d_model
    power = self.div_val ** len(self.cutoffs)
    if own := self.d_softmax:
      if power > own:
        yield 'div_val', f'numbers whose power for each tail is at most {own}'
    elif width % power:
      yield 'div_val', f'numbers whose powers for each tail divide {width}'
