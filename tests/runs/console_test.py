"""The lines that a terminal shows, at several widths, and those of a file."""

import io
import re
import sys
import time

import pytest
import rich.console
from rich import spinner

from txl_jax.runs import console as console_lib

WIDTHS = 40, 80, 120
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


def recorded(width):
  """A console of rich that keeps what it shows."""
  return rich.console.Console(
    file=Terminal(), record=True, force_terminal=True, width=width
  )


def shown(width, *phases):
  """The lines of phases, as they are drawn."""
  console = recorded(width)
  for phase in phases:
    console.print(console_lib.Row(phase, spinner.Spinner('dots')))
  return console.export_text().splitlines()


def training(left=725.0):
  phase = console_lib.Phase('training', 3000, 'step {}/{}')
  phase.reach(1200)
  phase.left, phase.parts = lambda: left, PARTS
  return phase


@pytest.mark.parametrize('width', WIDTHS)
def test_a_line_of_training(width):
  (line,) = shown(width, training())
  wanted = {
    40: 'training  12m05s left  step 1200/3000',
    80: 'training  12m05s left  step 1200/3000  2.1034 bpc  12,345 tokens/s  '
    'lr 0.003',
    120: 'training  12m05s left  step 1200/3000  2.1034 bpc  12,345 tokens/s  '
    'lr 0.003  epoch 0  ',
  }
  assert len(line) < width
  assert line[2 : 2 + len(wanted[width])] == wanted[width]
  assert ('━' in line) == (width == 120)


@pytest.mark.parametrize('width', range(4, 60))
def test_no_line_is_wider_than_the_terminal(width):
  inner = console_lib.Phase('evaluating', 10_000, '{:,} of {:,} tokens')
  inner.reach(5000)
  lines = shown(width, training(), inner)
  assert len(lines) == 2
  assert all(len(line) < width for line in lines)


def test_the_first_part_is_cut_and_not_left_out():
  assert console_lib.fit(['one', 'two'], 3).plain == 'one'
  assert console_lib.fit(['one', 'two'], 8).plain == 'one  two'
  assert console_lib.fit(['one', 'two'], 7).plain == 'one'
  assert console_lib.fit(['/a/long/path'], 6).plain == '/a/lo…'
  assert console_lib.fit([], 6).plain == ''


def test_a_curve():
  assert console_lib.curve([]).plain == ''
  assert console_lib.curve([2.0]).plain == '▁'
  assert console_lib.curve([8, 7, 6, 5, 4, 3, 2, 1]).plain == '█▇▆▅▄▃▂▁'
  line = console_lib.curve([3.0, 1.0, 2.0])
  assert line.plain == '█▁▄' or line.plain == '█▁▅'
  assert [s.style for s in line.spans] == ['cyan', 'bold green', 'cyan']
  # Each column is the best of two.
  assert console_lib.curve([9, 8, 7, 1, 5, 5], width=3).plain == '█▁▅'


