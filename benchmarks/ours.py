"""Training on random tokens, scoring and writing them; fresh parameters.

Shapes: B batch, T segment, G segments in a call of scoring.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.results import Measured
from txl_jax import models
from txl_jax.data import streams
from txl_jax.evaluation import scoring
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base
from txl_jax.modes import sections
from txl_jax.modes.measurements import eval_speed
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.errors import UserError
from txl_jax.training import metrics
from txl_jax.training import step as step_lib

_SEGMENTS = 64  # of a row of the corpus; memory is emptied after them
# What a specification says of one row whose memories have the lengths.
_USED = ('seed', 'layers', 'd_model', 'heads', 'd_head', 'd_ff', 'segment')
_USED += ('vocab', 'dtype', 'threads')


def _config(spec):
  """What a specification is as a config."""
  c = sections.compose()
  c.seed = spec.seed
  c.model.unroll = spec.layers if jax.default_backend() == 'cpu' else 0
  c.model.update(n_layer=spec.layers, n_head=spec.heads, d_head=spec.d_head)
  c.model.update(d_model=spec.d_model, d_ff=spec.d_ff, mem_len=spec.memory)
  c.model.update(dropout=spec.dropout, dtype=spec.dtype)
  c.train.update(steps=spec.steps, batch_size=spec.batch)
  c.optim.update(lr=spec.lr, clip=spec.clip, schedule='constant')
  c.eval.segment_len = c.generate.segment_len = spec.segment
  return c


def _tokens(spec, segments):
  """A corpus of so many segments in each row, int64."""
  size = segments * spec.batch * spec.segment + 1
  return np.random.default_rng(spec.seed).integers(spec.vocab, size=size)


def _train(spec):
  """The parameters, and the run: `training.step` on `data.streams`."""
  B, T = spec.batch, spec.segment
  if B % (n := jax.device_count()):
    raise UserError(f'--batch is {B}; allowed: multiples of {n} (devices)')
  text = streams.Streams(_tokens(spec, _SEGMENTS), B, T)
  mesh = mesh_lib.make_mesh()
  rows, placed = np.arange(B), placement.rows(mesh)
  built = step_lib.build(_config(spec), spec.vocab, mesh)
  state = placement.make(built.create, built.abstract)

  def run(steps):
    nonlocal state
    sums = jax.device_put(metrics.zeros(), placement.replicated(mesh))
    first, state, marker = int(state.step), state.replace(sums=sums), None
    for step in range(first, first + steps):
      batch = placement.from_rows(vars(text.batch(step)), rows, B, placed)
      state = built.step(state, batch)
      # As in the loop of training: no more than one step waits.
      jax.block_until_ready(marker)
      marker = state.step + 0
    jax.block_until_ready(state)
    return steps * B * T, float(state.sums.nll)

  return state.params, run


def _at_test_time(spec, section):
  """The model as a section uses it, and fresh parameters."""
  model = models.at_test_time(_config(spec), spec.vocab, section)
  key = jax.random.key(spec.seed)
  return model, jax.jit(lambda: base.init_params(model, key))()


def _score(spec):
  """The parameters, and the run: whole calls of `evaluation.scoring`."""
  B, T = spec.batch, spec.segment
  G = min(spec.segments_per_call, spec.steps)
  model, params = _at_test_time(spec, 'eval')
  corpus = _tokens(spec, spec.steps + G)  # enough for whole calls
  variables = base.freeze(model, params)
  memory = jax.jit(lambda: model.init_memory(B))()

  def run(steps):
    nonlocal memory
    calls, nll = math.ceil(steps / G), 0.0
    parts = streams.segments(corpus, B, T, G)
    for _ in range(calls):
      batch = jax.device_put(next(parts)[:2])
      memory, scores = scoring.jit_score(variables, memory, *batch, model=model)
      nll += float(np.asarray(scores).sum(dtype=np.float64))
    return calls * G * B * T, nll

  return params, run


def _decode(spec):
  """The parameters, and the run: as many tokens as segments have, by B rows.

  One after the other, the likeliest; a text as long as the memory is before.
  """
  model, params = _at_test_time(spec, 'generate')
  variables = base.freeze(model, params)
  text = np.random.default_rng(spec.seed).integers(spec.vocab, size=spec.memory)
  text = text if len(text) else [0]
  state = decoding.prefill(model, variables, text, segment_len=spec.segment)
  state = decoding.repeat_rows(model, state, spec.batch)
  greedy: Any = dict(sampling=Sampling(temperature=0), seed=0, keep=False)

  def run(steps):
    nonlocal state
    n = steps * spec.segment
    given: Any = dict(max_new_tokens=n, **greedy)
    for _, now in decoding.decode(model, variables, state, **given):
      state = now
    return n * spec.batch, 0.0

  return params, run


def prepare(benchmark: str, spec: Any) -> tuple[dict[str, Any], Callable]:
  """What is printed of our side, and a function that measures it once.

  UserError if the devices cannot share the batch.
  """
  runs = {'train': _train, 'eval': _score, 'decode': _decode}
  params, run = runs[benchmark](spec)
  parameters = sum(x.size for x in jax.tree.leaves(params))
  versions, device = f'jax {jax.__version__}', jax.default_backend()
  ready = dict(parameters=parameters, versions=versions, device=device)

  def measure():
    begin = time.perf_counter()
    tokens, nll = run(spec.steps)
    rate = tokens / (time.perf_counter() - begin)
    return dict(rate=rate, nats=nll / tokens)

  run(min(2, spec.steps))  # compiles
  return ready, measure


def sliding(
  spec: Any, lengths: tuple[int, ...], tokens: int, repeats: int
) -> tuple[dict[str, Any], dict[str, Measured]]:
  """What a token costs with a memory, and with a window that is read anew.

  The paper's Table 9; `--mode=eval_speed` measures it of a config or a run. A
  measurement of the window predicts so many tokens, the median of the repeats
  counts. Returns the sizes that matter and what was measured. UserError as by
  `eval_speed.measure`.
  """
  sizes = {name: getattr(spec, name) for name in _USED}
  sizes |= dict(lengths=lengths, window_tokens=tokens)
  model, params = _at_test_time(spec, 'eval')
  device = jax.devices()[0].device_kind
  told = ', '.join(f'{k} {v}' for k, v in sizes.items())
  print(f'sliding: {told}; jax {jax.__version__}, {device}', flush=True)
  results = {}
  for length in lengths:
    memory, window = eval_speed.measure(
      model, params, length, segment_len=spec.segment, tokens=tokens,
      repeats=repeats,
    )  # fmt: skip
    paper = eval_speed.PAPER.get(length)
    print(
      f'attention length {length:,}: memory {1e3 * memory:.3f} ms/token, '
      f'window {1e3 * window:.3f} ms/token, {window / memory:,.0f} x'
      + (f', paper {paper:,} x' if paper else ''),
      flush=True,
    )
    results[f'memory, {length}'] = Measured([1e3 * memory], 'ms/token')
    results[f'window, {length}'] = Measured([1e3 * window], 'ms/token')
  return sizes, results
