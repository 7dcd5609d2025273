"""What a token costs with a memory, and with a window that is read anew.

The paper's Table 9, on fresh parameters; `--mode=eval_speed` does the same for
a config or a run.
"""

from typing import Any

import jax

from benchmarks import ours
from benchmarks.results import Measured
from txl_jax import models
from txl_jax.evaluation import eval_speed
from txl_jax.models import base

# One row with memories of the lengths, and nothing is trained: what a
# specification says besides has no meaning here.
_NOT_USED = (
  'batch', 'memory', 'steps', 'segments_per_call', 'dropout', 'lr', 'clip',
)  # fmt: skip


def sizes(spec: Any, lengths: tuple[int, ...], tokens: int) -> dict[str, Any]:
  """What is measured, of the arguments of `run`."""
  used = {k: x for k, x in vars(spec).items() if k not in _NOT_USED}
  return used | dict(lengths=lengths, window_tokens=tokens)


def run(
  spec: Any, lengths: tuple[int, ...], tokens: int, repeats: int
) -> dict[str, Measured]:
  """Measures some attention lengths, prints and returns what a token costs.

  The sizes are those of `ours.prepare`; a measurement of the window predicts so
  many tokens, the median of the repeats counts. UserError as by
  `eval_speed.measure`.
  """
  config = ours.config(spec)
  model = models.at_test_time(config, spec.vocab, 'eval')
  key = jax.random.key(spec.seed)
  params = jax.jit(lambda: base.init_params(model, key))()
  device = jax.devices()[0].device_kind
  told = ', '.join(f'{k} {v}' for k, v in sizes(spec, lengths, tokens).items())
  print(f'sliding: {told}; jax {jax.__version__}, {device}', flush=True)
  results = {}
  for length in lengths:
    speed = eval_speed.measure(
      model, params, length, segment_len=spec.segment, tokens=tokens,
      repeats=repeats,
    )  # fmt: skip
    paper = eval_speed.PAPER.get(length)
    print(
      f'attention length {length:,}: memory {1e3 * speed.memory:.3f} ms/token, '
      f'window {1e3 * speed.window:.3f} ms/token, {speed.ratio:,.0f} x'
      + (f', paper {paper:,} x' if paper else ''),
      flush=True,
    )
    results[f'memory, {length}'] = Measured([1e3 * speed.memory], 'ms/token')
    results[f'window, {length}'] = Measured([1e3 * speed.window], 'ms/token')
  return results
