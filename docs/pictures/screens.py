"""Takes the screens of docs/screens.md again, from the real program.

python docs/pictures/screens.py

Before each screen the page has a comment that says what it is:

  <!-- screen: NAME -->                  all that the command leaves
  <!-- screen: NAME, while "TEXT" -->    the screen while it shows that text
  <!-- screen: NAME, line "TEXT|…" -->   the lines that show these, in turn

The commands are those of the shell block before the first of them; variables
are remembered. All run one after the other in a new folder, on a terminal of 80
columns, which takes some minutes.
"""

import argparse
import codecs
import fcntl
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import unicodedata

WIDTH, HEIGHT = 80, 24
PAGE = pathlib.Path(__file__).parents[1] / 'screens.md'
_CODE = re.compile(r'\x1b\[([\d;?]*)([A-Za-z])')
_BLOCK = re.compile(
  r'```sh\n(?P<command>.*?)```\n'
  r'|<!-- screen: (?P<name>\w+)'
  r'(?:, (?P<kind>while|line) "(?P<text>[^"]+)")? -->\n'
  r'```\n(?P<screen>.*?)```\n',
  re.DOTALL,
)


class Screen:
  """What a terminal shows that was sent some text, and all that it showed."""

  def __init__(self):
    self._lines, self._row, self._column = [''], 0, 0
    self.moments = []  # the lines, again and again

  def send(self, text: str) -> None:
    """Draws a text."""
    while text:
      if code := _CODE.match(text):
        self._command(code[1], code[2])
        text = text[code.end() :]
        continue
      self._draw(text[0])
      text = text[1:]
    if self.lines() != self.moments[-1:]:
      self.moments.append(self.lines())

  def lines(self) -> list[str]:
    """Its lines now, without spaces at their ends."""
    return [line.rstrip() for line in self._lines]

  def _command(self, argument, letter):
    if letter == 'A':
      self._row = max(self._row - int(argument or 1), 0)
    elif letter == 'K':
      self._lines[self._row] = ''

  def _draw(self, c):
    if c == '\r':
      self._column = 0
    elif c == '\n':
      self._down()
    elif not unicodedata.category(c).startswith('C'):
      if self._column == WIDTH:
        self._down()
        self._column = 0
      line = self._lines[self._row].ljust(self._column)
      after = line[self._column + 1 :]
      self._lines[self._row] = line[: self._column] + c + after
      self._column += 1

  def _down(self):
    self._row += 1
    if self._row == len(self._lines):
      self._lines.append('')


def run(command: str, folder: str) -> Screen:
  """A command of the shell to its end; RuntimeError if it fails."""
  ours, theirs = pty.openpty()
  size = struct.pack('HHHH', HEIGHT, WIDTH, 0, 0)
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
  # The terminal makes '\n' into '\r\n'.
  path = f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}'
  environment = os.environ | {'TERM': 'xterm-256color', 'PATH': path}
  screen, decoder = Screen(), codecs.getincrementaldecoder('utf-8')()
  with subprocess.Popen(
    ['bash', '-c', command],
    cwd=folder,
    env=environment,
    stdin=subprocess.DEVNULL,
    stdout=theirs,
    stderr=theirs,
  ) as process:
    os.close(theirs)
    while True:
      try:
        data = os.read(ours, 1 << 16)
      except OSError:  # the other end is closed
        break
      if not data:
        break
      screen.send(decoder.decode(data))
  os.close(ours)
  if process.returncode:
    shown = '\n'.join(screen.lines())
    raise RuntimeError(f'{command}: status {process.returncode}\n{shown}')
  return screen


def taken(screen: Screen, kind: str | None, text: str) -> str:
  """What of a screen is asked for; ValueError if it never showed the text."""
  lines = screen.lines()
  if kind == 'while':
    lines = _moment(screen, text)
  elif kind == 'line':
    lines = [
      next(line for line in reversed(_moment(screen, part)) if part in line)
      for part in text.split('|')
    ]
  return '\n'.join(lines).strip('\n') + '\n'


def _moment(screen, text):
  """The lines when two thirds of the time that shows a text are over."""
  shown = [x for x in screen.moments if any(text in line for line in x)]
  if not shown:
    raise ValueError(f'no screen had {text!r}')
  return shown[len(shown) * 2 // 3]


def main() -> None:
  """Writes the page anew."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--page', type=pathlib.Path, default=PAGE)
  page = parser.parse_args().page
  screens, variables, command = {}, [], ''
  with tempfile.TemporaryDirectory() as folder:

    def again(match):
      nonlocal command
      if match['command']:
        command = match['command']
        return match[0]
      name = match['name']
      if name not in screens:
        print(command, file=sys.stderr)
        screens[name] = run('\n'.join([*variables, command]), folder)
        variables.extend(re.findall(r'(?m)^\w+=.*$', command))
      new = taken(screens[name], match['kind'], match['text'])
      return match[0].replace(f'```\n{match["screen"]}```', f'```\n{new}```')

    text = _BLOCK.sub(again, page.read_text())
  page.write_text(text)


if __name__ == '__main__':
  main()
