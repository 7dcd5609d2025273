import io
import sys

import pytest

from txl_jax.runs import console as console_lib


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_console_in_a_file(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  console = console_lib.Console()
  console.progress('one')
  console.progress('two')
  console.progress('soon', pause=60.0)
  console.say('three')
  assert sys.stderr.getvalue() == 'one\ntwo\nthree\n'


def test_console_on_a_terminal(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', Terminal())
  monkeypatch.setenv('COLUMNS', '9')
  monkeypatch.setenv('LINES', '5')
  console = console_lib.Console()
  console.progress('step 100 of 200')
  console.progress('two')
  console.say('stays')
  console.say('too')
  console.progress('three')
  console.close()
  print('error: …', file=sys.stderr)
  console.close()
  assert sys.stderr.getvalue() == (
    '\rstep 100\rtwo     \nstays\ntoo\n\rthree   \nerror: …\n'
  )


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
