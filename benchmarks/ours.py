"""Training on random tokens, scoring and writing them; fresh parameters.

Shapes: B batch, T segment, G segments in a call of scoring.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.results import Measured
from txl_jax import models
from txl_jax.data import streams
from txl_jax.evaluation import scoring
from txl_jax.experiment import sections
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base
from txl_jax.ops import matmul
from txl_jax.paper import eval_speed
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.errors import UserError
from txl_jax.training import cost
from txl_jax.training import step as step_lib
from txl_jax.training.state import Sums

_SEGMENTS = 64  # of a row of the corpus; memory is emptied after them
# What a specification says of one row whose memories have the lengths.
_USED = ('seed', 'layers', 'd_model', 'heads', 'd_head', 'd_ff', 'segment')
_USED += ('vocab', 'dtype', 'threads')


def _config(spec):
  """What a specification is as a config."""
  c = sections.compose()
  c.seed = spec.seed
  c.model.update(n_layer=spec.layers, n_head=spec.heads, d_head=spec.d_head)
  c.model.update(d_model=spec.d_model, d_ff=spec.d_ff, mem_len=spec.memory)
  c.model.update(dropout=spec.dropout, dtype=spec.dtype)
  c.train.update(steps=spec.steps, batch_size=spec.batch)
  c.optim.update(lr=spec.lr, clip=spec.clip, schedule='constant')
  c.eval.segment_len = c.generate.segment_len = spec.segment
  return sections.read(c)


def _tokens(spec, segments):
  """A corpus of so many segments in each row, int64."""
  size = segments * spec.batch * spec.segment + 1
  return np.random.default_rng(spec.seed).integers(spec.vocab, size=size)


def _train(spec):
  """The parameters, the run, and FLOPs per token.

  A run is `training.step` on `data.streams`.
  """
  B, T = spec.batch, spec.segment
  if B % (n := jax.device_count()):
    raise UserError(f'--batch is {B}; allowed: multiples of {n} (devices)')
  text = streams.Streams(_tokens(spec, _SEGMENTS), B, T)
  mesh = mesh_lib.make_mesh()
  placed = placement.by_rows(mesh)
  built = step_lib.build(_config(spec), spec.vocab, mesh)
  state = placement.create(built.create, built.abstract)

  def run(steps):
    nonlocal state
    sums = jax.device_put(Sums.zeros(), placement.replicated(mesh))
    first, state, marker = int(state.step), state.replace(sums=sums), None
    for step in range(first, first + steps):
      batch = vars(text.batch(step))
      batch = jax.make_array_from_process_local_data(placed, batch)
      state = built.step(state, batch)
      # As in the loop of training: no more than one step waits.
      jax.block_until_ready(marker)
      marker = state.step + 0
    jax.block_until_ready(state)
    return steps * B * T, float(state.sums.nll)

  flops = cost.of_rows(built.model, B, T)
  return state.params, run, (flops.forward + flops.backward) / (B * T)


def _at_test_time(spec, section):
  """The model as a section uses it, and fresh parameters."""
  model = models.at_test_time(_config(spec), spec.vocab, section)
  key = jax.random.key(spec.seed)
  return model, jax.jit(lambda: base.init_params(model, key))()


def _score(spec):
  """The parameters, the run, and FLOPs per token.

  A run makes whole calls of `evaluation.scoring`.
  """
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

  abstract = jax.eval_shape(lambda: (variables, memory))
  part = jax.ShapeDtypeStruct((G, B, T), np.int32)
  score = functools.partial(scoring.score_segments, model=model)
  flops = cost.flops(jax.make_jaxpr(score)(*abstract, part, part).jaxpr)
  return params, run, flops / (G * B * T)


def _decode(spec):
  """The parameters, the run, and the bytes that a token reads.

  A run writes as many tokens as segments have, in B rows, the likeliest one
  after the other, after a text as long as the memory.
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

  read = jax.tree.leaves((variables, state.memory))
  return params, run, sum(x.nbytes for x in read) / spec.batch


def prepare(benchmark: str, spec: Any) -> tuple[dict[str, Any], Callable]:
  """What is printed of our side, and a function that measures it once.

  UserError if the devices cannot share the batch.
  """
  runs = {'train': _train, 'eval': _score, 'decode': _decode}
  params, run, needed = runs[benchmark](spec)
  parameters = sum(x.size for x in jax.tree.leaves(params))
  versions, device = f'jax {jax.__version__}', jax.default_backend()
  ready = dict(parameters=parameters, versions=versions, device=device)
  ready['bytes' if benchmark == 'decode' else 'flops'] = needed

  def measure():
    begin = time.perf_counter()
    tokens, nll = run(spec.steps)
    rate = tokens / (time.perf_counter() - begin)
    return dict(rate=rate, nats=nll / tokens)

  run(min(2, spec.steps))  # compiles
  return ready, measure


def limits(
  ready: dict[str, Any], dtype: str
) -> dict[str, tuple[Measured, float]]:
  """The speeds of a plain product and a plain sum, the best of ten runs each.

  Beside each is the share of it that one token/s takes, if `ready`, from
  `prepare`, has the FLOPs or bytes of a token; else 0.
  """
  x = jnp.ones([2048, 2048], matmul.operand_dtype(dtype))
  y = jnp.ones([2**26], jnp.float32)
  product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
  plain = {
    f'product of 2048 x 2048 {x.dtype}': (product, (x, x), 2 * len(x) ** 3),
    f'sum of {y.nbytes // 10**6} MB': (jnp.sum, (y,), y.nbytes),
  }
  measured = {}
  kinds = ('flops', 'GFLOP/s'), ('bytes', 'GB/s')
  for (name, (f, arguments, amount)), (kind, unit) in zip(plain.items(), kinds):
    f = jax.jit(f).lower(*arguments).compile()
    rates = []
    for _ in range(10):
      begin = time.perf_counter()
      jax.block_until_ready(f(*arguments))
      rates.append(amount / (time.perf_counter() - begin) / 1e9)
    share = ready.get(kind, 0) / 1e9 / max(rates)
    measured[name] = Measured(rates, unit), share
  return measured


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
