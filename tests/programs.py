"""Running the programs as a user does: in processes of their own, or here."""

import atexit
import concurrent.futures
import contextlib
import io
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from unittest import mock

from absl.testing import flagsaver

from tests import quick
from txl_jax import main
from txl_jax.program.errors import reporting
from txl_jax.runs import metrics_log

ROOT = pathlib.Path(__file__).parents[1]


def _cache():
  """Folder of compiled programs: that of all of pytest, or one of our own."""
  if shared := os.environ.get(quick.CACHE):
    return shared
  own = tempfile.mkdtemp()
  atexit.register(shutil.rmtree, own, ignore_errors=True)
  return own


_CACHE = _cache()

# A model that trains in seconds, on a corpus that is made in the test.
TINY = (
  'model.n_layer=2', 'model.d_model=16', 'model.n_head=2', 'model.d_head=8',
  'model.d_ff=32', 'model.mem_len=8', 'train.batch_size=4',
  'train.segment_len=8', 'train.eval_batch_size=2', 'train.eval_tokens=400',
  'train.log_every=5', 'train.eval_every=30', 'train.save_every=10',
  'train.steps=60', 'optim.lr=1e-3', 'eval.segment_len=8',
  'eval.model.mem_len=16', 'generate.segment_len=8',
  'generate.model.mem_len=16', 'generate.max_new_tokens=30',
  'data.corpus=text',
)  # fmt: skip


def environment():
  """One simulated CPU device, as a laptop has, and no user's settings."""
  return os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': quick.FLAGS,
    'PYTHONPATH': str(ROOT),
    # The same small programs are started again and again.
    'JAX_COMPILATION_CACHE_DIR': _CACHE,
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


def write_corpus(folder, size=20_000):
  """A text of words in a random order, with a letter of two bytes."""
  import numpy as np

  words = ['the', 'memory', 'of', 'a', 'ségment', 'is', 'read', 'by', 'next']
  order = np.random.default_rng(0).integers(len(words), size=size)
  text = ' '.join(words[i] for i in order)
  lines = '\n'.join(text[i : i + 70] for i in range(0, size, 70))
  path = folder / 'corpus.txt'
  path.write_text(lines)
  return path


def command(cwd, *overrides, config='configs/common.py', flags=()):
  """The command line of a tiny run; overrides are 'section.key=value'."""
  fixed = (*TINY, f'data.path={cwd}/corpus.txt', f'data.dir={cwd}/data')
  return [
    sys.executable,
    '-m',
    'txl_jax.main',
    f'--config={config}',
    f'--workdir={cwd}/run',
    *flags,
    *(f'--config.{o}' for o in (*fixed, *overrides)),
  ]


# Fields of the log that measure time.
CLOCK = {'time', 'seconds', 'tokens_per_second', 'mfu'}
CLOCK |= {'data_wait', 'dispatch', 'device_wait'}


def record(folder):
  """The lines of the log of a run, without what measures time."""
  return [
    {k: r[k] for k in r.keys() - CLOCK}
    for r in metrics_log.read(folder / 'run/metrics.jsonl')
  ]


def limited(arguments, blocks):
  """The command under a limit of file sizes, in blocks of 512 bytes.

  A write beyond it fails as on a full disk.
  """
  return ['sh', '-c', f'ulimit -f {blocks}; exec "$@"', 'sh', *arguments]


def run(arguments, timeout=240, **options):
  """Runs a command to its end; the CompletedProcess with text output."""
  return subprocess.run(
    arguments,
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
    **options,
  )


def here(arguments, **options):
  """Runs a command of `txl_jax.main` in this process; options of `within`.

  Returns:
    A CompletedProcess with text output.
  """
  argv = ['main', *arguments[3:]]
  return within(argv, lambda: main.main(main._parse(argv)), **options)


@contextlib.contextmanager
def _only(devices):
  """JAX has the first of its devices alone."""
  import jax

  found = jax.devices
  with (
    mock.patch.object(jax, 'devices', lambda *of: found(*of)[:devices]),
    mock.patch.object(jax, 'device_count', lambda: len(jax.devices())),
  ):
    yield


def within(argv, run, input='', devices=1):
  """Runs a program's function in this process, as if called with argv.

  Args:
    argv: list of str.
    run: the function, without arguments.
    input: text on standard input.
    devices: that it has; fewer take less long.

  Returns:
    A CompletedProcess with text output.
  """
  out, errors, status = io.StringIO(), io.StringIO(), 0
  given = io.TextIOWrapper(io.BytesIO(input.encode()), 'utf-8')
  with (
    _only(devices),
    flagsaver.flagsaver(),
    mock.patch.object(sys, 'argv', argv),
    mock.patch.object(sys, 'stdin', given),
    contextlib.redirect_stdout(out),
    contextlib.redirect_stderr(errors),
  ):
    try:
      with reporting():
        run()
    except SystemExit as e:
      status = e.code
  return subprocess.CompletedProcess(
    argv, status, out.getvalue(), errors.getvalue()
  )


def make_pipe(path):
  """A named pipe; whoever opens it to read does not wait for ever."""
  os.mkfifo(path)
  threading.Thread(target=path.write_bytes, args=[b''], daemon=True).start()
  return path


def assert_refused(done, *words):
  """One line on standard error, a status, no traceback."""
  assert done.returncode == 1, done.stderr
  last = done.stderr.splitlines(keepends=True)[-1]
  assert last.startswith('error: ')
  assert 'Traceback' not in done.stderr
  for word in words:
    assert word in last


def together(arguments, processes, devices, last=(), blocks=()):
  """Starts processes that run one command together.

  Args:
    arguments: the command.
    processes: how many; one is started without the flags of several.
    devices: of each.
    last: more flags for the last process.
    blocks: {process: its limit, see `limited`}.

  Returns:
    A list of subprocess.Popen with text output.
  """
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  simulated = f'--xla_force_host_platform_device_count={devices} {quick.FLAGS}'

  def start(process):
    flags = (
      f'--coordinator=127.0.0.1:{port}',
      f'--num_processes={processes}',
      f'--process_id={process}',
      *(last if process == processes - 1 else ()),
    )
    whole = [*arguments, *(flags if processes > 1 else ())]
    return subprocess.Popen(
      limited(whole, blocks[process]) if process in blocks else whole,
      cwd=ROOT,
      env=environment() | {'XLA_FLAGS': simulated},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  return [start(process) for process in range(processes)]


def ends(started, timeout=400):
  """What processes have printed, by the time all have ended.

  Returns:
    A list of (status, standard output, standard error).
  """
  try:
    with concurrent.futures.ThreadPoolExecutor(len(started)) as pool:
      printed = pool.map(lambda p: p.communicate(timeout=timeout), started)
      return [(p.returncode, *text) for p, text in zip(started, printed)]
  finally:
    for process in started:
      process.kill()
