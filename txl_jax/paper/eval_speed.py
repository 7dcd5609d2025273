"""--mode=eval_speed: memory against sliding window (Table 9 of the paper).

Shapes: T segment, L attention length; one row.
"""

import statistics
import time
from typing import Any

import jax
import numpy as np

from txl_jax import models
from txl_jax.data.corpora import preparation
from txl_jax.evaluation import scoring
from txl_jax.experiment import analysis, saved_model
from txl_jax.experiment.job import Job
from txl_jax.experiment.measurements import PAPER
from txl_jax.models import base
from txl_jax.paper import attention_length
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir

_FRESH = 'no run in the folder: timing initial parameters, which are as fast'


def measure(
  model: base.LanguageModel,
  params: Any,
  length: int,
  *,
  segment_len: int,
  tokens: int,
  repeats: int,
  window: str = 'same',
) -> tuple[float, float]:
  """Seconds per token with a memory, and with a window, of `length` tokens.

  The model is in test mode, its parameters on one device. A timed call scores
  one segment with the memory, or `tokens` tokens with the window. `window`
  selects the model that reads the window, see `EvalSpeed.window`. UserError if
  the model has no attention length.
  """
  with_memory = attention_length.with_memory(model, length)
  memoryless = model.at_test_time(mem_len=0).with_keys(same_length='off')
  window_params = params
  if window == 'al_rfou':
    memoryless, window_params = absolute(model, length)
  with_window = attention_length.at_length(memoryless, length)
  seconds = _per_token(with_memory, params, segment_len, repeats)
  return seconds, _per_token(with_window, window_params, tokens, repeats)


def absolute(
  model: base.LanguageModel, length: int
) -> tuple[base.LanguageModel, Any]:
  """Al-Rfou et al.'s model of the same sizes, L positions; its parameters."""
  declared = settings.keys(models.MODELS['al_rfou'].Config)
  fields = {k: x for k, x in vars(model.config).items() if k in declared}
  fields |= {'name': 'al_rfou', 'table_len': length}
  al_rfou = models.build(fields, model.vocab_size)
  return al_rfou.at_test_time(), _initial_params(al_rfou, seed=0)


def _initial_params(model: base.LanguageModel, seed: int) -> Any:
  key = jax.random.key(seed)
  params = jax.jit(lambda: base.init_params(model, key))()
  return model.inference_params(params)


def _per_token(model, params, T, repeats):
  """Median seconds per token when T tokens are scored in one call."""
  rng = np.random.default_rng(0)
  inputs, targets = rng.integers(0, model.vocab_size, [2, 1, 1, T], np.int32)
  variables = base.freeze(model, params)
  memory = base.start_memory(model, variables, 1)
  seconds = []
  for _ in range(repeats + 1):
    begin = time.perf_counter()
    memory, nll = scoring.jit_score(
      variables, memory, inputs, targets, model=model
    )
    nll.block_until_ready()
    seconds.append(time.perf_counter() - begin)
  return statistics.median(seconds[1:]) / T  # the first call compiles


def run(job: Job) -> None:
  """Measures on one device; UserError if there are several processes."""
  begin = time.monotonic()
  config = job.config
  o = job.config.eval_speed
  if (n := processes.count()) > 1:
    raise UserError(f'eval_speed is for one process; there are {n}')
  params, description, V = _model(job)
  model = models.at_test_time(config, V, 'eval')
  rows = []
  for length in o.lengths:
    job.console.progress(f'attention length {length:,}')
    memory, window = measure(
      model, params, length, segment_len=config.eval.segment_len,
      tokens=o.tokens, repeats=o.repeats, window=o.window,
    )  # fmt: skip
    row = {
      'attention_length_tokens': length,
      'memory_seconds_per_token': memory,
      'window_seconds_per_token': window,
      'times_slower': window / memory,
      'paper_times_slower': PAPER.get(length),
    }
    rows.append(row)
  record = analysis.setting(job, 'eval_speed', begin) | description
  record['lengths'] = rows
  analysis.report(job, record, table(record))


def _model(job):
  """Parameters on one device, trained or initial; their record; and V."""
  if workdir.checkpoints(job.folder).exists():
    mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
    restored = saved_model.load(job.config, job.folder, mesh)
    description = analysis.model_of(job.folder, restored)
    description['parameters'] = 'trained'
    return restored.params, description, len(restored.vocabulary)
  job.console.say(_FRESH)
  V = preparation.vocab_size(job.config.data)
  model = models.build(job.config.model, V)
  description = {
    'run': job.folder.resolve().name,
    'experiment': job.config.experiment,
    'checkpoint_step': None,
    'averaged_over_steps': 0,
    'config': settings.flatten({'model': job.config.model}),
    'parameters': 'fresh',
  }
  return _initial_params(model, job.config.seed), description, V


def table(record: dict[str, Any]) -> list[str]:
  """The lines to print: the conditions, then a row for each length."""
  rows = [
    (
      f'{r["attention_length_tokens"]:,}',
      f'{1e3 * r["memory_seconds_per_token"]:,.3f}',
      f'{1e3 * r["window_seconds_per_token"]:,.3f}',
      f'{r["times_slower"]:,.0f}',
      f'{paper:,}' if (paper := r['paper_times_slower']) else '-',
    )
    for r in record['lengths']
  ]
  seconds = 'memory, ms/token', 'window, ms/token'
  header = 'attention length', *seconds, 'times slower', 'paper'
  machine = record['hardware']['device']
  T = record['eval']['segment_len']
  window = record['options']['window']
  return [
    f'{record["run"]}, {record["parameters"]} parameters, segments of {T}, '
    f'window: {window}, on one device: {machine}',
    *analysis.table(header, rows),
  ]
