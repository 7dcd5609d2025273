r"""Trains, evaluates, samples: the entry point of txl_jax.

python -m txl_jax.main --config=pystdlib_tiny
python -m txl_jax.main --config=enwik8_24l --workdir=runs/e24
python -m txl_jax.main --workdir=runs/e24 --mode=eval --config.eval.split=test

Without --config, the config of the run in --workdir is used, or, for a new run,
that of the run in --config.train.init_from.

Each of several processes runs the same command. Outside of a known cluster,
they also need --coordinator=HOST:PORT --num_processes=N --process_id=I.
"""

from txl_jax.program import huge_pages, signals

if __name__ == '__main__':
  huge_pages.restart('txl_jax.main', 'txl_jax', 'txl-jax')
  signals.begin()  # the other imports take a second

import difflib
import importlib
import sys

from absl import app, flags
from ml_collections import config_flags

import txl_jax
from txl_jax.experiment import config_file, sections
from txl_jax.modes import opening
from txl_jax.parallel import processes, watchdog
from txl_jax.program import command_line, errors, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir

# {mode: its module}, which is imported only for that mode.
MODES = {
  'train': 'modes.train',
  'eval': 'modes.evaluate',
  'generate': 'modes.generate',
  'summary': 'modes.summary',
  'score': 'modes.score',
  'export': 'modes.export',
  'attention_length': 'paper.attention_length',
  'recl': 'paper.recl',
  'eval_speed': 'paper.eval_speed',
  'attention_maps': 'paper.attention_maps',
}

# Flags that may name a run with the config to use, if --config is missing.
_SOURCES = 'workdir', 'config.train.init_from'
_NEW_RUN = 'type --config=NAME, such as --config=pystdlib_tiny, for a new run'
# {flag: the only mode that reads it}.
_OF_MODE = {'text': 'score', 'score_file': 'score', 'export_file': 'export'}

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'Name of a config, such as enwik8_24l, or path of a file, such as ./mine.py; '
  'default: the config of the run in --workdir. Set any key with '
  '--config.section.key=value.',
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
  'Where --mode=score writes each token and its nll: if it ends in .html, a '
  'page with colours, else JSON lines.',
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


def _parse(argv: list[str]) -> list[str]:
  """Parses the flags; a bad flag is a one-line UserError."""
  if '--version' in argv[1:]:
    print(f'txl_jax {txl_jax.__version__}')
    sys.exit(0)
  sys.argv = argv = _with_config(argv)  # where ml_collections looks
  rest = command_line.parse(argv, nearest=_nearest)
  if _CONFIG.value is None:
    why = '--config is missing'
    if _WORKDIR.value:
      why = f'--workdir={_WORKDIR.value} holds no run'
    raise UserError(f'{why}; {_NEW_RUN}, or the --workdir=FOLDER of a run')
  for name, mode in _OF_MODE.items():
    if flags.FLAGS[name].present and _MODE.value != mode:
      hint = '; a prompt is --config.generate.prompt=…' * (name == 'text')
      raise UserError(f'only --mode={mode} reads --{name}{hint}')
  return rest


def _with_config(argv: list[str]) -> list[str]:
  """The arguments with --config first; by default, that of the run."""
  name = None
  rest = []
  values = {}
  arguments = iter(flags.FLAGS.read_flags_from_files(argv[1:]))
  for x in arguments:
    flag, is_whole, value = x.lstrip('-').partition('=')
    if x.startswith('-') and flag in ('config', 'workdir') and not is_whole:
      value = next(arguments, '')
      x = f'{x}={value}'
    if x.startswith('-') and flag == 'config':
      name = value
    else:
      rest.append(x)
      values[flag] = value
  sources = {} if name else {k: x for k, x in values.items() if k in _SOURCES}
  for flag in filter(sources.get, _SOURCES):
    name = name or workdir.own_config(sources[flag])
    if name and 'workdir' not in values:
      raise UserError('--workdir is missing: name a folder for the new run')
  if sources and not name and any(x.startswith('config.') for x in values):
    searched = ', '.join(f'--{k}={x}' for k, x in sources.items())
    raise UserError(f'no run with a config was found: {searched}; {_NEW_RUN}')
  return [argv[0], *([f'--config={name}'] if name else []), *rest]


def _nearest(name: str) -> str:
  """A command-line hint for an unknown flag."""
  if name.startswith('config.'):
    return 'type --config=NAME, or the --workdir=FOLDER of a run'
  mode = next((x[7:] for x in sys.argv if x.startswith('--mode=')), '')
  if key := settings.nearest_key(sections.defaults(), name, mode):
    return f'type --config.{key}=…'
  near = difflib.get_close_matches(name, [*flags.FLAGS])
  return f'type --{near[0]}=…' if near else '--help lists all flags'


def main(_: list[str]) -> None:
  """Runs the mode that the flags ask for."""
  mode = importlib.import_module(f'txl_jax.{MODES[_MODE.value]}')
  config = opening.prepare(_CONFIG.value)
  processes.start(
    mode=_DISTRIBUTED.value,
    coordinator=_COORDINATOR.value,
    processes=_PROCESSES.value,
    process=_PROCESS.value,
    lost_seconds=config.watch.lost_seconds,
  )
  file = config_flags.get_config_filename(flags.FLAGS['config'])
  with opening.opened(
    config,
    folder=_WORKDIR.value or f'runs/{config_file.name(file)}',
    mode=_MODE.value,
    export_file=_EXPORT_FILE.value,
    text=_TEXT.value,
    score_file=_SCORE_FILE.value,
    changed=config_file.overridden(),
  ) as opened:
    mode.run(opened)


def entry() -> None:
  """The program; a UserError is one line and exit status 1."""
  try:
    with command_line.without_echoes(), errors.reporting():
      try:
        app.run(main, flags_parser=_parse)
      except watchdog.Stopped as e:
        if processes.is_main():
          print(e, file=sys.stderr)
        sys.exit(128 + e.signal)
  except SystemExit as e:
    if e.code == 1:  # threads of a failed save would print tracebacks
      signals.end(1)
    raise


if __name__ == '__main__':
  entry()
