r"""Starts several processes of one run on this machine.

python launch/local.py --processes=2 --devices=8 -- \
  --config=pystdlib_tiny --workdir=runs/two
python launch/local.py --processes=2 --gpus=0,1,2,3 -- \
  --config=enwik8_12l --workdir=runs/e12
python launch/local.py --processes=2 --devices=2 -- python mine.py

After -- come flags of txl_jax.main, or a whole command; either also gets
--coordinator, --num_processes and --process_id. The devices, simulated CPU
devices or GPUs, are divided evenly. Each line of output begins with the number
of its process. SIGTERM, SIGINT and SIGHUP go to every process. The status is
that of the first process that fails, 128 + N if signal N ended it; the others
get --grace seconds to end by themselves, then SIGTERM.
"""

import contextlib
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

import command_line

LAUNCH = pathlib.Path(__file__).resolve().parent
_POLL = 0.1  # seconds between polls of the processes
_DRAIN = 5  # seconds for the output of a process that has ended


def _parse(argv):
  """(options, command) of a command line; ends the program if invalid."""
  parser = command_line.Parser(__doc__)
  add = parser.add_argument
  add('--processes', type=int, default=2, help='how many; default: 2')
  add(
    '--devices',
    type=int,
    help='simulated CPU devices of all processes; default: one for each',
  )
  add('--gpus', help='GPUs of all processes instead, e.g. 0,1,2,3')
  add('--port', type=int, default=0, help='coordinator port; default: any')
  add(
    '--grace',
    type=float,
    default=120,
    help='seconds for the others after a failure; default: 120',
  )
  add(
    '--kill_after',
    type=float,
    default=30,
    help='seconds from their SIGTERM to SIGKILL; default: 30',
  )
  options, command = parser.parse(argv)
  if not command:
    parser.error('nothing to start: give the flags of txl_jax.main after --')
  parser.positive(options, 'processes')
  n = options.processes
  if options.gpus is None:
    name, found = '--devices', n if options.devices is None else options.devices
    options.shares = [str(found // n)] * n
  else:
    if options.devices is not None:
      parser.error('--devices and --gpus exclude each other')
    gpus = options.gpus.split(',')
    if not all(x.isdecimal() for x in gpus) or len(set(gpus)) < len(gpus):
      parser.refuse('gpus', options.gpus, 'numbers, as in 0,1,2,3')
    name, found = '--gpus', len(gpus)
    options.shares = [
      ','.join(gpus[i * found // n : (i + 1) * found // n]) for i in range(n)
    ]
  if found < 1 or found % n:
    parser.error(f'{name}: {found} for {n} processes; allowed: a multiple')
  if command[0].startswith('-'):
    command = [sys.executable, '-m', 'txl_jax.main', *command]
  return options, command


def _free_port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def _settings(options, process):
  """Environment variables of a process that differ from ours."""
  share = options.shares[process]
  prompt = {'PYTHONUNBUFFERED': '1'}  # lines as they come, not in blocks
  if options.gpus is not None:
    return prompt | {'CUDA_VISIBLE_DEVICES': share}
  ours = f'--xla_force_host_platform_device_count={share}'
  flags = f'{os.environ.get("XLA_FLAGS", "")} {ours}'.strip()
  return prompt | {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}


def _arguments(options, command, process, port):
  """The command line of a process."""
  before = []
  if options.gpus is not None:
    before = [str(LAUNCH / 'with_flags.sh'), 'gpu']
  return [
    *before,
    *command,
    f'--coordinator=127.0.0.1:{port}',
    f'--num_processes={options.processes}',
    f'--process_id={process}',
  ]


def _say(text):
  with contextlib.suppress(OSError):  # the terminal may be gone
    print(text, file=sys.stderr)


class _Group:
  """The processes of a run.

  Each has its own session, so Ctrl-C reaches it only through us.
  """

  def __init__(self):
    self.children = []
    self.readers = []
    self.signals = []  # received so far
    self._print = threading.Lock()

  def start(self, command, settings):
    """Starts one more process; exits with status 127 if that fails."""
    name = len(self.children)
    try:
      child = subprocess.Popen(
        command,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
      )
    except OSError as e:
      self.end(signal.SIGKILL)
      sys.exit(command_line.cannot_start(command, e))
    self.children.append(child)
    for source, sink in (
      (child.stdout, sys.stdout.buffer),
      (child.stderr, sys.stderr.buffer),
    ):
      reader = threading.Thread(
        target=self._copy, args=(name, source, sink), daemon=True
      )
      reader.start()
      self.readers.append(reader)
    # Signals received meanwhile missed this process.
    for number in self.signals:
      child.send_signal(number)

  def _copy(self, name, source, sink):
    for line in source:
      # A closed output must not stop the process that writes.
      with self._print, contextlib.suppress(OSError):
        sink.write(b'[%d] ' % name + line.rstrip(b'\n') + b'\n')
        sink.flush()

  def forward(self, number, _):
    """Handles a signal."""
    self.signals.append(number)
    self.end(number)

  def end(self, number):
    """Signals all processes still running."""
    for child in self.children:
      child.send_signal(number)

  def wait(self, grace, kill_after):
    """Waits for all; the status of the first that failed, or 0.

    Args:
      grace: seconds between a failure and SIGTERM for the others.
      kill_after: seconds between that SIGTERM and SIGKILL.
    """
    first, deadline = 0, None
    number = signal.SIGTERM
    while True:
      codes = [child.poll() for child in self.children]
      failed = [(i, code) for i, code in enumerate(codes) if code]
      if failed and not first:
        name, code = failed[0]
        first = code if code > 0 else 128 - code
        deadline = time.monotonic() + grace
        _say(f'process {name} ended with status {first}')
      if None not in codes:
        break
      if deadline is not None and time.monotonic() > deadline:
        _say('ending the others')
        self.end(number)
        number = signal.SIGKILL
        deadline = time.monotonic() + kill_after
      time.sleep(_POLL)
    # Children of a process may live on and hold the pipe open.
    for reader in self.readers:
      reader.join(_DRAIN)
    return first


def main(argv):
  """Starts the processes and waits for them; returns the status."""
  # Closed streams are None; discard their output.
  nowhere = os.fdopen(os.open(os.devnull, os.O_WRONLY), 'w')
  sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
  options, command = _parse(argv)
  port = options.port or _free_port()
  starts = [
    (_arguments(options, command, i, port), _settings(options, i))
    for i in range(options.processes)
  ]
  if options.dry_run:
    for arguments, settings in starts:
      settings = [f'{k}={v}' for k, v in settings.items()]
      print(shlex.join(['env', *settings, *arguments]))
    return 0
  group = _Group()
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, group.forward)  # else it is under nohup
  for arguments, settings in starts:
    group.start(arguments, settings)
  return group.wait(options.grace, options.kill_after)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
