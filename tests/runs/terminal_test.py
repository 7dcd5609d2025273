"""The lines that a terminal shows, at several widths, and those of a file."""

import io
import re
import sys
import time

import pytest

from txl_jax.program import signals
from txl_jax.runs import terminal as console_lib

PARTS = '2.1034 bpc', '12,345 tokens/s', 'lr 0.003', 'epoch 0'


class Terminal(io.StringIO):
  """Standard error, if it is a terminal."""

  encoding = 'utf-8'

  def isatty(self):
    return True


@pytest.fixture
def begin(monkeypatch):
  """Begins a console on a terminal, and returns both.

  Not before the test: pytest has a standard error of its own until then.
  """

  def begin(width=80, **environment):
    environment = {'TERM': 'xterm', 'COLUMNS': f'{width}'} | environment
    for name, value in environment.items():
      monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, 'stderr', terminal)
    return console_lib.Console(), terminal

  return begin


def training(left=725.0):
  phase = console_lib.Phase('training', 3000, 'step {}/{}')
  phase.reach(1200)
  phase.left, phase.parts = lambda: left, PARTS
  return phase


def test_a_line_of_training():
  line = training().line()
  assert line[0] in '-\\|/' and line[2:] == (
    'training  12m05s left  step 1200/3000  2.1034 bpc  12,345 tokens/s  '
    'lr 0.003  epoch 0'
  )


@pytest.mark.parametrize('width', [12, 40, 80, 120])
def test_no_line_is_wider_than_the_terminal(begin, width):
  console, terminal = begin(width)
  with console.phase('training', 3000, 'step {}/{}') as phase:
    phase.reach(1200)
    phase.parts = PARTS
    with console.phase('evaluating', 10_000, console_lib.TOKENS) as inner:
      inner.reach(5000)
      console.say('x')
  text = re.sub(r'\x1b\[[\d;]*[A-Za-z]', '', terminal.getvalue())
  widths = [len(line) for line in re.split(r'[\r\n]', text)]
  assert max(widths) == width - 1 if width < 80 else max(widths) < width
  assert 'evaluating'[: width - 4] in text


