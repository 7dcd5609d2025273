"""Whether kernels compute what plain operations do, before they are used."""

import contextlib
import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from txl_jax.ops.kernels import base, dispatch, xla
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.program import errors, target_device

_NAMES = 'q', 'k', 'v', 'r', 'u', 'v_bias', 'b'
# Largest relative error of the result; of gradients, four times as much. Our
# tests of interpreted kernels allow 2e-6 in float32, where exponentials are
# those of a CPU.
_ERRORS = {'float32': 1e-4, 'bfloat16': 1e-2}


class Choice(NamedTuple):
  """An implementation, and lines for the console on how it was chosen."""

  name: str
  lines: list[str]
  kept: str = ''  # saved in checkpoints: the `before` of a later start


def case(model_config: Any, T: int) -> base.Case:
  """The Case of attention in training, from the section `model`."""
  return base.Case(
    target_device.device(), model_config.dtype, T=T, M=model_config.mem_len,
    K=model_config.d_head, rate=model_config.dropatt,
  )  # fmt: skip


@mesh_lib.without_mesh
def proven(case: base.Case, before: str = '') -> Choice:
  """The implementation for model.attention=auto, run once before it is used.

  A kernel that differs from plain operations here or in another process is not
  chosen. `before` is what an earlier start has `kept`; if all processes have
  the same, of the same case, it is not tested again. All must call this.
  """
  failed, lines = [], []

  def chosen(name):
    return Choice(name, lines, f'{name} for {_described(case)}')

  if {*processes.gather(before)} == {before}:
    for name in dispatch.IMPLEMENTATIONS:
      if chosen(name).kept == before and not dispatch.why_not(name, case):
        return chosen(name)
  while (name := dispatch.choose(case, failed)[0]) != 'xla':
    found = processes.gather(check(name, case))
    problem = next((problem for problem, _ in found if problem), '')
    if not problem:
      error = max(error for _, error in found)
      checked = f'checked: within {error:.1e} of plain operations'
      lines.append(f'attention: {name}, {checked}')
      break
    failed.append(name)
    lines.append(f'warning: {_report(name, case, problem)}')
  return chosen(name)


def _described(case):
  sizes = f'T {case.T}, M {case.M}, K {case.K}'
  return f'{case.dtype}, {sizes}, dropout {case.rate}'


def at_test_time(attention: str) -> str:
  """The implementation at test time, of a value of model.attention.

  With few queries and no gradients, only the shift is worth a kernel; but see
  `reads_segments`.
  """
  if attention == 'xla' or target_device.device().platform != 'tpu':
    return 'xla'
  tried = base.Case(target_device.device(), 'float32', 130, 130, 64, 0.0)
  return 'tpu_shift' if _works('tpu_shift', tried, check_slots) else 'xla'


def reads_segments(case: base.Case, M: int, span: int | None, N: int) -> bool:
  """Whether the kernel `tpu_cached` can read N tokens of T, and does so right.

  The case has the number of cached states as its M; `span` is as for
  `tpu_cached.attend`.
  """
  if case.device.platform != 'tpu':
    return False
  from txl_jax.ops.kernels import tpu_cached

  if tpu_cached.why_not(case, N):
    return False
  return _works('tpu_cached', case, check_cached, case, M, span, N)


@functools.cache
def _tried(name, case, check, *args):
  # All processes run the same program, so they agree.
  problems = processes.gather(mesh_lib.without_mesh(check)(*args))
  if problem := next(filter(None, problems), ''):
    warnings.warn(_report(name, case, problem), stacklevel=2)
  return not problem


def _works(*of):
  """Whether a check of a kernel finds nothing; a warning if it does."""
  if jax.default_backend() != 'tpu':  # there is none to try it on
    return True
  try:
    return _tried(*of)
  except errors.UserError:  # in a trace, where nothing can be tried
    return False


def _report(name, case, problem):
  """A warning that a kernel does not work."""
  return (
    f'the attention kernel {name} is not used: {problem}; please report this '
    f'line ({case.device.kind}, jax {jax.__version__}, {_described(case)})'
  )


def check(name: str, case: base.Case) -> tuple[str, float]:
  """Runs an implementation once, with gradients, on the device of this process.

  The arrays are random, with two rows, of which one has a third of its memory,
  and two heads, or one of each where plain operations would need gigabytes; all
  else is as in the case. They are compared in norm with plain operations in
  float32 on the same numbers.

  Returns:
    What is wrong, '' if nothing, and the largest relative error.

  Raises:
    ValueError: there is no implementation of this name.
  """
  if name not in dispatch.IMPLEMENTATIONS:
    allowed = ', '.join(dispatch.IMPLEMENTATIONS)
    raise ValueError(f'implementation is {name!r}; allowed: {allowed}')
  try:
    errors = _errors(name, case)
  except Exception as e:  # whatever a compiler may raise
    return _raised(e), 0.0
  limit = _ERRORS['bfloat16' if case.dtype == 'bfloat16' else 'float32']
  limits = {**dict.fromkeys(errors, 4 * limit), 'result': limit}
  # NaN is not within a limit.
  wrong = [x for x, error in errors.items() if not error <= limits[x]]
  texts = [f'{x} by {errors[x]:.1e} (at most {limits[x]:.0e})' for x in wrong]
  problem = f'it differs in {", ".join(texts)}' if wrong else ''
  return problem, max(errors.values())


