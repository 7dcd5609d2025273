"""--mode=eval_speed: a memory beside a window that is read anew."""

import time
from typing import Any

import jax

from txl_jax import models
from txl_jax.data.corpora import preparation
from txl_jax.evaluation import eval_speed
from txl_jax.models import base
from txl_jax.modes import analysis, restore
from txl_jax.modes.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.program import pictures, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir

_FRESH = 'no run in the folder: fresh parameters, which cost as much'


def run(job: Job) -> None:
  """Measures the lengths of the section `eval_speed` on one device.

  UserError: there are several processes; see `restore.load` and
  `eval_speed.measure`.
  """
  begin, config, o = time.monotonic(), job.config, job.config.eval_speed
  if (n := processes.count()) > 1:
    raise UserError(f'eval_speed is for one process; there are {n}')
  params, about, V = _model(job)
  model = models.at_test_time(config, V, 'eval')
  rows = []
  for length in o.lengths:
    job.console.progress(f'attention length {length:,}')
    speed = eval_speed.measure(
      model, params, length, segment_len=config.eval.segment_len,
      tokens=o.tokens, repeats=o.repeats,
    )  # fmt: skip
    row = {
      'attention_length_tokens': length,
      'memory_seconds_per_token': speed.memory,
      'window_seconds_per_token': speed.window,
      'times_slower': speed.ratio,
      'paper_times_slower': eval_speed.PAPER.get(length),
    }
    rows.append(row)
  record = analysis.setting(job, 'eval_speed', begin) | about
  record['lengths'] = rows
  analysis.report(job, record, table(record), lambda f: plot(f, record))


def _model(job):
  """Parameters on one device, what is told of them, and V."""
  if workdir.checkpoints(job.folder).exists():
    mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
    found = restore.load(job.config, job.folder, mesh)
    about = analysis.model_of(job.folder, found) | {'parameters': 'trained'}
    return found.params, about, len(found.vocabulary)
  job.console.say(_FRESH)
  V = preparation.vocab_size(job.config.data)
  model = models.build(job.config.model, V)
  key = jax.random.key(job.config.seed)
  make = jax.jit(lambda: base.init_params(model, key))
  about = {
    'run': job.folder.resolve().name,
    'checkpoint_step': None,
    'averaged_over_steps': 0,
    'config': settings.flatten({'model': job.config.model}),
    'parameters': 'fresh',
  }
  params = model.inference_params(make())
  return params, about, V


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
  header = (
    'attention length', 'memory, ms/token', 'window, ms/token', 'times slower',
    'paper',
  )  # fmt: skip
  machine = record['hardware']['device']
  T = record['eval']['segment_len']
  return [
    f'{record["run"]}, {record["parameters"]} parameters, segments of {T} on '
    f'one device: {machine}',
    *analysis.table(header, rows),
  ]


def plot(figure: Any, record: dict[str, Any]) -> None:
  """The ratio against the length, beside the paper's."""
  axes, rows = figure.subplots(), record['lengths']
  length = 'attention_length_tokens'
  names = {
    'times_slower': record['hardware']['platform'],
    'paper_times_slower': 'paper',
  }
  series = {
    name: ([r[length] for r in there], [r[k] for r in there])
    for k, name in names.items()
    if (there := [r for r in rows if r[k]])
  }
  pictures.lines(axes, series)
  axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
  axes.set_xlabel('attention length, tokens')
  axes.set_ylabel('times slower with a window')
  axes.set_title(f'{record["run"]}: {record["hardware"]["device"]}')
