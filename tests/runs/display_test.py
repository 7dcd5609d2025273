"""The lines that a terminal shows, at several widths."""

import io
import re
import sys
import time

import pytest
import rich.console

from txl_jax.runs import console as console_lib
from txl_jax.runs import display

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
  screen = display.Screen(console)
  screen._open[:] = phases
  console.print(screen._render())
  return console.export_text().splitlines()


def training(left=725.0):
  phase = display.Phase('training', 3000, 'step {}/{}')
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
  inner = display.Phase('evaluating', 10_000, '{:,} of {:,} tokens')
  inner.reach(5000)
  lines = shown(width, training(), inner)
  assert len(lines) == 2
  assert all(len(line) < width for line in lines)


def test_the_first_part_is_cut_and_not_left_out():
  assert display.fit(['one', 'two'], 3).plain == 'one'
  assert display.fit(['one', 'two'], 8).plain == 'one  two'
  assert display.fit(['one', 'two'], 7).plain == 'one'
  assert display.fit(['/a/long/path'], 6).plain == '/a/lo…'
  assert display.fit([], 6).plain == ''


def test_a_curve():
  assert display.curve([]).plain == ''
  assert display.curve([2.0]).plain == '▁'
  assert display.curve([8, 7, 6, 5, 4, 3, 2, 1]).plain == '█▇▆▅▄▃▂▁'
  line = display.curve([3.0, 1.0, 2.0])
  assert line.plain == '█▁▄' or line.plain == '█▁▅'
  assert [s.style for s in line.spans] == ['cyan', 'bold green', 'cyan']
  # Each column is the best of two.
  assert display.curve([9, 8, 7, 1, 5, 5], width=3).plain == '█▁▅'


def test_what_is_left_counts_from_the_first_report(monkeypatch):
  """What came before it has compiled; between two reports it counts down."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])
  phase = display.Phase('scoring', 100, '{} of {}')

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
  assert phase.whole() == 50.0


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
