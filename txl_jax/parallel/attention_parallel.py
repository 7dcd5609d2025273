"""Relative attention with rows and heads sharded over devices.

The compiler partitions plain operations, but not a kernel: with `jax.shard_map`
each device of our mesh (`mesh.own`) runs it on its rows and heads. The dropout
mask is the same as on a single device.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from txl_jax.ops.kernels import api, base, proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.program import errors, target_device

_HEADS = 'tensor'


def attend(
  inputs: base.Inputs,
  *,
  span: int,
  rate: float,
  key: jax.Array | None,
  implementation: str,
) -> jax.Array:
  """`kernels.relative_attention`; on a mesh, kernels run under shard_map.

  `implementation` is a value of model.attention; UserError if it does not
  support the arguments.
  """
  case = api.case_of(inputs.q, inputs.k, rate)
  choice = None if implementation == 'auto' else implementation
  try:
    name, attend = api.implementation_of(choice, case)
  except base.Unable as e:
    errors.refuse('model.attention', implementation, f'auto, xla; {e}')
  run = functools.partial(attend, span=span, rate=rate)
  mesh = mesh_lib.own()
  if mesh.size < 2 or name == 'xla':
    return run(inputs, key=key)
  if name == 'tpu_shift':
    return run(inputs, key=key, per_head=functools.partial(_per_head, mesh))

  B, _, H, _ = inputs.q.shape
  axes = placement.ROWS, None, (_HEADS,)
  spec = placement.spec(axes, inputs.q.shape, mesh)
  rows, _, heads, *_ = (*spec, None, None, None)
  states, table, bias = P(rows, None, heads), P(None, heads), P(heads)
  specs = states, states, states, table, bias, bias, table, P(rows)
  pairs = zip(specs, inputs)  # None as an array needs None as a spec
  specs = [spec if x is not None else None for spec, x in pairs]
  in_specs: Any = base.Inputs(*specs)  # pyright: ignore[reportArgumentType]

  def on_shard(inputs, key):
    first_row = _first(rows, B)
    before = first_row * H + _first(heads, H)
    return run(inputs, key=key, before=before, heads=H)

  return jax.shard_map(
    on_shard, in_specs=(in_specs, P()), out_specs=states, check_vma=False
  )(inputs, key)


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
    for name in api.IMPLEMENTATIONS:
      if chosen(name).kept == before and not api.why_not(name, case):
        return chosen(name)
  while (name := api.choose(case, failed)[0]) != 'xla':
    found = processes.gather(proof.check(name, case))
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

  There are no gradients, and few queries: a fused kernel would not be faster.
  """
  if attention == 'xla' or target_device.device().platform != 'tpu':
    return 'xla'
  try:
    return 'tpu_shift' if _moves() else 'xla'
  except errors.UserError:  # in a trace, where nothing can be tried
    return 'xla'


@functools.cache
def _moves():
  """Whether the kernel `tpu_shift` works; a warning if not."""
  if jax.default_backend() != 'tpu':  # there is none to try it on
    return True
  case = base.Case(target_device.device(), 'float32', 130, 130, 64, 0.0)
  if problem := mesh_lib.without_mesh(proof.check_slots)():
    warnings.warn(_report('tpu_shift', case, problem), stacklevel=2)
  return not problem


def to_slots(attention: str) -> Callable[..., jax.Array] | None:
  """The kernel that moves scores to the slots of a ring, if there is one.

  A function (x [B, H, T, any], at, C), see `ops.ring`; `attention` is a value
  of `at_test_time`.
  """
  if attention != 'tpu_shift':
    return None
  from txl_jax.ops.kernels import tpu_shift

  def move(x, at, C):
    own_slots = functools.partial(tpu_shift.to_slots, C=C)
    return _per_head(mesh_lib.own(), own_slots)(x, at)

  return move


def _report(name, case, problem):
  """A warning that a kernel does not work."""
  return (
    f'the attention kernel {name} is not used: {problem}; please report this '
    f'line ({case.device.kind}, jax {jax.__version__}, {_described(case)})'
  )


def _per_head(mesh, function):
  """Runs a function of x [B, H, ...] on each device's rows and heads.

  Further arguments are replicated.
  """
  if mesh.size < 2:
    return function

  def run(x, *others):
    spec = placement.spec((placement.ROWS, _HEADS), x.shape, mesh)
    in_specs = spec, *(P() for _ in others)
    return jax.shard_map(
      function, mesh=mesh, in_specs=in_specs, out_specs=spec, check_vma=False
    )(x, *others)

  return run


def _first(axes: Any, n: int) -> Any:
  """Index of this device's first row or head, of n sharded over `axes`."""
  if not axes:
    return 0
  return jax.lax.axis_index(axes) * (n // jax.lax.axis_size(axes))
