"""--mode=eval_speed: a memory beside a window that is read anew.

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
from txl_jax.experiment import analysis, restore
from txl_jax.experiment.job import Job
from txl_jax.experiment.measurements import PAPER
from txl_jax.models import base
from txl_jax.modes.measurements import attention_length
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir

_FRESH = 'no run in the folder: fresh parameters, which cost as much'


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
  """Seconds per token of a model at test time for an attention length L.

  The first is that of segments with a memory of L, the second that of a window
  of L, which a model reads that `EvalSpeed.window` names. Parameters are on one
  device. UserError if the model has no attention length.
  """
  ours = attention_length.with_memory(model, length)
  plain = model.at_test_time(mem_len=0).with_keys(same_length='off')
  weights = params
  if window == 'al_rfou':
    plain, weights = absolute(model, length)
  slow = attention_length.at_length(plain, length)
  memory = _per_token(ours, segment_len, params, repeats)
  return memory, _per_token(slow, tokens, weights, repeats)


def absolute(
  model: base.LanguageModel, length: int
) -> tuple[base.LanguageModel, Any]:
  """Al-Rfou et al.'s model in another's sizes, L positions, new weights."""
  declared = settings.keys(models.MODELS['al_rfou'].Config)
  fields = {k: x for k, x in vars(model.config).items() if k in declared}
  fields |= {'name': 'al_rfou', 'table_len': length}
  plain = models.build(fields, model.vocab_size)
  return plain.at_test_time(), _initial(plain, 0)


def _initial(model, seed):
  key = jax.random.key(seed)
  params = jax.jit(lambda: base.init_params(model, key))()
  return model.inference_params(params)


def _per_token(model, T, params, repeats):
  """Median seconds per token when T tokens are scored in one call."""
  rng = np.random.default_rng(0)
  inputs, targets = rng.integers(0, model.vocab_size, [2, 1, 1, T], np.int32)
  variables = base.freeze(model, params)
  memory, seconds = jax.jit(lambda: model.init_memory(1))(), []
  for _ in range(repeats + 1):
    begin = time.perf_counter()
    memory, nll = scoring.jit_score(
      variables, memory, inputs, targets, model=model
    )
    nll.block_until_ready()
    seconds.append(time.perf_counter() - begin)
  return statistics.median(seconds[1:]) / T  # the first one compiles


def run(job: Job) -> None:
  """Measures on one device; UserError if there are several processes."""
  begin, config, o = time.monotonic(), job.config, job.config.eval_speed
  if (n := processes.count()) > 1:
    raise UserError(f'eval_speed is for one process; there are {n}')
  params, about, V = _model(job)
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
  record = analysis.setting(job, 'eval_speed', begin) | about
  record['lengths'] = rows
  analysis.report(job, record, table(record))


def _model(job):
  """Parameters on one device, their description for the record, and V."""
  if workdir.checkpoints(job.folder).exists():
    mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
    found = restore.load(job.config, job.folder, mesh)
    about = analysis.model_of(job.folder, found) | {'parameters': 'trained'}
    return found.params, about, len(found.vocabulary)
  job.console.say(_FRESH)
  V = preparation.vocab_size(job.config.data)
  model = models.build(job.config.model, V)
  about = {
    'run': job.folder.resolve().name,
    'experiment': job.config.experiment,
    'checkpoint_step': None,
    'averaged_over_steps': 0,
    'config': settings.flatten({'model': job.config.model}),
    'parameters': 'fresh',
  }
  return _initial(model, job.config.seed), about, V


def table(record: dict[str, Any]) -> list[str]:
  """The lines that are printed."""
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
  ways = 'memory, ms/token', 'window, ms/token'
  header = 'attention length', *ways, 'times slower', 'paper'
  machine = record['hardware']['device']
  T, window = record['eval']['segment_len'], record['options']['window']
  return [
    f'{record["run"]}, {record["parameters"]} parameters, segments of {T}, '
    f'window of {window}, on one device: {machine}',
    *analysis.table(header, rows),
  ]