def test_what_is_left_counts_from_the_first_report(monkeypatch):
  """What came before it has compiled; between two reports it counts down."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  phase = console_lib.Phase('scoring', 100, '{} of {}')

  def at(seconds, done=None):
    now[0] = seconds
    if done is not None:
      phase.reach(done)
    return re.split('  +', phase.line(80).plain)

  assert at(30) == ['scoring', '30s']
  assert at(60, 20) == ['scoring', '1m00s', '20 of 100']
  assert at(70, 40) == ['scoring', '30s left', '40 of 100']
  assert at(75) == ['scoring', '25s left', '40 of 100']
  assert at(105) == ['scoring', '0s left', '40 of 100']
  phase.restart(40)
  assert at(110, 50) == ['scoring', '1m50s', '50 of 100']
  assert at(112, 52) == ['scoring', '48s left', '52 of 100']


def test_phases_leave_nothing_behind(begin):
  console, terminal = begin()
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
    pass
  console.progress('on its own')
  assert sys.stderr is not terminal
  console.close()
  assert sys.stderr is terminal


@pytest.mark.parametrize('width', WIDTHS)
def test_an_evaluation(begin, width):
  console, terminal = begin(width)
  parts = 'step 90: validation 2.5 bpc', 'best 2.4 at step 60', '99 tokens'
  console.evaluated(parts, [3.0, 2.4, 2.5], 'unused')
  line = re.sub(r'\x1b\[[\d;]*m', '', terminal.getvalue())
  assert line.endswith('\n') and line.count('\n') == 1
  assert line.startswith('step 90: validation 2.5 bpc  █▁▂')
  assert len(line) <= width
  assert ('tokens' in line) == (width > 60)


@pytest.mark.parametrize('width', WIDTHS)
def test_a_table(begin, width):
  console, terminal = begin(width)
  rows = {'model': ['m' * 9, 'n' * 30, 'o' * 30], 'run': ['/a' * 50]}
  console.table(rows)
  lines = re.sub(r'\x1b\[[\d;]*m', '', terminal.getvalue()).splitlines()
  assert len(lines) == 2 and all(len(line) <= width for line in lines)
  assert lines[0].split()[:2] == ['model', 'm' * 9]
  assert ('nn' in lines[0], 'oo' in lines[0]) == (width > 40, width > 80)


@pytest.mark.parametrize('name', ['dumb', 'unknown'])
def test_a_dumb_terminal_gets_plain_lines(begin, name):
  console, terminal = begin(TERM=name)
  with console.phase('compiling', plain='compiles'):
    console.say('stays')
  assert terminal.getvalue() == 'compiles\nstays\n'


def test_no_color(begin):
  console, terminal = begin(NO_COLOR='1')
  console.evaluated(['step 9'], [3.0, 2.4], '')
  assert '▁' in terminal.getvalue()
  assert not re.search(r'\x1b\[[\d;]*3\dm', terminal.getvalue())


def test_forced_colours_do_not_make_a_terminal(monkeypatch):
  """As CI services set them."""
  monkeypatch.setenv('FORCE_COLOR', '1')
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  with console.phase('compiling', plain='compiling'):
    console.evaluated(['step 9'], [3.0], 'step 9')
  assert sys.stderr.getvalue() == 'compiling\nstep 9\n'


def test_an_encoding_without_blocks(begin, monkeypatch):
  monkeypatch.setattr(Terminal, 'encoding', 'ascii')
  console, terminal = begin()
  with console.phase('training', 10, 'step {}/{}') as phase:
    phase.reach(1)
    console.evaluated(['step 9'], [3.0, 2.0], '')
  assert terminal.getvalue().isascii()


def test_console_in_a_file(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  console.progress('one')
  console.progress('two')
  console.progress('soon', pause=60.0)
  console.say('three')
  assert sys.stderr.getvalue() == 'one\ntwo\nthree\n'


def test_phases_in_a_file(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  with console.phase('compiling', plain='compiles'):
    pass
  with console.phase('scoring', 20, console_lib.TOKENS) as phase:
    phase.reach(5)
    console.reach(phase, 10, pause=60.0)
    console.reach(phase, 20, pause=60.0)
    console.figures(phase, ['unused'], 'figures')
  console.table({'unused': ['unused']})
  console.evaluated(['unused'], [1.0], 'evaluated')
  assert sys.stderr.getvalue().splitlines() == [
    'compiles',
    '10 of 20 tokens',
    'figures',
    'evaluated',
  ]


def test_a_silent_console(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console(silent=True)
  with console.phase('compiling', plain='compiles') as phase:
    console.reach(phase, 10, pause=0.0)
    console.figures(phase, ['unused'], 'figures')
  console.evaluated(['unused'], [1.0], 'evaluated')
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
  ],
)
def test_duration(seconds, text):
  assert console_lib.duration(seconds) == text