def test_what_is_left_counts_from_the_first_report(monkeypatch):
  """What came before it has compiled; between two reports it counts down."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  phase = console_lib.Phase('scoring', 100, '{} of {}')

  def at(seconds, done=None):
    now[0] = seconds
    if done is not None:
      phase.reach(done)
    return re.split('  +', phase.line()[2:])

  assert at(30) == ['scoring', '30s']
  assert at(60, 20) == ['scoring', '1m00s', '20 of 100']
  assert at(70, 40) == ['scoring', '30s left', '40 of 100']
  assert at(75) == ['scoring', '25s left', '40 of 100']
  assert at(105) == ['scoring', '0s left', '40 of 100']
  phase.restart(40)
  assert at(110, 50) == ['scoring', '1m50s', '50 of 100']
  assert at(112, 52) == ['scoring', '48s left', '52 of 100']
  # At a standstill, and of what has no known end, it tells the time it took.
  phase.restart(60)
  at(120, 60)
  assert at(121, 60) == ['scoring', '2m01s', '60 of 100']
  assert at(122, 50) == ['scoring', '2m02s', '50 of 100']
  phase.total = 0
  assert at(125, 70) == ['scoring', '2m05s', '70 of 0']
  signs = []
  for now[0] in 2.0, 2.25, 2.5, 2.75, 3.0:  # it turns once a second
    signs.append(phase.line()[0])
  assert signs == ['-', '\\', '|', '/', '-']


def test_phases_leave_nothing_behind(begin):
  console, terminal = begin()
  assert console.live
  with console.phase('training', 10, 'step {}/{}') as phase:
    phase.reach(1)
    with console.phase('evaluating'):
      console.say('stays')
      print('warning: of somebody', file=sys.stderr)
    assert sys.stderr is not terminal
  assert sys.stderr is terminal
  text = terminal.getvalue()
  assert '\x1b[?25l' not in text, 'the cursor is never hidden'
  assert 'training' in text and 'evaluating' in text
  stays = [s for s in text.split('\n') if 'stays' in s or 'somebody' in s]
  assert len(stays) == 2
  # The lines are erased.
  assert text.endswith('\r\x1b[2K\x1b[1A\x1b[2K\r')


def test_an_error_leaves_nothing_behind(begin):
  console, terminal = begin()
  with pytest.raises(ZeroDivisionError), console.phase('training'):
    raise ZeroDivisionError
  assert sys.stderr is terminal
  with console.phase('again'):
    console.progress('a line')
    signals.clear()
    assert sys.stderr is terminal


def test_what_is_said_is_shown_as_it_is(begin, capsys):
  console, terminal = begin()
  odd = 'a[b]c[/b] :smile: "12"'
  with console.phase('training'):
    console.say('x' * 100)
    sys.stderr.write(odd)
    sys.stderr.flush()
    print(odd)
  assert 'x' * 100 in terminal.getvalue() and odd in terminal.getvalue()
  assert capsys.readouterr().out == odd + '\n'


@pytest.mark.parametrize('name', ['dumb', 'unknown'])
def test_a_dumb_terminal_gets_plain_lines(begin, name):
  console, terminal = begin(TERM=name)
  with console.phase('compiling', plain='compiles'):
    console.say('stays')
  assert terminal.getvalue() == 'compiles\nstays\n'


def test_forced_colours_do_not_make_a_terminal(monkeypatch):
  """As CI services set them."""
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  with console.phase('compiling', plain='compiling'):
    console.say('step 9')
  assert sys.stderr.getvalue() == 'compiling\nstep 9\n'


def test_an_encoding_without_more_than_ascii(begin, monkeypatch):
  monkeypatch.setattr(Terminal, 'encoding', 'ascii')
  console, terminal = begin()
  with console.phase('training', 10, 'step {}/{}') as phase:
    phase.reach(1)
    console.say('step 9')
  assert terminal.getvalue().isascii()


def test_a_console_in_a_file(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  assert not console.live
  console.progress('one')
  console.progress('two')
  console.progress('soon', pause=60.0)
  console.say('three')
  console = console_lib.Console()
  with console.phase('compiling', plain='compiles'):
    pass
  with console.phase('scoring', 20, console_lib.TOKENS) as phase:
    phase.reach(5)
    console.reach(phase, 10, pause=60.0)
    console.reach(phase, 20, pause=60.0)
    console.figures(phase, ['2.5 bpc', 'lr 0.1'], 'step 3')
  assert sys.stderr.getvalue().splitlines() == [
    'one',
    'two',
    'three',
    'compiles',
    '10 of 20 tokens',
    'step 3  2.5 bpc  lr 0.1',
  ]


def test_progress_is_told_again_after_a_pause(monkeypatch, capsys):
  console = console_lib.Console()
  for now in 1000.0, 1059.5, 1060.0, 1119.5, 1121.0:
    monkeypatch.setattr(time, 'monotonic', lambda now=now: now)
    console.progress(f'at {now}', pause=60.0)
  err = capsys.readouterr().err
  assert err == 'at 1000.0\nat 1060.0\nat 1121.0\n'


def test_a_silent_console(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console(silent=True)
  with console.phase('compiling', plain='compiles') as phase:
    console.reach(phase, 10, pause=0.0)
    console.figures(phase, ['figures'], 'step 3')
  console.say('said')
  assert sys.stderr.getvalue() == ''


@pytest.mark.parametrize(
  'seconds, text',
  [
    (-3, '0s'),
    (59.9, '59s'),
    (60, '1m00s'),
    (725, '12m05s'),
    (3599, '59m59s'),
    (3600, '1h00m'),
    (12_000, '3h20m'),
    (86_399, '23h59m'),
    (86_400, '1d00h'),
    (187_200, '2d04h'),
    (259_199, '2d23h'),
  ],
)
def test_duration(seconds, text):
  assert console_lib.duration(seconds) == text