def check_slots() -> str:
  """What `tpu_shift.to_slots` does wrong on this device, '' if nothing."""
  from txl_jax.ops.kernels import tpu_shift

  T, C, at = 130, 384, 300
  x = jax.random.normal(jax.random.key(0), (2, T, C + 64))
  source = (jnp.arange(C) - at - 1 - jnp.arange(T)[:, None]) % C
  try:
    moved = jax.jit(tpu_shift.to_slots, static_argnums=2)(x, at, C)
  except Exception as e:  # whatever a compiler may raise
    return _raised(e)
  same = jnp.all(moved == jnp.take_along_axis(x[..., :C], source[None], -1))
  return '' if same else 'it moves scores to other slots'


def check_cached(case: base.Case, M: int, span: int | None, N: int) -> str:
  """What `tpu_cached.attend` does wrong on this device, '' if nothing.

  The arguments are as for `reads_segments`. A call of N tokens, in segments of
  T, and one of a single segment are compared with plain operations. Arrays are
  random, with two heads and two rows, of which one has a third of its memory,
  or one of each where plain operations would need gigabytes.
  """
  sizes = dict.fromkeys((N - N % case.T, case.T))
  found = (_check_cached(case, M, span, n) for n in sizes)
  return next(filter(None, found), '')


def _check_cached(case, M, span, N):
  from txl_jax.ops.kernels import tpu_cached

  T, C = case.T, case.M
  B = H = 2 if T * (M + T) <= 2**25 else 1
  shapes = *[(B, N, H, case.K)] * 3, *[(B, H, C, case.K)] * 2, (C, H, case.K)
  keys = jax.random.split(jax.random.key(0), 8)
  *states, r, u, v_bias = (
    jax.random.normal(key, shape, case.dtype)
    for key, shape in zip(keys, (*shapes, *[(H, case.K)] * 2))
  )
  filled = jnp.array([M, M // 3][:B])

  def plain(states, r, u, v_bias):
    q, *new = states[:3]
    k, v = (
      jnp.concatenate([jnp.swapaxes(old, 1, 2), x], axis=1)
      for old, x in zip(states[3:], new)
    )

    def segment(i):
      q_i = jax.lax.dynamic_slice_in_dim(q, i, T, axis=1)
      k_i, v_i = (
        jax.lax.dynamic_slice_in_dim(x, C + i - M, M + T, axis=1)
        for x in (k, v)
      )
      seen = jnp.minimum(filled + i, M)
      given = base.Inputs(q_i, k_i, v_i, r[C - M - T :], u, v_bias, None, seen)
      return xla.attend(given, span=span or M + T, rate=0.0, key=None)

    out = jax.lax.map(segment, jnp.arange(0, N, T))
    return jnp.moveaxis(out, 0, 1).reshape(q.shape), *(
      jnp.swapaxes(x[:, -C:], 1, 2) for x in (k, v)
    )

  try:
    run = functools.partial(tpu_cached.attend, T=T, M=M, span=span)
    found = jax.jit(run)(*states, tpu_cached.table(r), u, v_bias, filled)
    with jax.default_matmul_precision('highest'):
      exact = jax.tree.map(jnp.float32, (states, r, u, v_bias))
      wanted = jax.jit(plain)(*exact)
  except Exception as e:  # whatever a compiler may raise
    return _raised(e)
  for x, y, of in zip(found, wanted, ('result', 'keys', 'values'), strict=True):
    error = float(jnp.linalg.norm(jnp.float32(x) - y) / jnp.linalg.norm(y))
    if not error <= _ERRORS['bfloat16']:
      return f'it differs in {of} by {error:.1e}'
  return ''


def _raised(e):
  line = str(e).strip().partition('\n')[0]
  return f'{type(e).__name__}: {line:.200}'


def _errors(name, case):
  _, dtype, T, M, K, rate = case
  S = M + T
  B = H = 2 if T * S <= 2**25 else 1
  shapes = (B, T, H, K), *[(B, S, H, K)] * 2, (S, H, K), *[(H, K)] * 2, (S, H)
  key, arrays = jax.random.key(0), []
  for shape in (*shapes, shapes[0]):
    key, own = jax.random.split(key)
    arrays.append(jax.random.normal(own, shape, dtype))
  *arrays, dout = arrays
  filled = jnp.array([M // 3, M][:B], jnp.int32)

  def run(attend, arrays, dout):
    def attended(*arrays):
      inputs = base.Inputs._make((*arrays, filled))
      return attend(inputs, span=S, rate=rate, key=key if rate else None)

    out, pull = jax.vjp(attended, *arrays)
    return out, *pull(dout)

  _, attend = dispatch.implementation_of(name, case)
  highest = functools.partial(jax.default_matmul_precision, 'highest')
  # TPUs would round the float32 operands of what is no kernel, in `tpu_shift`.
  with highest() if dtype == 'float32' else contextlib.nullcontext():
    found = jax.jit(lambda *given: run(attend, *given))(arrays, dout)
  with highest():
    exact = jax.tree.map(jnp.float32, (arrays, dout))
    wanted = jax.jit(lambda *given: run(xla.attend, *given))(*exact)
  errors = {}
  for x, y, of in zip(found, wanted, ('result', *_NAMES), strict=True):
    # A gradient that cancels is held to the size of an ordinary one.
    size = jnp.maximum(jnp.linalg.norm(y), 0.1 * y.size**0.5)
    error = float(jnp.linalg.norm(jnp.float32(x) - y) / size)
    errors[of if of == 'result' else f'the gradient of {of}'] = error
  return errors
