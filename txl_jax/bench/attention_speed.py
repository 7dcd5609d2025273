"""Speed and memory of relative attention, forward, and with its gradients.

Every implementation that can, in turn; beside them attention without positions
and without a mask over all T x S scores: that of cuDNN on a GPU, elsewhere the
one that JAX has in plain operations. Several calls are one program, each with
the result of the one before: what is timed is the device.
"""

import functools
import statistics
import time
from typing import Any, NamedTuple

import jax

from txl_jax import kernels, target
from txl_jax.bench.results import Measured, spread
from txl_jax.kernels import api

_CALLS = 4  # in a program


class Sizes(NamedTuple):
  """What is measured: B, T, M, H, K."""

  batch: int
  segment: int
  memory: int
  heads: int
  d_head: int
  dtype: str
  dropout: float  # of the probabilities


def run(sizes: Sizes, rounds: int) -> dict[str, Measured]:
  """Measures each implementation so many times, prints and returns that."""
  B, T, M, H, K, dtype, rate = sizes
  S, key = M + T, jax.random.key(0)
  shapes = (B, T, H, K), (B, S, H, K), (B, S, H, K), (S, H, K), (H, K), (H, K)
  keys = jax.random.split(key, len(shapes) + 1)
  arrays = [jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes)]
  above = jax.random.normal(keys[-1], shapes[0], dtype)
  device = target.device()
  case = kernels.Case(device, dtype, T, M, K, rate)
  able = not api.why_not('cudnn', case._replace(rate=0.0))
  plain = 'cudnn' if able else 'xla'
  print(
    f'attention: {sizes._asdict()}; jax {jax.__version__}, {device.kind}; '
    f'chosen: {kernels.choose(case)[0]}; without positions: {plain}',
    flush=True,
  )
  sides = {}
  for name in kernels.IMPLEMENTATIONS:
    if reason := api.why_not(name, case):
      print(f'{name}: left out, {reason}')
      continue
    given: Any = dict(implementation=name, dropout_rate=rate, dropout_key=key)
    sides[name] = functools.partial(kernels.relative_attention, **given)
  sides['without positions'] = lambda q, k, v, *_: jax.nn.dot_product_attention(
    q, k, v, implementation=plain
  )

  programs = {}
  for name, attend in sides.items():
    for what, form in ('forward', _forward), ('both', _both):
      program = jax.jit(form(attend)).lower(arrays, above).compile()
      programs[name, what] = program
      jax.block_until_ready(program(arrays, above))  # warm
  seconds = {call: [] for call in programs}
  for _ in range(rounds):
    for call, program in programs.items():
      begin = time.perf_counter()
      jax.block_until_ready(program(arrays, above))
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


def _forward(attend):
  """Calls one after the other, each on what the one before has made."""

  def run(arrays, above):
    del above
    q, *rest = arrays

    def body(_, x):
      return q + 1e-3 * attend(x, *rest)

    return jax.lax.fori_loop(0, _CALLS, body, q)

  return run


def _both(attend):
  """The same with all gradients, every one of which is used."""

  def run(arrays, above):
    q, *rest = arrays

    def body(_, carry):
      x, rest = carry
      _, pull = jax.vjp(attend, x, *rest)
      dx, *others = pull(above)
      moved = [a + 1e-6 * d for a, d in zip(rest, others)]
      return q + 1e-3 * dx, moved

    return jax.lax.fori_loop(0, _CALLS, body, (q, rest))

  return run
