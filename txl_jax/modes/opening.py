"""Opens the job of a mode: its config, run folder, processes and console."""

import contextlib
import importlib.util
import os
from collections.abc import Collection, Iterator
from typing import Any

import ml_collections

from txl_jax.experiment import sections
from txl_jax.experiment.job import Job
from txl_jax.parallel import hardware, processes
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import buckets, settings
from txl_jax.runs.terminal import Console

# Keys that may differ between hosts.
_PER_HOST = ('data.dir', 'data.path', 'data.vocab_file', 'data.tokenizer')


def prepare(values: ml_collections.ConfigDict) -> sections.Config:
  """Reads the config of a run (`sections.read`) and sets its XLA_FLAGS.

  Must run before the GPU backend starts.
  """
  config = sections.read(values)
  gpus = ('jax_cuda13_plugin', 'jax_cuda12_plugin', 'jax_rocm7_plugin')
  on_gpu = any(map(importlib.util.find_spec, gpus))
  xla_flags = os.environ.get('XLA_FLAGS', '')
  unset = 'xla_gpu_deterministic_ops' not in xla_flags
  if config.deterministic and unset and on_gpu:
    os.environ['XLA_FLAGS'] = f'{xla_flags} --xla_gpu_deterministic_ops=true'
  return config


@contextlib.contextmanager
def opened(
  config: sections.Config,
  folder: str,
  mode: str,
  *,
  changed: Collection[str] = (),
  program: bool = True,
  **fields: Any,
) -> Iterator[Job]:
  """Opens the Job of a mode, with a config from `prepare`.

  With train.init_from, the config takes the keys of that model, except the
  `changed` ones. `program` is False in a notebook or library call, see `Watch`;
  `fields` are further ones of the `Job`.
  """
  hardware.check()
  place = buckets.place(folder, '--workdir')
  console = Console(silent=not processes.is_main())
  watch = Watch(config.watch.lost_seconds, program)
  # The console closes first, because it prints the last line of a failure.
  with watch, contextlib.closing(console):
    flat = {'--mode': mode, '--workdir': folder} | settings.flatten(config)
    processes.check_same({k: v for k, v in flat.items() if k not in _PER_HOST})
    if config.train.init_from:
      from txl_jax.convert import pretrained

      new = mode in ('train', 'summary')
      config, lines = pretrained.adopt(config, place, changed, new)
      for line in lines:
        console.say(line)
    yield Job(config, place, console, watch, changed=changed, **fields)
