"""Benchmark of the adaptive softmax, forward and backward.

Beside it, measured in turn:

  bins   plain softmaxes of exactly the tokens and words of each bin, summed
  wide   one softmax over all words, each as wide as the head's
  narrow one softmax over all words, each as wide as its bin's

The last two are timed with fewer tokens and scaled; their bytes are those of
the compiled program for all tokens.
"""

import dataclasses
import itertools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from txl_jax.bench import pairs
from txl_jax.ops import softmax

_FEW = 1024  # tokens that the softmaxes over all words are timed with


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What is measured.

  Attributes:
    vocab: V.
    cutoffs: first token id of each tail.
    width: D, and that of the head's words.
    div_val: tail i is div_val^i times narrower.
    tokens: N.
    seed: of tokens, states and weights.
  """

  vocab: int
  cutoffs: tuple[int, ...]
  width: int
  div_val: int
  tokens: int
  seed: int = 0

  @property
  def bins(self):
    """Words of each bin."""
    edges = 0, *self.cutoffs, self.vocab
    return [b - a for a, b in itertools.pairwise(edges)]

  @property
  def widths(self):
    """Width of the words of each bin."""
    return [self.width // self.div_val**i for i in range(len(self.bins))]


def _loss(h, targets, output):
  return softmax.nll(h, targets, output).mean()


def _narrow_loss(h, targets, output):
  """The cross entropy over all words, their logits side by side."""
  parts = zip(output.weights, output.biases, output.projections)
  logits = jnp.concatenate([h @ p.T @ w.T + b for w, b, p in parts], axis=-1)
  chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
  return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def _one_bin(words, width, D, draw):
  """An Output of one bin, no tails."""
  return softmax.Output(
    [draw(words, width)],
    [draw(words)],
    [draw(width, D)],
    draw(0, width),
    draw(0),
  )


def _compile(loss, h, targets, output):
  run = jax.jit(jax.value_and_grad(loss, argnums=(0, 2)))
  return run.lower(h, targets, output).compile()


def _bytes(compiled):
  sizes = compiled.memory_analysis()
  return sizes.temp_size_in_bytes + sizes.output_size_in_bytes


def _seconds(run, *arguments):
  begin = time.perf_counter()
  jax.block_until_ready(run(*arguments))
  return time.perf_counter() - begin


def run(sizes, rounds):
  """Measures and prints.

  Args:
    sizes: a Sizes.
    rounds: measurements of each side.
  """
  rng = np.random.default_rng(sizes.seed)
  N, D, V = sizes.tokens, sizes.width, sizes.vocab

  def draw(*shape):
    return jnp.asarray(0.02 * rng.standard_normal(shape, np.float32))

  p = 1 / np.arange(1, V + 1)
  targets = rng.choice(V, size=N, p=p / p.sum()).astype(np.int32)
  place = np.searchsorted(sizes.cutoffs, targets, side='right')
  counts = np.bincount(place, minlength=len(sizes.bins))
  tails = len(sizes.cutoffs)
  output = softmax.Output(
    [draw(v, d) for v, d in zip(sizes.bins, sizes.widths)],
    [draw(v) for v in sizes.bins],
    [draw(d, D) for d in sizes.widths],
    draw(tails, D),
    draw(tails),
  )
  h = 20 * draw(N, D)
  shares = ', '.join(f'{n / N:.1%}' for n in counts)
  print(
    f'softmax: {dataclasses.asdict(sizes)}; tokens in the bins: {shares}; '
    f'jax {jax.__version__}, {jax.default_backend()}',
    flush=True,
  )

  ours = _compile(_loss, h, targets, output)
  sides = {'adaptive': [(ours, h, targets, output)], 'bins': []}
  for i, words in enumerate(sizes.bins):
    # The head sees all tokens, and has a logit for each tail.
    n, words = (N, words + tails) if i == 0 else (int(counts[i]), words)
    if n:
      one = _one_bin(words, sizes.widths[i], D, draw)
      local = rng.integers(words, size=n, dtype=np.int32)
      arguments = h[:n], local, one
      sides['bins'].append((_compile(_loss, *arguments), *arguments))

  memory, few = {'adaptive': _bytes(ours)}, min(_FEW, N)
  wide = _one_bin(V, D, D, draw)
  for name, loss, weights in (
    ('wide', _loss, wide),
    ('narrow', _narrow_loss, output),
  ):
    memory[name] = _bytes(_compile(loss, h, targets, weights))
    arguments = h[:few], targets[:few], weights
    sides[name] = [(_compile(loss, *arguments), *arguments)]

  seconds = {name: [] for name in sides}
  for n in range(rounds + 1):  # the first one warms up
    for name, calls in sides.items():
      taken = sum(_seconds(*call) for call in calls)
      taken *= N / few if name in ('wide', 'narrow') else 1
      if n:
        seconds[name].append(taken)
  for name, taken in seconds.items():
    size = f', {memory[name] / 1e9:.2f} GB' if name in memory else ''
    print(f'{name}: {pairs.spread(taken, ".3f")} s{size}')
  for name in ('bins', 'wide', 'narrow'):
    ratios = [a / b for a, b in zip(seconds[name], seconds['adaptive'])]
    line = f'{name} / adaptive: {pairs.spread(ratios, ".2f")} in time'
    if name in memory:
      line += f', {memory[name] / memory["adaptive"]:.1f} in memory'
    print(line)
  _crowded(sizes, ours, h, output)


def _crowded(sizes, ours, h, output):
  """All tokens in the largest tail: how long, and whether it is right."""
  if not sizes.cutoffs:
    return
  tail = 1 + int(np.argmax(sizes.bins[1:]))
  first = sizes.cutoffs[tail - 1]
  rng = np.random.default_rng(sizes.seed)
  targets = rng.integers(
    first, first + sizes.bins[tail], size=len(h), dtype=np.int32
  )
  taken = statistics.median(_seconds(ours, h, targets, output) for _ in '12')
  loss, _ = ours(h, targets, output)
  # A few rows at a time against the log-probabilities of all words.
  logs = jax.jit(softmax.log_probs)
  exact = np.concatenate(
    [
      np.take_along_axis(
        np.asarray(logs(h[at : at + 64], output), np.float64),
        targets[at : at + 64, None],
        axis=-1,
      )
      for at in range(0, len(h), 64)
    ]
  )
  error = abs(float(loss) + exact.mean())
  print(
    f'all tokens in tail {tail}: {taken:.3f} s, mean nll {float(loss):.6f}, '
    f'{error:.1e} from the log-probabilities of all words'
  )
