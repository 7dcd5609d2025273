"""Speed and memory of the adaptive softmax, forward and backward.

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

from txl_jax.bench import side_by_side
from txl_jax.ops import softmax

_FEW = 1024  # tokens that the softmaxes over all words are timed with


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What is measured."""

  vocab: int  # V
  cutoffs: tuple[int, ...]  # first token id of each tail
  width: int  # D, and that of the head's words
  div_val: int  # tail i is div_val^i times narrower
  tokens: int  # N
  seed: int = 0  # of tokens, states and weights

  @property
  def bins(self) -> list[int]:
    """Words of each bin."""
    edges = 0, *self.cutoffs, self.vocab
    return [b - a for a, b in itertools.pairwise(edges)]

  @property
  def widths(self) -> list[int]:
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


def _output(bins, widths, D, draw):
  """An Output for bins of so many words, each as wide."""
  tails = len(bins) - 1
  return softmax.Output(
    [draw(v, d) for v, d in zip(bins, widths)],
    [draw(v) for v in bins],
    [draw(d, D) for d in widths],
    draw(tails, widths[0]),
    draw(tails),
  )


def _compile(loss, *arguments):
  """A call (program, arguments), compiled."""
  run = jax.jit(jax.value_and_grad(loss, argnums=(0, 2)))
  return run.lower(*arguments).compile(), *arguments


def _bytes(call):
  sizes = call[0].memory_analysis()
  return sizes.temp_size_in_bytes + sizes.output_size_in_bytes


def _seconds(run, *arguments):
  begin = time.perf_counter()
  jax.block_until_ready(run(*arguments))
  return time.perf_counter() - begin


def run(sizes: Sizes, rounds: int) -> None:
  """Measures each side so many times, and prints."""
  rng = np.random.default_rng(sizes.seed)
  N, D, V = sizes.tokens, sizes.width, sizes.vocab

  def draw(*shape):
    return jnp.asarray(0.02 * rng.standard_normal(shape, np.float32))

  p = 1 / np.arange(1, V + 1)
  targets = rng.choice(V, size=N, p=p / p.sum()).astype(np.int32)
  place = np.searchsorted(sizes.cutoffs, targets, side='right')
  counts = np.bincount(place, minlength=len(sizes.bins))
  output = _output(sizes.bins, sizes.widths, D, draw)
  h = 20 * draw(N, D)
  shares = ', '.join(f'{n / N:.1%}' for n in counts)
  print(
    f'softmax: {dataclasses.asdict(sizes)}; tokens in the bins: {shares}; '
    f'jax {jax.__version__}, {jax.default_backend()}',
    flush=True,
  )

  ours = _compile(_loss, h, targets, output)
  sides, memory = {'adaptive': [ours], 'bins': []}, {'adaptive': _bytes(ours)}
  for i, words in enumerate(sizes.bins):
    # The head sees all tokens, and has a logit for each tail.
    n = N if i == 0 else int(counts[i])
    words += 0 if i else len(sizes.cutoffs)
    if n:
      one = _output([words], [sizes.widths[i]], D, draw)
      local = rng.integers(words, size=n, dtype=np.int32)
      sides['bins'].append(_compile(_loss, h[:n], local, one))
  few = min(_FEW, N)
  wide = _output([V], [D], D, draw)
  for name, loss, weights in (
    ('wide', _loss, wide),
    ('narrow', _narrow_loss, output),
  ):
    memory[name] = _bytes(_compile(loss, h, targets, weights))
    sides[name] = [_compile(loss, h[:few], targets[:few], weights)]

  seconds = {name: [] for name in sides}
  for n in range(rounds + 1):  # the first one warms up
    for name, calls in sides.items():
      taken = sum(_seconds(*call) for call in calls)
      taken *= N / few if name in ('wide', 'narrow') else 1
      if n:
        seconds[name].append(taken)
  _report(seconds, memory)
  if sizes.cutoffs:
    _crowded(sizes, ours[0], h, output)


def _report(seconds, memory):
  spread = side_by_side.spread
  for name, taken in seconds.items():
    size = f', {memory[name] / 1e9:.2f} GB' if name in memory else ''
    print(f'{name}: {spread(taken, ".3f")} s{size}')
  for name in ('bins', 'wide', 'narrow'):
    ratios = [a / b for a, b in zip(seconds[name], seconds['adaptive'])]
    line = f'{name} / adaptive: {spread(ratios, ".2f")} in time'
    if name in memory:
      line += f', {memory[name] / memory["adaptive"]:.1f} in memory'
    print(line)


def _crowded(sizes, ours, h, output):
  """All tokens in the largest tail: how long, and whether it is right."""
  tail = 1 + int(np.argmax(sizes.bins[1:]))
  first = sizes.cutoffs[tail - 1]
  rng = np.random.default_rng(sizes.seed)
  targets = rng.integers(
    first, first + sizes.bins[tail], size=len(h), dtype=np.int32
  )
  taken = statistics.median(_seconds(ours, h, targets, output) for _ in '12')
  loss = float(ours(h, targets, output)[0])
  # A few rows at a time against the log-probabilities of all words.
  log_probs, exact = jax.jit(softmax.logits), 0.0
  for at in range(0, len(h), 64):
    logs = np.asarray(log_probs(h[at : at + 64], output), np.float64)
    exact += logs[np.arange(len(logs)), targets[at : at + 64]].sum()
  error = abs(loss + exact / len(h))
  print(
    f'all tokens in tail {tail}: {taken:.3f} s, mean nll {loss:.6f}, '
    f'{error:.1e} from the log-probabilities of all words'
  )
