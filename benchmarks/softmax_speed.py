"""Speed and memory of the adaptive softmax, forward and backward.

Beside it, in turn, "crowded": the same with all tokens in the largest tail; and
one softmax over all words, each as wide as the head's, "wide", or as its bin's,
"narrow". These two are timed with fewer tokens and scaled; their bytes are of
the compiled program for all tokens.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.results import Measured, spread
from txl_jax.ops import softmax

_FEW = 1024  # tokens that the softmaxes over all words are timed with


class Sizes(NamedTuple):
  """What is measured."""

  vocab: int  # V
  cutoffs: tuple[int, ...]  # first token id of each tail
  width: int  # D, and that of the head's words
  div_val: int  # tail i is div_val^i times narrower
  tokens: int  # N
  seed: int = 0  # of tokens, states and weights


def _loss(h, targets, output):
  return softmax.nll(h, targets, output).mean()


def _narrow_loss(h, targets, output):
  """The cross entropy over all words, their logits side by side."""
  parts = zip(output.weights, output.biases, output.projections)
  logits = jnp.concatenate([h @ p.T @ w.T + b for w, b, p in parts], axis=-1)
  chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
  return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def _compile(loss, *arguments):
  """A call (program, arguments), compiled, and the bytes that it needs."""
  run = jax.jit(jax.value_and_grad(loss, argnums=(0, 2)))
  program = run.lower(*arguments).compile()
  sizes: Any = program.memory_analysis()
  nbytes = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
  return (program, *arguments), nbytes


def _seconds(run, *arguments):
  begin = time.perf_counter()
  jax.block_until_ready(run(*arguments))
  return time.perf_counter() - begin


def run(sizes: Sizes, rounds: int) -> dict[str, Measured]:
  """Measures each side so many times, and prints and returns that."""
  V, cutoffs, D, div_val, N, seed = sizes
  rng = np.random.default_rng(seed)
  edges = [0, *cutoffs, V]
  bins = np.diff(edges).tolist()  # words of each
  widths = [D // div_val**i for i in range(len(bins))]

  def draw(*shape):
    return jnp.asarray(0.02 * rng.standard_normal(shape, np.float32))

  def draw_output(bins, widths):
    weights = [draw(v, d) for v, d in zip(bins, widths)]
    biases, projections = [draw(v) for v in bins], [draw(d, D) for d in widths]
    tails = draw(len(bins) - 1, widths[0]), draw(len(bins) - 1)
    return softmax.Output(weights, biases, projections, *tails)

  p = 1 / np.arange(1, V + 1)
  targets = rng.choice(V, size=N, p=p / p.sum()).astype(np.int32)
  place = np.searchsorted(cutoffs, targets, side='right')
  counts = np.bincount(place, minlength=len(bins)).tolist()
  output = draw_output(bins, widths)
  h = 20 * draw(N, D)
  shares = ', '.join(f'{n / N:.1%}' for n in counts)
  told = f'{sizes._asdict()}; tokens in the bins: {shares}'
  backend = f'jax {jax.__version__}, {jax.default_backend()}'
  print(f'softmax: {told}; {backend}', flush=True)

  ours, nbytes = _compile(_loss, h, targets, output)
  tail = int(np.argmax(bins[1:])) if cutoffs else -1
  crowd = rng.integers(*edges[tail + 1 : tail + 3], size=N, dtype=np.int32)
  sides = dict(adaptive=ours, crowded=(ours[0], h, crowd, output))
  memory, few = dict(adaptive=nbytes, crowded=nbytes), min(_FEW, N)
  wide, narrow = (_loss, draw_output([V], [D])), (_narrow_loss, output)
  for name, (loss, weights) in dict(wide=wide, narrow=narrow).items():
    _, memory[name] = _compile(loss, h, targets, weights)
    sides[name], _ = _compile(loss, h[:few], targets[:few], weights)

  seconds = {name: [] for name in sides}
  for n in range(rounds + 1):  # the first one warms up
    for name, call in sides.items():
      taken = _seconds(*call) * (N / few if name in ('wide', 'narrow') else 1)
      seconds[name] += [taken] if n else []
  for name, taken in seconds.items():
    ratios = [a / b for a, b in zip(taken, seconds['adaptive'])]
    print(
      f'{name}: {spread(taken, ".3f")} s, {memory[name] / 1e9:.2f} GB; '
      f'{spread(ratios, ".2f")} x the time of adaptive, '
      f'{memory[name] / nbytes:.1f} x its memory'
    )
  return {name: Measured(taken, 's') for name, taken in seconds.items()}
