"""Keys of the section `model` that every model has, or every Transformer.

Shapes: N layers, H heads, K head width, M memory, S = M + T keys.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from txl_jax.ops import matmul, softmax
from txl_jax.program.settings import AT_TEST_TIME, IN_USE, count, key, size


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


@dataclasses.dataclass(frozen=True)
class Transformer(Config):
  """Keys of every Transformer; by default it has no memory."""

  n_layer: int = size(12, 'N: number of layers.', at_most=1000)
  n_head: int = size(8, 'H: number of attention heads.')
  d_head: int = size(64, 'K: width of each head.')
  d_ff: int = size(2048, 'Width of the feed-forward layers.')
  pre_norm: bool = key(
    False, 'Norms before the sublayers instead of after the residual sum.'
  )
  ln_eps: float = key(1e-5, 'Epsilon of the layer norms.', above=0)
  dropatt: float = rate(0.0, 'Dropout rate of the attention probabilities.')
  dropout_qkv: float = rate(
    0.0,
    'Dropout rate of queries, keys and values, and of what the same '
    'projections make of positions (model.tie_positions).',
  )
  unroll: int = count(
    0,
    'Layers per iteration of the layer loop: all of them is fastest on CPUs '
    'and GPUs, 1 compiles fastest; 0 is all of them on a GPU, 1 elsewhere.',
    may_change=IN_USE,
  )
  remat: str = key(
    'none',
    'What a layer recomputes in the backward pass instead of keeping it.',
    choices={
      'none': 'nothing',
      'scores': 'everything except products with its weights: nothing of size '
      'T x S is kept',
      'layer': 'everything',
    },
    may_change=IN_USE,
  )

  SINUSOIDS: ClassVar[bool] = False  # positions are sinusoids of width D
  mem_len: ClassVar[int] = 0  # M
  memory_init: ClassVar[str] = 'empty'
  norm_queries: ClassVar[bool] = True
  span = None  # how many keys a query sees, itself included; None is all S
  # Whether each layer, or the model, has parameters u and v.
  untie_biases = shares_biases = False

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys that do not go together, see `settings`."""
    if self.SINUSOIDS and self.d_model % 2:
      yield 'd_model', 'even numbers'
    yield from super().problems()


@dataclasses.dataclass(frozen=True)
class Relative(Transformer):
  """Keys of a Transformer with relative positions and a memory."""

  mem_len: int = count(  # pyright: ignore
    512,
    'M: number of states in the memory; 0 is a model without memory.',
    may_change=AT_TEST_TIME,
  )
  same_length: str = key(
    'off',
    'How many keys a query sees, itself included.',
    choices={
      'off': 'all that causality allows',
      'M': 'M (PyTorch original)',
      'M+1': 'M + 1 (TensorFlow original)',
    },
    may_change=AT_TEST_TIME,
  )
  clamp_len: int = count(
    0, 'Larger distances count as this one; 0 is off.', may_change=AT_TEST_TIME
  )
  memory_init: str = key(  # pyright: ignore
    'empty',
    'What the memory starts with.',
    choices={
      'empty': 'no visible slots',
      'zeros': 'zero states that are attended to (TensorFlow original, Hugging '
      'Face)',
    },
  )
  attention: str = key(
    'auto',
    'How attention is computed in training.',
    choices={
      'auto': 'a kernel on GPUs that have one, else plain operations '
      '(`--mode=summary` shows which)',
      'xla': 'plain operations',
      'triton': 'a kernel for NVIDIA GPUs, Ampere or newer',
      'tpu': 'a kernel for TPUs, on which it has not run so far',
    },
    may_change=IN_USE,
  )

  @property
  def span(self) -> int | None:  # pyright: ignore
    M = self.mem_len
    return {'off': None, 'M': max(M, 1), 'M+1': M + 1}[self.same_length]
