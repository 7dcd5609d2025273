"""What the real program shows on a terminal."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

from tests import programs

pytestmark = pytest.mark.thorough

OPTIONS = 'train.steps=20', 'train.eval_every=10'
# What draws: it is as wide as nothing.
ESCAPES = re.compile(r'\x1b\[[\d;?]*[A-Za-z]')


class Terminal:
  """A terminal of a program, and what it was sent so far."""

  def __init__(self, columns):
    self.sent = b''
    self._ours, self.theirs = pty.openpty()
    size = struct.pack('HHHH', 24, columns, 0, 0)
    fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
    self._reader = threading.Thread(target=self._read, daemon=True)
    self._reader.start()

  def _read(self):
    with contextlib.suppress(OSError):
      while data := os.read(self._ours, 1 << 16):
        self.sent += data

  def wait_for(self, text, process):
    deadline = time.monotonic() + 120
    while text.encode() not in self.sent:
      assert process.poll() is None and time.monotonic() < deadline, self.sent
      time.sleep(0.01)

  def lines(self):
    """All that was drawn, line by line, once the program has ended."""
    os.close(self.theirs)
    self._reader.join(20)
    os.close(self._ours)
    text = ESCAPES.sub('', self.sent.decode())
    return [x.rstrip() for x in re.split(r'[\r\n]+', text)]


def start(terminal, arguments, **streams):
  """A program on a terminal, but for streams that go elsewhere."""
  every = dict.fromkeys(('stdin', 'stdout', 'stderr'), terminal.theirs)
  environment = programs.environment() | {'TERM': 'xterm'}
  for name in ('COLUMNS', 'NO_COLOR', 'TTY_COMPATIBLE', 'TTY_INTERACTIVE'):
    environment.pop(name, None)
  # Whoever runs the tests may ignore it, and so would the program.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    return subprocess.Popen(
      arguments, cwd=programs.ROOT, env=environment, **(every | streams)
    )
  finally:
    signal.signal(signal.SIGINT, before)


def names(lines):
  """The phases that lines are of, as they were seen first."""
  shown = [re.match(r'[-\\|/] ([a-z ]*[a-z])', x) for x in lines]
  return [*dict.fromkeys(m[1] for m in shown if m)]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a run, and the lines that it has shown."""
  folder = tmp_path_factory.mktemp('shown')
  programs.write_corpus(folder)
  terminal = Terminal(80)
  process = start(terminal, programs.command(folder, *OPTIONS))
  assert process.wait(240) == 0, terminal.sent
  return folder, terminal, terminal.lines()


def test_training(trained):
  _, terminal, lines = trained
  wanted = 'preparing the corpus', 'compiling', 'initialising parameters'
  wanted += 'training', 'evaluating', 'saving'
  found = names(lines)
  assert [x for x in found if x in wanted] == [*wanted]
  kept = [x for x in lines if re.match(r'step \d+: validation', x)]
  assert [x.split(':')[0] for x in kept] == ['step 10', 'step 20']
  training = [x for x in lines if 'training' in x and ' bpc' in x]
  assert re.match(r'. training  \S+ left  step \d+/20  loss \d', training[0])
  assert all(len(x) < 80 for x in lines if re.match(r'[-\\|/] ', x))
  assert b'\x1b[?25l' not in terminal.sent, 'the cursor is never hidden'


def test_evaluation_with_its_output_elsewhere(trained):
  folder, *_ = trained
  terminal = Terminal(40)
  arguments = programs.command(folder, *OPTIONS, flags=['--mode=eval'])
  process = start(terminal, arguments, stdout=subprocess.PIPE)
  out, _ = process.communicate(timeout=120)
  assert process.returncode == 0
  assert out.startswith(b'validation: ') and out.count(b'\n') == 1
  lines = terminal.lines()
  assert {'restoring the model', 'scoring'} <= {*names(lines)}
  assert any(x.startswith('checkpoint: step 20') for x in lines)
  assert all(len(x) < 40 for x in lines if re.match(r'[-\\|/] ', x))


def test_ctrl_c(trained):
  folder, *_ = trained
  terminal = Terminal(80)
  slow = 'eval.segment_len=1', 'eval.segments_per_call=1', 'eval.split=train'
  flags = ['--mode=eval']
  arguments = programs.command(folder, *OPTIONS, *slow, flags=flags)
  process = start(terminal, arguments)
  terminal.wait_for('scoring', process)
  time.sleep(0.5)
  process.send_signal(signal.SIGINT)
  assert process.wait(20) == 130
  lines = terminal.lines()
  assert lines[-2:] == ['interrupted', '']
  # Nothing is drawn after it, and the line before it is gone.
  assert re.search(rb'\x1b\[2K\s*interrupted\s*$', terminal.sent)
