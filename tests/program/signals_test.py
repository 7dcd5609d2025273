"""Ctrl-C and the standard streams, in programs of their own."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests import programs

ENVIRONMENT = os.environ | {
  'PYTHONPATH': str(programs.ROOT),
  'PYTHONUNBUFFERED': '',  # it would hide what is left in buffers
}


def program(body):
  """The command of a program as ours are, which does this."""
  return [
    sys.executable,
    '-c',
    'from txl_jax.program import signals\nsignals.begin()\n'
    'import os, signal, sys, time\nfrom txl_jax.program import errors\n'
    'with errors.reporting():\n' + textwrap.indent(body, '  '),
  ]


def ended(body, redirected='', first=':', **environment):
  """The program with its streams redirected as by a shell."""
  run = f'{first}; exec "$@" {redirected}'
  return subprocess.run(
    ['bash', '-c', run, 'bash', *program(body)],
    cwd=programs.ROOT,
    env=ENVIRONMENT | environment,
    capture_output=True,
    timeout=60,
    check=False,
  )


@pytest.mark.parametrize('unbuffered', ['', '1'])
@pytest.mark.parametrize('size', [100, 100_000])
def test_output_that_cannot_be_written(size, unbuffered):
  body = f"print('a' * {size})\nprint('more', flush=True)"
  done = ended(body, '>/dev/full', PYTHONUNBUFFERED=unbuffered)
  assert (done.returncode, done.stderr) == (
    1,
    b"error: [Errno 28] No space left on device: 'standard output'; "
    b'TXL_JAX_TRACEBACK=1 in the environment prints the traceback\n',
  )


def test_output_that_is_closed():
  for redirected, errors in (
    ('>&-', b'error: standard output is closed; add >FILE\n'),
    ('>&- 2>&-', b''),
  ):
    done = ended("os.write(2, b'not reached')", redirected)
    assert (done.returncode, done.stderr) == (1, errors)


def test_output_and_errors_that_are_closed(tmp_path):
  """The program ends as it does without output, not by a traceback."""
  code = (
    'from txl_jax.program import signals\ntry: signals.begin()\n'
    f'except SystemExit as e: open("{tmp_path}/ended", "w").write(str(e))'
  )
  run = f"exec {sys.executable} -c '{code}' <&- >&- 2>&-"
  subprocess.run(['bash', '-c', run], env=ENVIRONMENT, timeout=60)
  assert (tmp_path / 'ended').read_text() == '1'


def test_lines_that_are_written_at_once():
  """Those of errors; with python -u, all."""
  body = "print('out')\nprint('a line', file=sys.stderr)\nos._exit(0)"
  for unbuffered, out in ('', b''), ('1', b'out\n'):
    done = ended(body, PYTHONUNBUFFERED=unbuffered)
    assert (done.stdout, done.stderr) == (out, b'a line\n')


@pytest.mark.parametrize('closed', ['2>&-', '<&- 2>&-'])
def test_errors_that_are_closed(closed, tmp_path):
  """A file that is opened does not get the text that is for people."""
  body = (
    f"file = open('{tmp_path}/file', 'w')\n"
    "os.system('echo of a native library >&2')\n"
    "print('for people', file=sys.stderr)\nfile.write('own')\nprint('done')"
  )
  done = ended(body, closed)
  assert (done.returncode, done.stdout, done.stderr) == (0, b'done\n', b'')
  assert (tmp_path / 'file').read_text() == 'own'
  done = ended("raise errors.UserError('x')", closed)
  assert (done.returncode, done.stdout, done.stderr) == (1, b'', b'')


def test_errors_that_cannot_be_written():
  """Not even by a library, or in a traceback."""
  body = (
    "import logging, tqdm\nlogging.error('x')\nlist(tqdm.tqdm([1] * 3))\n"
    "print('a' * 100_000, file=sys.stderr, flush=True)\n"
    "os.system('echo of a native library >&2')\nprint('done')"
  )
  done = ended(body, '2>/dev/full')
  assert (done.returncode, done.stdout, done.stderr) == (0, b'done\n', b'')
  done = ended("print('done')\nraise ValueError", '2>/dev/full')
  assert (done.returncode, done.stdout, done.stderr) == (1, b'done\n', b'')


@pytest.mark.parametrize(
  'environment',
  [
    {'PYTHONIOENCODING': 'ascii'},
    {'LC_ALL': 'C', 'PYTHONCOERCECLOCALE': '0', 'PYTHONUTF8': '0'},
  ],
)
def test_a_character_that_the_encoding_lacks(environment):
  body = "for f in sys.stdout, sys.stderr: print('a\\xe9\\udcff', file=f)"
  done = ended(body, **environment)
  assert done.returncode == 0
  assert done.stdout == done.stderr == b'a\\xe9\\udcff\n'


def test_a_reader_that_has_enough():
  done = ended("print('a' * 100)", '> >(true)')
  assert done.stderr == b''


@contextlib.contextmanager
def started(command, path='', errors=subprocess.PIPE):
  """A program that has said that it is ready."""
  # Also where a shell runs pytest in the background, it hears Ctrl-C.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  with subprocess.Popen(
    command,
    cwd=programs.ROOT,
    env=ENVIRONMENT | {'PYTHONPATH': f'{path}:{programs.ROOT}'},
    stdout=subprocess.PIPE,
    stderr=errors,
    bufsize=0,  # what is behind that line is left to `communicate`
  ) as process:
    signal.signal(signal.SIGINT, before)
    try:
      assert process.stdout.read(6) == b'ready\n'
      yield process
    finally:
      process.kill()


def assert_interrupted(process):
  """Ends it by Ctrl-C; what it has written besides to standard output."""
  process.send_signal(signal.SIGINT)
  out, errors = process.communicate(timeout=20)
  assert (process.returncode, errors) == (130, b'interrupted\n')
  return out


PROGRAMS = 'main', 'prepare', 'report', 'convert'
READY = "os.write(1, b'ready\\n')\n"


@pytest.mark.parametrize(
  'body',
  [
    'while True: pass',
    'time.sleep(60)',
    # Where a KeyboardInterrupt would be swallowed.
    'class A:\n  def __del__(self): time.sleep(60)\nA()\nprint("goes on")',
    'while True:\n  try: time.sleep(60)\n  except BaseException: pass',
    'import threading\nthreading.Thread(target=time.sleep, args=[60]).start()',
    'import atexit\natexit.register(time.sleep, 60)',
  ],
)
def test_ctrl_c(body):
  with started(program(f'print("begun")\n{READY}{body}')) as process:
    time.sleep(0.1)
    # What was written before is not lost.
    assert assert_interrupted(process) == b'begun\n'


def test_ctrl_c_where_nobody_reads():
  """The pipe is full: a second one does not wait for who reads it."""
  body = (
    f'{READY}os.set_blocking(1, False)\ntry:\n'
    '  while os.write(1, b"a" * 100_000): pass\n'
    'except BlockingIOError: os.set_blocking(1, True)\n'
    'print("a")\ntime.sleep(60)'
  )
  with started(program(body)) as process:
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == b'interrupted\n'


def test_ctrl_c_on_a_terminal():
  """What it ends is a line of its own, though one is open."""
  ours, theirs = pty.openpty()
  body = f'print("half", end="", file=sys.stderr, flush=True)\n{READY}'
  with started(program(f'{body}time.sleep(60)'), errors=theirs) as process:
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
  seen = b''
  while b'interrupted' not in seen:  # a terminal may hand it over in pieces
    seen += os.read(ours, 100)
  assert seen.split() == [b'half', b'interrupted']
  os.close(ours), os.close(theirs)


def test_ctrl_c_that_waits_for_cleaning_up(tmp_path):
  body = (
    'from txl_jax.program import files\nimport pathlib\n'
    f'with files.new_folder(pathlib.Path("{tmp_path}/x")) as folder:\n'
    f'  {READY.strip()}\n  time.sleep(60)'
  )
  with started(program(body)) as process:
    assert list(tmp_path.iterdir())
    assert_interrupted(process)
  assert not list(tmp_path.iterdir())


def test_ctrl_c_that_is_ignored_stays_so():
  body = "print('done')\nos.kill(os.getpid(), signal.SIGINT)"
  done = ended(body, first='trap "" INT')
  assert (done.returncode, done.stdout) == (0, b'done\n')


@pytest.mark.parametrize(
  'module',
  [*(f'txl_jax.{x}' for x in PROGRAMS), 'benchmarks'],
)
def test_ctrl_c_in_the_imports(module, tmp_path):
  for name in ('jax', 'numpy'):  # whichever is the first
    (tmp_path / f'{name}.py').write_text(
      'import os, time\nos.write(1, b"ready\\n")\ntime.sleep(60)\n'
    )
  command = [sys.executable, '-m', module]
  with started(command, path=tmp_path) as process:
    assert_interrupted(process)


def test_ctrl_c_before_the_installed_command_has_found_its_program():
  code = (
    'import os, runpy, time\nfrom txl_jax.__main__ import entry\n'
    'def run_module(*_, **__): os.write(1, b"ready\\n"), time.sleep(60)\n'
    'runpy.run_module = run_module\nentry()'
  )
  with started([sys.executable, '-c', code]) as process:
    assert_interrupted(process)


def test_little_is_imported_before_ctrl_c_is_handled():
  code = (
    'import sys\nbefore = {*sys.modules}\nimport txl_jax.program.signals\n'
    'print(*{*sys.modules} - before)'
  )
  # Without packages that import much as Python starts.
  done = programs.run([sys.executable, '-S', '-c', code])
  names = {*done.stdout.split()}
  assert {'txl_jax', 'contextlib', 'signal'} <= names
  assert {'re', 'typing', 'importlib.util', 'inspect'}.isdisjoint(names)
