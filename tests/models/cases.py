"""What tests know of each model; a new model needs an entry in CASES."""

import dataclasses
from collections.abc import Callable
from typing import Any

TINY = dict(n_layer=2, d_model=8, n_head=2, d_head=3, d_ff=10)
RUN = dict(n_layer=2, d_model=16, n_head=2, d_head=8, d_ff=24, unroll=2)
T = 4  # the longest segment of the variants that have a ring


@dataclasses.dataclass(frozen=True)
class Case:
  """Sizes and changes with which a model is tested.

  Together they turn on everything that has parameters.
  """

  small: dict  # a token matters to at least the five after it
  run: dict  # a memory holds all that a test generates
  # Changes of `small` under which a memory holds all of the nine tokens before.
  whole: tuple[dict, ...] = ({},)
  options: dict = dataclasses.field(default_factory=dict)  # of its run
  slow: bool = False  # much like another model: interfaces by `-m slow`
  slow_run: bool = True
  # Changes of `small` that a mesh of two by two divides.
  divisible: dict = dataclasses.field(default_factory=dict)
  trains_more: bool = False  # has parameters that are only for training
  tensor: str = 'layers_*/attention'  # a path that the axis tensor divides
  # Of a Transformer: variants that are compared with the direct formula, some
  # of them without padding and with their gradient, too, and that of the
  # model's name with its attention maps; the number of parameters of a layer
  # besides the usual ones; and the score [H], as a function of
  # (config, parameters of the attention) -> (q_i, k_j, distance).
  variants: dict[str, dict] = dataclasses.field(default_factory=dict)
  unpadded: tuple[str, ...] = ()
  gradient: tuple[str, ...] = ()
  layer: Callable[[Any], int] = lambda _: 0
  score: Callable[..., Any] | None = None


def _content(c, attention):
  del c, attention
  return lambda q, k, d: (q * k).sum(axis=-1)


def _shaw(c, attention):
  rows = [*range(c.table_len)]  # farthest first
  rows = rows[-c.clamp_len :] if c.clamp_len else rows

  def score(q, k, d):
    row = rows[-1 - d] if d < len(rows) else rows[0]
    scores = (q * k + q * attention['table'][row]).sum(axis=-1)
    if not c.biases:
      return scores
    u = attention['u']
    return scores + (u * k).sum(axis=-1) + attention['distance_bias'][row]

  return score


def _shaw_layer(m):
  """A table, and unless left out another and u."""
  HK, L = m.n_head * m.d_head, m.table_len
  return L * HK + m.biases * (L * m.n_head + HK)


CASES = {
  'transformer_xl': Case(
    small=dict(TINY, mem_len=4),
    run={},  # by most other tests
    whole=(dict(mem_len=9), dict(mem_len=9, pre_norm=True)),
    layer=lambda m: m.d_model * m.n_head * m.d_head,  # W_r
  ),
  'gcnn': Case(
    small=dict(d_model=8, blocks='[4,6] [1,3 4,5 1,8]'),
    run=dict(d_model=16, blocks='[4,16] [1,8 3,8 1,16]', init_std=0.2),
    whole=({}, dict(tie_weights=False, blocks='[3,7 2,4] [1,6]*2')),
    divisible=dict(blocks='[4,8]'),
    tensor='blocks_*/',
  ),
  'lstm': Case(
    small=dict(d_model=8, d_hidden=6),
    run=dict(d_model=16, d_hidden=24, init_std=0.2),
    tensor='layers_*/',
  ),
  'qrnn': Case(
    small=dict(d_model=8, d_hidden=6, window=3),
    run=dict(d_model=16, d_hidden=24, init_std=0.2),
    slow=True,
    tensor='layers_*/',
  ),
  'shaw': Case(
    small=dict(TINY, mem_len=4, table_len=6),
    run=dict(RUN, mem_len=32, table_len=24),
    whole=(dict(mem_len=9), dict(mem_len=9, clamp_len=3)),
    slow=True,
    variants={
      'shaw': dict(table_len=9),
      # Distances beyond the table, and beyond clamp_len.
      'shaw_beyond': dict(table_len=4, unroll=2, pre_norm=True),
      'shaw_clamped': dict(
        table_len=6, clamp_len=2, mem_len=3, same_length='M'
      ),
      'shaw_clamped_before_the_table': dict(table_len=9, clamp_len=3),
      'shaw_all_clamped': dict(table_len=4, clamp_len=7),
      'shaw_ring': dict(table_len=5, longest=T),
      'shaw_zeros': dict(table_len=7, memory_init='zeros', longest=7),
      'shaw_unbiased': dict(table_len=9, biases=False),
      'shaw_unbiased_ring': dict(
        table_len=5, biases=False, longest=T, pre_norm=True
      ),
    },
    unpadded=('shaw', 'shaw_ring'),
    gradient=('shaw_beyond', 'shaw_unbiased'),
    layer=_shaw_layer,
    score=_shaw,
  ),
  'vaswani': Case(
    small=TINY,
    run=RUN,
    whole=(dict(pre_norm=True),),
    options={'train.loss': 'half'},
    slow=True,
    variants={
      'vaswani': dict(unroll=2),
      'vaswani_pre_norm': dict(pre_norm=True),
      'vaswani_plain_queries': dict(pre_norm=True, norm_queries=False),
      'vaswani_memory': dict(mem_len=5),
      # At test time, too, it has no ring: its scores know no distances.
      'vaswani_memory_pre_norm': dict(mem_len=3, pre_norm=True, longest=T),
    },
    unpadded=('vaswani', 'vaswani_memory'),
    gradient=('vaswani', 'vaswani_memory'),
    score=_content,
  ),
  'al_rfou': Case(
    small=dict(TINY, table_len=9, layer_losses=True, second_target=0.5),
    run=dict(RUN, table_len=8, layer_losses=True, second_target=0.5),
    trains_more=True,
    variants={
      'al_rfou': dict(table_len=7, unroll=2),
      'al_rfou_pre_norm': dict(table_len=4, pre_norm=True),
      'al_rfou_plain_queries': dict(
        table_len=4, pre_norm=True, norm_queries=False
      ),
    },
    unpadded=('al_rfou',),
    gradient=('al_rfou',),
    layer=lambda m: m.table_len * m.d_model,
    score=_content,
  ),
  # Not of the package, see convolution.py.
  'convolution': Case(
    small=dict(kernel=4),
    run={},
    slow_run=False,
    trains_more=True,
    tensor='first/',
  ),
}
