import io
import sys

import pytest

from txl_jax.runs import console as console_lib


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
  console.plain('plain')
  assert sys.stderr.getvalue().splitlines() == [
    'compiles',
    '10 of 20 tokens',
    'figures',
    'evaluated',
    'plain',
  ]


def test_a_silent_console(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console(silent=True)
  with console.phase('compiling', plain='compiles') as phase:
    console.reach(phase, 10, pause=0.0)
    console.figures(phase, ['unused'], 'figures')
  console.evaluated(['unused'], [1.0], 'evaluated')
  console.plain('plain')
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
