"""Relative attention: which implementation computes it, on which devices."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from txl_jax import attention
from txl_jax.ops.kernels import base, xla
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import errors, target_device

# A module is imported only where its kernel may be used.
_KERNELS = {x: f'{__package__}.{x}' for x in ('triton', 'tpu', 'tpu_shift')}
IMPLEMENTATIONS = ('xla', *_KERNELS)
# Kernels chosen for implementation=None, best first.
_BEST = {'gpu': ('triton',), 'tpu': ('tpu', 'tpu_shift')}
_HEADS = 'tensor'  # the mesh axis
# Without a check of varying axes, which not all kernels pass.
_shard_map = functools.partial(jax.shard_map, check_vma=False)


def relative_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  r: jax.Array,
  u: jax.Array,
  v_bias: jax.Array,
  b: jax.Array | None = None,
  *,
  filled: jax.Array | None = None,
  span: int | None = None,
  dropout_rate: float = 0.0,
  dropout_key: jax.Array | None = None,
  implementation: str | None = None,
) -> jax.Array:
  """`attention.relative_attention`, with `filled` and `span` for the mask.

  Args:
    q: [B, T, H, K] queries, float32 or bfloat16.
    k: [B, S, H, K] keys, the S - T memory slots first.
    v: [B, S, H, K] values.
    r: [S, H, K] projected position table, farthest first; k, v and r have the
      dtype of q.
    u: [H, K] content bias.
    v_bias: [H, K] position bias (the paper's v).
    b: [S, H], in the order of r, a bias added to the score of each distance
      before scaling; None adds nothing.
    filled: int32 [B], number of filled memory slots of each row, 0 to S - T
      (always the last slots); None is all.
    span: maximum number of keys a query sees, including itself; None is all.
    dropout_rate: for the probabilities; a Python float.
    dropout_key: required if the rate is not 0; may be traced.
    implementation: one of IMPLEMENTATIONS; None selects one, see `choose`.

  Returns:
    [B, T, H, K], in the dtype of v; differentiable in reverse mode, except with
    respect to filled and the key. Kernels never store the T x S scores.

  Raises:
    ValueError: an argument has a wrong shape, kind or value.
    Unable (a ValueError): the implementation does not support the arguments.
  """
  sizes = attention.hold_scored(q, k, r, u, v_bias, b)
  attention.hold(('v', v, 'BSHK'), ('r', r, 'SHK'), kind='floating', **sizes)
  if filled is not None:
    attention.hold(('filled', filled, 'B'), kind='integer', **sizes)
    filled = filled.astype('int32')
  S = sizes['S']
  attention.threshold(dropout_rate)
  span = min(S if span is None else attention.check_int('span', span, 1), S)
  case = case_of(q, k, dropout_rate)
  inputs = base.Inputs(q, k, v, r, u, v_bias, b, filled)
  _, run = implementation_of(implementation, case)
  return run(inputs, span=span, rate=dropout_rate, key=dropout_key)


def attend(
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  implementation: str,
) -> jax.Array:
  """`relative_attention` of a model: rows and heads are those of our mesh.

  The compiler partitions plain operations, but not a kernel: `jax.shard_map`
  runs it on each device's rows and heads, with the dropout mask of one device.

  `implementation` is a value of model.attention; UserError if it does not
  support the arguments.
  """
  case = case_of(inputs.q, inputs.k, rate)
  choice = None if implementation == 'auto' else implementation
  try:
    name, function = implementation_of(choice, case)
  except base.Unable as e:
    errors.refuse('model.attention', implementation, f'auto, xla; {e}')
  run = functools.partial(function, span=span, rate=rate)
  mesh = mesh_lib.own()
  if mesh.size < 2 or name == 'xla':
    return run(inputs, key=key)
  if name == 'tpu_shift':
    return run(inputs, key=key, per_head=functools.partial(_per_head, mesh))

  B, _, H, _ = inputs.q.shape
  rows, heads = _rows_and_heads(inputs.q, mesh)
  states, table, bias = P(rows, None, heads), P(None, heads), P(heads)
  specs = states, states, states, table, bias, bias, table, P(rows)
  pairs = zip(specs, inputs)  # None as an array needs None as a spec
  specs = [spec if x is not None else None for spec, x in pairs]
  in_specs: Any = base.Inputs(*specs)  # pyright: ignore[reportArgumentType]

  def on_shard(inputs, key):
    first_row = _first(rows, B)
    before = first_row * H + _first(heads, H)
    return run(inputs, key=key, before=before, heads=H)

  run_sharded = _shard_map(on_shard, in_specs=(in_specs, P()), out_specs=states)
  return run_sharded(inputs, key)


def to_slots(attention: str) -> Callable[..., jax.Array] | None:
  """The kernel that moves scores to the slots of a ring, if there is one.

  A function (x [B, H, T, any], at, C), see `ops.ring`; `attention` is a value
  of `proof.at_test_time`.
  """
  if attention != 'tpu_shift':
    return None
  from txl_jax.ops.kernels import tpu_shift

  def move(x, at, C):
    own_slots = functools.partial(tpu_shift.to_slots, C=C)
    return _per_head(mesh_lib.own(), own_slots)(x, at)

  return move


def attend_cached(
  *arrays: jax.Array, **sizes: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """`tpu_cached.attend`, of each device's rows and heads."""
  from txl_jax.ops.kernels import tpu_cached

  run = functools.partial(tpu_cached.attend, **sizes)
  mesh = mesh_lib.own()
  if mesh.size < 2:
    return run(*arrays)
  rows, heads = _rows_and_heads(arrays[0], mesh)
  new, old, of_heads = P(rows, None, heads), P(rows, heads), P(heads)
  in_specs = *[new] * 3, old, old, *[of_heads] * 3, P(rows)
  run = _shard_map(run, in_specs=in_specs, out_specs=(new, old, old))
  return run(*arrays)


def case_of(q: jax.Array, k: jax.Array, rate: float) -> base.Case:
  """The Case of queries [B, T, H, K] and keys [B, S, H, K]."""
  _, T, _, K = q.shape
  M = k.shape[1] - T
  return base.Case(target_device.device(), q.dtype.name, T, M, K, rate)


def choose(case: base.Case, without: Sequence[str] = ()) -> tuple[str, str]:
  """The implementation chosen for None, and the reason in a few words.

  `without` are kernels that must not be chosen.
  """
  platform, kind = case.device
  reasons = []
  for name in _BEST.get(platform, ()):
    reason = why_not(name, case) or _why_slow(name, case)
    if name not in without and not reason:
      return name, '; '.join([f'for {kind}', *reasons])
    reasons.append(f'not {name}: {reason or "it failed"}')
  return 'xla', '; '.join(reasons) or f'no kernel for a {platform}'


def _why_slow(name, case):
  """Why plain operations are faster than a kernel that can do a case, or ''.

  By the cycles that the compiler counts (docs/scaling.md): narrow heads and
  short segments are mostly padding in the tiles of the kernel for TPUs, and its
  products of float32 take several passes, where other products round them.
  """
  if name == 'tpu' and (case.K < 64 or case.T < 256):
    return 'heads below 64 or segments below 256 are faster without'
  if name == 'tpu' and case.dtype == 'float32':
    return 'float32 is faster without'
  return ''


def why_not(name: str, case: base.Case) -> str:
  """Why an implementation does not support a case; '' if it does."""
  if name not in _KERNELS:
    return ''
  try:
    return _kernel(name).why_not(case)
  except ImportError as e:  # JAX may drop a backend of Pallas, as of Triton
    return f'jax {jax.__version__} does not have it ({errors.first_line(e)})'


def _kernel(name):
  return importlib.import_module(_KERNELS[name])


def implementation_of(
  name: str | None, case: base.Case
) -> tuple[str, Callable]:
  """The name of an implementation, and its function, like `xla.attend`.

  ValueError if it does not exist, Unable if it does not support the case.
  """
  name = name or choose(case)[0]
  if name == 'xla':
    return name, xla.attend
  if name not in IMPLEMENTATIONS:
    allowed = ', '.join(IMPLEMENTATIONS)
    raise ValueError(f'implementation is {name!r}; allowed: None, {allowed}')
  if reason := why_not(name, case):
    raise base.Unable(f'{name} cannot do this: {reason}')
  if name == 'tpu_shift':
    return name, _kernel(name).attend
  from txl_jax.ops.kernels import fused

  return name, functools.partial(fused.attend, _kernel(name))


def _rows_and_heads(q, mesh):
  """The mesh axes that divide rows and heads of q [B, T, H, K], or None."""
  used = placement.spec((placement.ROWS, None, (_HEADS,)), q.shape, mesh)
  rows, _, heads, *_ = (*used, None, None, None)
  return rows, heads


def _per_head(mesh, function):
  """Runs a function of x [B, H, ...] on each device's rows and heads.

  Further arguments are replicated.
  """
  if mesh.size < 2:
    return function

  def run(x, *others):
    spec = placement.spec((placement.ROWS, _HEADS), x.shape, mesh)
    in_specs = spec, *(P() for _ in others)
    run_sharded = _shard_map(
      function, mesh=mesh, in_specs=in_specs, out_specs=spec
    )
    return run_sharded(x, *others)

  return run


def _first(axes: Any, n: int) -> Any:
  """Index of this device's first row or head, of n sharded over `axes`."""
  if not axes:
    return 0
  return jax.lax.axis_index(axes) * (n // jax.lax.axis_size(axes))
