"""Relative attention by one of several implementations."""

import functools
import importlib
import numbers
from collections.abc import Callable

import jax

from txl_jax import attention
from txl_jax.ops.kernels import base, xla
from txl_jax.program import target_device

# A module is imported where its kernel may be used.
_KERNELS = {name: f'{__package__}.{name}' for name in ('triton', 'tpu')}
IMPLEMENTATIONS = ('xla', *_KERNELS)
_BEST = {'gpu': 'triton', 'tpu': 'tpu'}  # the kernel for a platform


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
  """`attention.relative_attention`, with its mask as numbers.

  Args:
    q: [B, T, H, K] queries, float32 or bfloat16.
    k: [B, S, H, K] keys, those of the S - T memory slots first.
    v: [B, S, H, K] values.
    r: [S, H, K] projected position table, farthest first. All are of the
      dtype of q.
    u: [H, K] content bias.
    v_bias: [H, K] position bias (the paper's v).
    b: [S, H], added to the score of each distance before it is scaled, in the
      order of r; None adds nothing.
    filled: int32 [B], how many memory slots of each row hold real states, the
      last ones, 0 to S - T; None is all of them.
    span: how many keys a query sees at most, itself included; None is all.
    dropout_rate: of the probabilities; a Python float.
    dropout_key: needed where the rate is not 0; may be traced.
    implementation: one of IMPLEMENTATIONS; None is `choose`.

  Returns:
    [B, T, H, K], in the dtype of v. It is differentiable in all but filled and
    the key, in reverse mode alone. The kernels keep nothing of size T x S.

  Raises:
    ValueError: an argument has another shape, or there is no such
      implementation; `Unable`, one of them, where it cannot compute this.
  """
  sizes = attention.hold_scored(q, k, r, u, v_bias, b)
  attention.hold(('v', v, 'BSHK'), ('r', r, 'SHK'), **sizes)
  if filled is not None:
    attention.hold(('filled', filled, 'B'), **sizes)
  S = sizes['S']
  attention.threshold(dropout_rate)
  span = S if span is None else span
  if not isinstance(span, numbers.Integral) or span < 1:  # it may be traced
    raise ValueError(f'span is {span}; allowed: an int, at least 1')
  span = min(int(span), S)
  case = case_of(q, k, dropout_rate)
  inputs = base.Inputs(q, k, v, r, u, v_bias, b, filled)
  _, run = implementation_of(implementation, case)
  return run(inputs, span=span, rate=dropout_rate, key=dropout_key)


def case_of(q: jax.Array, k: jax.Array, rate: float) -> base.Case:
  """The case of queries [B, T, H, K] and keys [B, S, H, K]."""
  _, T, _, K = q.shape
  M = k.shape[1] - T
  return base.Case(target_device.device(), q.dtype.name, T, M, K, rate)


def choose(case: base.Case) -> tuple[str, str]:
  """The implementation that None stands for, and why, in a few words."""
  platform = case.device.platform
  if platform not in _BEST:
    return 'xla', f'no kernel for a {platform}'
  if reason := why_not(name := _BEST[platform], case):
    return 'xla', f'not {name}: {reason}'
  return name, f'{case.device.kind} has it'


def why_not(name: str, case: base.Case) -> str:
  """Why an implementation cannot compute a case, '' if it can."""
  return _kernel(name).why_not(case) if name in _KERNELS else ''


def _kernel(name):
  return importlib.import_module(_KERNELS[name])


def implementation_of(
  name: str | None, case: base.Case
) -> tuple[str, Callable]:
  """The name of an implementation, and its function like `xla.attend`.

  ValueError if there is no such implementation, Unable if it cannot do this.
  """
  name = name or choose(case)[0]
  if name == 'xla':
    return name, xla.attend
  if name not in _KERNELS:
    allowed = ', '.join(IMPLEMENTATIONS)
    raise ValueError(f'implementation is {name!r}; allowed: None, {allowed}')
  if reason := why_not(name, case):
    raise base.Unable(f'{name} cannot do this: {reason}')
  from txl_jax.ops.kernels import fused

  return name, functools.partial(fused.attend, _kernel(name))
