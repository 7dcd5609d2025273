"""Speed and memory of relative attention, forward, and with its gradients.

Every implementation that can, in turn; beside them attention without positions
and without a mask over all T x S scores: that of cuDNN on a GPU, elsewhere the
one that JAX has in plain operations. Several calls are sent off before the
first is waited for: what is timed is the device, if a call takes it longer than
the host takes to send one off.
"""

import functools
import statistics
import time
from typing import Any, NamedTuple

import jax

from benchmarks.results import Measured, spread
from txl_jax.ops import kernels
from txl_jax.ops.kernels import dispatch
from txl_jax.program import target_device

_CALLS = 8  # that are sent off at once


class Sizes(NamedTuple):
  """What is measured: B, T, M, H, K."""

  batch: int
  segment: int
  memory: int
  heads: int
  d_head: int
  dtype: str
  dropatt: float  # dropout of the probabilities


def run(sizes: Sizes, rounds: int) -> dict[str, Measured]:
  """Measures each implementation so many times, prints and returns that."""
  B, T, M, H, K, dtype, rate = sizes
  S, key = M + T, jax.random.key(0)
  shapes = (B, T, H, K), (B, S, H, K), (B, S, H, K), (S, H, K), (H, K), (H, K)
  keys = jax.random.split(key, len(shapes) + 1)
  arrays = [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes)]
  above = jax.random.normal(keys[-1], shapes[0], dtype)
  device = target_device.device()
  case = kernels.Case(device, dtype, T, M, K, rate)
  able = device.ampere and dtype == 'bfloat16'
  able = able and K <= 128 and K % 8 == T % 2 == M % 2 == 0
  plain = 'cudnn' if able else 'xla'
  print(
    f'attention: {sizes._asdict()}; jax {jax.__version__}, {device.kind}; '
    f'chosen: {kernels.choose(case)[0]}; without positions: {plain}',
    flush=True,
  )
  sides = {}
  for name in kernels.IMPLEMENTATIONS:
    if reason := dispatch.why_not(name, case):
      print(f'{name}: left out, {reason}')
      continue
    given: Any = dict(implementation=name, dropout_rate=rate, dropout_key=key)
    sides[name] = functools.partial(kernels.relative_attention, **given)
  sides['without positions'] = lambda q, k, v, *_: jax.nn.dot_product_attention(
    q, k, v, implementation=plain
  )

  def both(attend, *arrays):
    out, pull = jax.vjp(attend, *arrays)
    return out, pull(above)

  programs = {}
  for name, attend in sides.items():
    calls = dict(forward=attend, both=functools.partial(both, attend))
    for what, call in calls.items():
      program = jax.jit(call).lower(*arrays).compile()
      programs[name, what] = program
      jax.block_until_ready(program(*arrays))  # warm
  seconds = {call: [] for call in programs}
  for _ in range(rounds):
    for call, program in programs.items():
      begin = time.perf_counter()
      for _ in range(_CALLS):
        result = program(*arrays)
      jax.block_until_ready(result)
      seconds[call].append((time.perf_counter() - begin) / _CALLS)
  results = {}
  for (name, what), taken in seconds.items():
    shown = f'{name}, {what}'
    results[shown] = Measured([1e3 * s for s in taken], 'ms')
    base = statistics.median(seconds['without positions', what])
    memory: Any = programs[name, what].memory_analysis()
    print(
      f'{shown}: {spread(results[shown].values, ".3f")} ms, '
      f'{statistics.median(taken) / base:.2f} x without positions, '
      f'{memory.temp_size_in_bytes / 1e9:.3f} GB of temporaries'
    )
  return results
