"""Maps tensors of the original PyTorch code to our parameters.

Names and shapes are those of its state dict (mem_transformer.py and
proj_adaptive_softmax.py of github.com/kimiyoung/transformer-xl); other versions
are converted to it first. Biases u and v per layer, which the original lacks,
have Hugging Face's names.

Shapes
  N layers, H heads, K head width, D model width, F feed-forward width, L rows
  of a position table, V vocabulary; bin i of it has V_i words of width d_i.

PyTorch stores a kernel as [out, in], Flax as [in, out].
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from txl_jax import models
from txl_jax.convert.versions import names
from txl_jax.program import settings
from txl_jax.program.errors import UserError

Shape = tuple[int, ...]

ATTENTION = {'transformer_xl': 0, 'shaw': 1, 'vaswani': 2, 'al_rfou': 3}
FREQUENCIES = 'pos_emb.inv_freq'  # a buffer that depends only on D


class Tensor(NamedTuple):
  """A tensor of the original, split along axis 0 into our parameters."""

  name: str
  shape: Shape
  parts: tuple[tuple[str, Shape], ...]  # our paths and shapes, in order
  transposed: bool = False  # whether a part is transposed before its reshape


def tensors(section: Any, vocab_size: int) -> list[Tensor]:
  """All tensors of a model, tied weights once.

  The section `model` is the dataclass of a model in ATTENTION.
  """
  layers = [t for n in range(section.n_layer) for t in _layer(section, n)]
  return [*_vocabulary(section, vocab_size), *_positions(section), *layers]


def section_of(fields: Mapping[str, Any]) -> Any:
  """The section `model` of a config as the dataclass of its model."""
  return settings.read(models.MODELS[fields['name']].Config, fields)


def arguments(section: Any) -> dict[str, Any]:
  """Arguments of the original's model that Hugging Face's config also has."""
  return {
    'n_layer': section.n_layer,
    'n_head': section.n_head,
    'd_model': section.d_model,
    'd_head': section.d_head,
    'd_inner': section.d_ff,
    'dropout': section.dropout,
    'dropatt': section.dropatt,
    'd_embed': section.d_embed or section.d_model,
    'div_val': section.div_val,
    'cutoffs': [*section.cutoffs],
    'tie_projs': [*(section.tie_projs or [False] * (len(section.cutoffs) + 1))],
    'pre_lnorm': section.pre_norm,
    'same_length': section.span is not None,
    'clamp_len': getattr(section, 'clamp_len', 0) or -1,
    'attn_type': ATTENTION[section.name],
  }


def copies(section: Any) -> dict[str, str]:
  """For tied weights: {name of the copy: name of the tensor}."""
  found = {}
  _, widths, projected = _bins(section)
  if section.tie_weights:
    for i in range(len(widths) if section.div_val > 1 else 1):
      found[f'crit.out_layers.{i}.weight'] = f'word_emb.emb_layers.{i}.weight'
  for i, tied in enumerate(section.tie_projs if projected else ()):
    if tied:
      of = i if section.div_val > 1 else 0
      found[f'crit.out_projs.{i}'] = f'word_emb.emb_projs.{of}'
  return found


def compare(found: Mapping[str, Any], expected: Mapping[str, Shape]) -> None:
  """Raises UserError, with all differences, unless names and shapes match."""
  missing = [name for name in expected if name not in found]
  extra = [name for name in found if name not in expected]
  wrong = [
    f'{name} is {list(found[name].shape)}, expected {list(shape)}'
    for name, shape in expected.items()
    if name in found and tuple(found[name].shape) != shape
  ]
  parts = ('missing', missing), ('unexpected', extra), ('shapes', wrong)
  texts = [f'{problem}: {names.listed(x)}' for problem, x in parts if x]
  if texts:
    raise UserError(f'tensors do not fit the model: {"; ".join(texts)}')


def _bins(c):
  """Name suffixes and widths of the bins, and whether they are projected."""
  ends = [f'_{i}' for i in range(len(c.cutoffs) + 1)] if c.cutoffs else ['']
  head = c.d_embed or c.d_model
  widths = [head // c.div_val**i for i in range(len(ends))]
  return ends, widths, head != c.d_model or (c.div_val > 1)


def _vocabulary(c, V) -> Iterator[Tensor]:
  ends, widths, projected = _bins(c)
  edges = 0, *c.cutoffs, V
  sizes = [b - a for a, b in itertools.pairwise(edges)]
  bins = range(len(ends))
  of_widths = [[i] for i in bins] if c.div_val > 1 else [[*bins]]

  def words(name, ours):
    for n, members in enumerate(of_widths):
      parts = [
        (f'vocabulary/{ours}{ends[i]}', (sizes[i], widths[i])) for i in members
      ]
      shape = sum(sizes[i] for i in members), widths[members[0]]
      yield Tensor(name.format(n), shape, tuple(parts))

  def project(name, i, ours):
    ours = f'vocabulary/{ours}{ends[i]}', (widths[i], c.d_model)
    return Tensor(f'{name}.{i}', (c.d_model, widths[i]), (ours,), True)

  yield from words('word_emb.emb_layers.{}.weight', 'table')
  if not c.tie_weights:
    yield from words('crit.out_layers.{}.weight', 'output')
  for n, members in enumerate(of_widths):
    parts = tuple((f'vocabulary/bias{ends[i]}', (sizes[i],)) for i in members)
    shape = (sum(sizes[i] for i in members),)
    yield Tensor(f'crit.out_layers.{n}.bias', shape, parts)
  if projected:
    for n in range(len(of_widths)):
      yield project('word_emb.emb_projs', n, 'proj')
    tied = c.tie_projs or [False] * len(ends)
    for i in bins:
      if not tied[i]:
        yield project('crit.out_projs', i, 'out_proj')
  if n := len(c.cutoffs):
    shape = n, widths[0]
    yield _same('crit.cluster_weight', 'vocabulary/tail_weights', shape)
    yield _same('crit.cluster_bias', 'vocabulary/tail_biases', (n,))


def _same(name, ours, shape):
  return Tensor(name, shape, ((ours, shape),))


def _positions(c) -> Iterator[Tensor]:
  """Position tensors that cover all layers, shared or stacked."""
  heads = c.n_head, c.d_head
  if c.name == 'transformer_xl' and not c.untie_biases:
    yield _same('r_w_bias', 'biases/u', heads)
    yield _same('r_r_bias', 'biases/v', heads)

  def stacked(name, ours, shape, our_shape=None):
    layers = range(c.n_layer)
    parts = tuple((f'layers_{n}/{ours}', our_shape or shape) for n in layers)
    return Tensor(name, (c.n_layer, *shape), parts)

  if c.name == 'shaw':
    L = c.table_len
    yield stacked('r_emb', 'attention/table', (L, *heads))
    yield stacked('r_w_bias', 'attention/u', heads)
    yield stacked('r_bias', 'attention/distance_bias', (L, c.n_head))
  if c.name == 'al_rfou':
    L, D = c.table_len, c.d_model
    yield stacked('r_emb', 'positions', (L, *heads), (L, D))


def _layer(c, n) -> Iterator[Tensor]:
  theirs = f'layers.{n}.'
  ours = f'layers_{n}/'
  D, F = c.d_model, c.d_ff
  H, K = c.n_head, c.d_head
  relative = c.name in ('transformer_xl', 'shaw')

  def heads(name, kernels):
    parts = tuple((f'{ours}attention/{x}/kernel', (D, H, K)) for x in kernels)
    name = f'{theirs}dec_attn.{name}.weight'
    shape = (len(kernels) * H * K, D)
    return Tensor(name, shape, parts, True)

  def norm(name, our_name):
    yield _same(f'{theirs}{name}.weight', f'{ours}{our_name}/norm/scale', (D,))
    yield _same(f'{theirs}{name}.bias', f'{ours}{our_name}/norm/bias', (D,))

  def dense(name, our_name, d_in, d_out):
    name = f'{theirs}pos_ff.CoreNet.{name}'
    kernel = f'{ours}ff/{our_name}/kernel', (d_in, d_out)
    yield Tensor(f'{name}.weight', (d_out, d_in), (kernel,), True)
    yield _same(f'{name}.bias', f'{ours}ff/{our_name}/bias', (d_out,))

  if relative:
    yield heads('qkv_net', 'qkv')
  else:
    yield heads('q_net', 'q')
    yield heads('kv_net', 'kv')
  if c.name == 'transformer_xl':
    yield heads('r_net', 'r')
  out = f'{ours}attention/o/kernel', (H, K, D)
  yield Tensor(f'{theirs}dec_attn.o_net.weight', (D, H * K), (out,), True)
  if c.name == 'transformer_xl' and c.untie_biases:
    yield _same(f'{theirs}dec_attn.r_w_bias', f'{ours}biases/u', (H, K))
    yield _same(f'{theirs}dec_attn.r_r_bias', f'{ours}biases/v', (H, K))
  yield from norm('dec_attn.layer_norm', 'norm1')
  yield from norm('pos_ff.layer_norm', 'norm2')
  yield from dense('0', 'w1', D, F)
  yield from dense('3', 'w2', F, D)


def rows(shape: Shape, tensor: Tensor) -> int:
  """The number of rows of a tensor that a parameter of `shape` fills."""
  return math.prod(shape) // math.prod(tensor.shape[1:])
