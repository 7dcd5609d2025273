"""What the pages have in fences: commands, Python, what programs print."""

import re
import shlex
from typing import NamedTuple

from tests import programs
from txl_jax.__main__ import PROGRAMS

ROOT = programs.ROOT
PAGES = sorted([ROOT / 'README.md', *ROOT.glob('docs/**/*.md')])
# What starts a command, where it is not the name of a file.
_PROGRAMS = 'python3?|txl-jax|pip|gcloud|kubectl|sbatch|head'
_STARTS = rf'(?m)^\s*(?:\w+=\S+ )*((?:{_PROGRAMS}|launch/\S+|\S+/python) .*)'
_OURS = r'(?m)^\s*(?:\w+=\S+ )*((?:python -m (?:txl_jax|benchmarks)|txl-jax).*)'
NEEDS = '# Needs '


class Part(NamedTuple):
  """Lines of a shell block, up to an empty line."""

  line: int  # of the page, from 1
  text: str

  @property
  def needs(self) -> str:
    """The first line, if it says what the commands need, or ''."""
    first = self.text.partition('\n')[0]
    return first if first.startswith(NEEDS) else ''


def name(page):
  return str(page.relative_to(ROOT))


def blocks(page, language=None):
  """(line, language, text) of the fenced blocks of a page."""
  text = page.read_text()
  for found in re.finditer(r'(?ms)^```(\w*)\n(.*?)^```$', text):
    if language in (None, found[1]):
      line = text.count('\n', 0, found.start(2)) + 1
      yield line, found[1], found[2]


def python(page):
  return [text for _, _, text in blocks(page, 'python')]


def parts(page):
  """The Parts of the shell blocks of a page."""
  for line, _, text in blocks(page, 'sh'):
    for found in re.finditer(r'(?s)\S.*?(?=\n\n|\Z)', text):
      above = text.count('\n', 0, found.start())
      yield Part(line + above, found[0].rstrip() + '\n')


def starts(text):
  """The lines of a text that look as if they started a command."""
  return re.findall(_STARTS, text)


def commands(page):
  """The commands of ours in the shell blocks of a page, in words."""
  for part in parts(page):
    yield from commands_in(part.text)


def commands_in(text):
  """The commands of ours that start lines of a text, in words."""
  for line in re.findall(_OURS, text.replace('\\\n', ' ')):
    words = shlex.split(re.split(r'[|;&>]|\s#', line)[0])
    if words[0] == 'txl-jax':
      named = words[1:2] if words[1:] and words[1][0] != '-' else ['main']
      module = PROGRAMS.get(named[0], named[0])
      words = ['python', '-m', f'txl_jax.{module}', *words[1:]]
    yield words
