"""Keys of the section `model` shared by all models, and by all Transformers.

Shapes: N layers, H heads, K head width, M memory, T segment, S = M + T keys.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from txl_jax.ops import matmul, softmax
from txl_jax.program.settings import AT_TEST_TIME, OTHER, count, key, size


def rate(default: float, meaning: str, at_least: float = 0) -> Any:
  """A key for a dropout rate."""
  return key(
    default, meaning, at_least=at_least, at_most=0.999, may_change=OTHER
  )


def model_name(name: str, title: str) -> Any:
  """The key `name` of one model; its title appears in the docs."""
  return key(name, 'The model.', choices={name: title})


@dataclasses.dataclass(frozen=True)
class Config:
  """Keys of all models; the Config of each model adds its own."""

  name: str = key('', 'The model.')
  d_model: int = size(512, 'D: width of the states.', at_most=10**6)
  tie_weights: bool = key(True, 'The output weights are the embedding table.')
  cutoffs: tuple[int, ...] = key(
    (),
    'Adaptive embedding and softmax: the first token id of each tail of rarer '
    'words, such as (20000, 40000, 200000); () is a plain softmax. A tail that '
    'begins beyond the vocabulary has no words, but still a logit in the head.',
  )
  d_embed: int = count(0, "Width of the head's embeddings; 0 means d_model.")
  div_val: int = size(1, 'Word vectors of tail i are div_val^i times narrower.')
  tie_projs: tuple[bool, ...] = key(
    (),
    'For each bin, head first, whether its output projection is also its '
    'embedding projection; () ties none.',
  )
  tail_order: str = key(
    'ascending',
    'Order of the tail logits, which come after the word logits of the head.',
    choices=softmax.TAIL_ORDERS,
  )
  init_std: float = key(
    0.02, 'Standard deviation of initial weights.', above=0, may_change=OTHER
  )
  proj_init_std: float = key(
    0.01, 'Initial std of embedding projections.', above=0, may_change=OTHER
  )
  dropout: float = rate(
    0.1, 'Dropout rate within the layers, and of embeddings and final states.'
  )
  dropout_embed: float = rate(
    -1.0, 'Dropout rate of embeddings; -1 means model.dropout.', at_least=-1
  )
  dropout_final: float = rate(
    -1.0, 'Dropout rate of final states; -1 means model.dropout.', at_least=-1
  )
  dropout_final_plain: float = rate(
    0.0,
    'Rate of an additional dropout of final states, before dropout_final. It '
    'has a separate mask for each position, also with locked_dropout.',
  )
  locked_dropout: bool = key(
    False,
    'One mask for all positions of a segment (variational dropout). The '
    'position table, which has no batch axis, keeps ordinary dropout. So do '
    'attention probabilities: one mask would hide a key from all queries.',
    may_change=OTHER,
  )
  word_dropout: float = rate(
    0.0,
    'Dropout rate of whole words. A word is dropped at all its positions in '
    'the batch (with train.accumulate, in the microbatch).',
  )
  dropped_words: str = key(
    'zero',
    'The embedding of a dropped word.',
    choices={
      'zero': '0; the first position of a segment is never dropped',
      'tiny': '1e-12, before scaling; every position may be dropped',
    },
    may_change=OTHER,
  )
  activation_reg: float = count(
    0.0,
    'Weight of the mean square of final states in the training loss.',
    may_change=OTHER,
  )
  activation_reg_dropped: bool = key(
    True,
    'activation_reg uses final states after dropout (Merity et al. 2017).',
    may_change=OTHER,
  )
  temporal_activation_reg: float = count(
    0.0,
    'Weight of the mean square of the change of final states, before dropout, '
    'from each position to the next.',
    may_change=OTHER,
  )
  dtype: str = key(
    'float32',
    'Compute dtype; parameters, softmax, norms and nll stay float32.',
    choices={
      'float32': 'everywhere',
      'bfloat16': 'states and products on GPUs and TPUs; only products on CPUs '
      'with instructions for them (AMX, AVX512-BF16); nothing on other CPUs',
    },
    may_change=OTHER,
  )

  @property
  def operand_dtype(self) -> Any:
    """Dtype of the operands of matrix products on the device in use."""
    return matmul.operand_dtype(self.dtype)

  @property
  def state_dtype(self) -> Any:
    """Dtype of hidden states on the device in use."""
    return matmul.state_dtype(self.dtype)

  def or_dropout(self, rate: float) -> float:
    """A dropout rate, where -1 means `dropout`."""
    return self.dropout if rate < 0 else rate

  def replace(self, **changes: Any) -> 'Config':
    """A copy of the config with some values replaced."""
    return dataclasses.replace(self, **changes)

  @property
  def d_softmax(self) -> int:
    """Width of the softmax input if the model sets its own; 0 means D.

    If not 0, it shares no weights with the embedding, a single table.
    """
    return 0

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys with conflicting values, see `settings`."""
    edges = 0, *self.cutoffs
    integers = all(type(x) is int for x in self.cutoffs)
    if not integers or any(a >= b for a, b in itertools.pairwise(edges)):
      yield 'cutoffs', 'whole numbers above 0, each above the one before'
    ties = self.tie_projs
    if ties and (len(ties) != len(edges) or set(map(type, ties)) != {bool}):
      yield 'tie_projs', f'(), or {len(edges)} values that are True or False'
    head_width = self.d_softmax or self.d_embed or self.d_model
    tails = len(self.cutoffs)
    power = self.div_val**tails
    if self.d_softmax and power > head_width:
      yield 'div_val', f'numbers with div_val^{tails} at most {head_width}'
    if not self.d_softmax and head_width % power:
      yield 'div_val', f'numbers with div_val^{tails} a divisor of {head_width}'


