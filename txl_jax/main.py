r"""Trains, evaluates, samples: the entry point of txl_jax.

python -m txl_jax.main --config=pystdlib_tiny
python -m txl_jax.main --config=enwik8_24l --workdir=runs/e24
python -m txl_jax.main --config=runs/e24/config.py --workdir=runs/e24 \
  --mode=eval --config.eval.split=test

Each of several processes runs the same command; where no cluster tells them who
they are, with --coordinator=HOST:PORT --num_processes=N --process_id=I besides.
"""

from txl_jax.program import errors, terminal

if __name__ == '__main__':
  terminal.begin()  # the other imports take a second

import contextlib
import importlib.util
import os
import re
import sys

from absl import app, flags
from ml_collections import config_flags

import txl_jax
from txl_jax.modes import (
  evaluate,
  export,
  generate,
  score,
  sections,
  summary,
  train,
)
from txl_jax.modes.job import Job
from txl_jax.modes.measurements import (
  attention_length,
  attention_maps,
  eval_speed,
  recl,
)
from txl_jax.parallel import hardware, processes, watchdog
from txl_jax.program import buckets, command_line, config_file, settings
from txl_jax.program.errors import UserError
from txl_jax.runs.console import Console

MODES = {
  'train': train.run,
  'eval': evaluate.run,
  'generate': generate.run,
  'summary': summary.run,
  'score': score.run,
  'export': export.run,
  'attention_length': attention_length.run,
  'recl': recl.run,
  'eval_speed': eval_speed.run,
  'attention_maps': attention_maps.run,
}

# Keys that may differ from one host to another.
_OWN = ('data.dir', 'data.path', 'data.vocab_file')

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'Name of a config, such as enwik8_24l, or path of a file, such as ./mine.py; '
  'set any key with --config.section.key=value.',
)
flags.FLAGS['config'].parser = config_file.Parser()
_WORKDIR = flags.DEFINE(
  command_line.Path('gs://'),
  'workdir',
  '',
  'Folder of the run, or gs://BUCKET/NAME; default: runs/ and the name of the '
  'config, such as runs/wt103_128m-shaw.',
)
_MODE = flags.DEFINE_enum('mode', 'train', list(MODES), 'What to do.')
_EXPORT_FILE = flags.DEFINE(
  command_line.Path(),
  'export_file',
  'model.npz',
  'Where --mode=export writes the parameters.',
)
_TEXT = flags.DEFINE(
  command_line.Path(), 'text', '', 'File that --mode=score reads; - is stdin.'
)
_SCORE_FILE = flags.DEFINE(
  command_line.Path(),
  'score_file',
  '',
  'Where --mode=score writes each token and its nll, as JSON lines.',
)
_DISTRIBUTED = flags.DEFINE_enum(
  'distributed', 'auto', ['auto', 'off'], 'Whether to join a cluster.'
)
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'HOST:PORT of process 0; the port must be free there.'
)
_PROCESSES = flags.DEFINE_integer('num_processes', None, 'Number of processes.')
_PROCESS = flags.DEFINE_integer(
  'process_id', None, 'Number of this process, from 0.'
)
flags.DEFINE_bool('version', False, 'Print the version and exit.')


def _parse(argv):
  """Parses the flags; what is wrong is told in one line."""
  if '--version' in argv[1:]:
    print(f'txl_jax {txl_jax.__version__}')
    sys.exit(0)
  rest = command_line.parse(argv)
  if _CONFIG.value is None:
    raise UserError('--config is missing, say --config=pystdlib_tiny')
  return rest


def _make_deterministic(config):
  """Sets what XLA reads when a GPU is first used."""
  gpus = ('jax_cuda13_plugin', 'jax_cuda12_plugin', 'jax_rocm7_plugin')
  given = os.environ.get('XLA_FLAGS', '')
  free = config.deterministic and 'xla_gpu_deterministic_ops' not in given
  if free and any(map(importlib.util.find_spec, gpus)):
    os.environ['XLA_FLAGS'] = f'{given} --xla_gpu_deterministic_ops=true'


def main(_: list[str]) -> None:
  """Runs the mode that the flags ask for."""
  config, mode = _CONFIG.value, _MODE.value
  settings.expand_home(sections.of(config), config)
  sections.check(config)
  _make_deterministic(config)
  lost_seconds = config.watch.lost_seconds
  own = _COORDINATOR.value, _PROCESSES.value, _PROCESS.value
  processes.start(_DISTRIBUTED.value, *own, lost_seconds)
  hardware.check()
  file = config_flags.get_config_filename(flags.FLAGS['config'])
  own = re.sub(r'[:/\\]', '-', config_file.name(file))
  folder = buckets.place(_WORKDIR.value or f'runs/{own}', '--workdir')
  console = Console(silent=not processes.is_main())
  watch = watchdog.Watch(lost_seconds)
  # The console is closed first: the last line of a failure is one of its own.
  with watch, contextlib.closing(console):
    flat = {'--mode': mode, '--workdir': str(folder)} | settings.flatten(config)
    processes.check_same({k: v for k, v in flat.items() if k not in _OWN})
    given = _EXPORT_FILE.value, _TEXT.value, _SCORE_FILE.value
    MODES[mode](Job(config, folder, console, watch, *given))


def entry() -> None:
  """The program: a mistake of the user is one line and status 1."""
  try:
    with command_line.without_echoes(), errors.told():
      try:
        app.run(main, flags_parser=_parse)
      except watchdog.Stopped as e:
        if processes.is_main():
          print(e, file=sys.stderr)
        sys.exit(128 + e.signal)
  except SystemExit as e:
    if e.code == 1:  # threads that a failed save has left would print pages
      terminal.end(1)
    raise


if __name__ == '__main__':
  entry()