@dataclasses.dataclass(frozen=True)
class Transformer(Config):
  """Keys of all Transformers; without overrides, there is no memory."""

  n_layer: int = size(12, 'N: number of layers.', at_most=1000)
  n_head: int = size(8, 'H: number of attention heads.')
  d_head: int = size(64, 'K: width of each head.')
  d_ff: int = size(2048, 'Width of the feed-forward layers.')
  pre_norm: bool = key(
    False, 'Layer norms before sublayers instead of after residual sums.'
  )
  ln_eps: float = key(1e-5, 'Epsilon of the layer norms.', above=0)
  dropatt: float = rate(0.0, 'Dropout rate of the attention probabilities.')
  dropout_qkv: float = rate(
    0.0,
    'Dropout rate of queries, keys and values, and of projected positions '
    'with model.tie_positions.',
  )
  unroll: int = count(
    0,
    'Layers per iteration of the loop over layers: N runs fastest, 1 compiles '
    'fastest; 0 means N on a GPU, up to 24 on a CPU or TPU (1 if a batch has '
    'fewer than 4,096 hidden features).',
    may_change=OTHER,
  )
  remat: str = key(
    'none',
    'Activations of a layer that the backward pass recomputes, to save memory.',
    choices={
      'none': 'nothing is recomputed',
      'scores': 'all except products with weights, so that no array of size '
      'T x S is stored',
      'layer': 'all',
    },
    may_change=OTHER,
  )

  SINUSOIDS: ClassVar[bool] = False  # whether positions are sinusoids
  mem_len: ClassVar[int] = 0  # M
  memory_init: ClassVar[str] = 'empty'
  norm_queries: ClassVar[bool] = True
  span = None  # number of keys a query sees, itself included; None means S
  untie_biases = False  # whether each layer has its own biases u and v

  def problems(self) -> Iterator[tuple[str, str]]:
    """Keys with conflicting values, see `settings`."""
    if self.SINUSOIDS and self.d_model % 2:
      yield 'd_model', 'even numbers'
    yield from super().problems()


@dataclasses.dataclass(frozen=True)
class Relative(Transformer):
  """Keys of a Transformer with relative positions and a memory."""

  mem_len: int = count(  # pyright: ignore
    512,
    'M: length of the memory in tokens; 0 means no memory.',
    may_change=AT_TEST_TIME,
  )
  same_length: str = key(
    'off',
    'Number of keys that a query sees, itself included.',
    choices={
      'off': 'all that causality allows',
      'M': 'M (PyTorch original)',
      'M+1': 'M + 1 (TensorFlow original)',
    },
    may_change=AT_TEST_TIME,
  )
  clamp_len: int = count(
    0,
    'Clips distances at this maximum (shaw: at clamp_len - 1); 0 is off.',
    may_change=AT_TEST_TIME,
  )
  memory_init: str = key(  # pyright: ignore
    'empty',
    'The initial memory.',
    choices={
      'empty': 'no visible states',
      'zeros': 'M visible zero states (TensorFlow original, Hugging Face)',
    },
  )
  attention: str = key(
    'auto',
    'Implementation of attention in training.',
    choices={
      'auto': 'the fastest that gives the results of plain operations, which '
      '`--mode=train` checks before its first step, at the longest segment '
      '(`--mode=summary` shows which)',
      'xla': 'plain operations',
      'triton': 'a kernel for NVIDIA GPUs, Ampere or newer',
      'tpu': 'a kernel for TPUs, v4 or newer',
      'tpu_shift': 'plain operations and a kernel for the shift alone, on TPUs',
    },
    may_change=OTHER,
  )

  @property
  def span(self) -> int | None:  # pyright: ignore
    M = self.mem_len
    return {'off': None, 'M': max(M, 1), 'M+1': M + 1}[self.same_length]
