"""The pages: links lead somewhere, commands have flags and keys that exist.

Commands are run in tests/commands_test.py; here, those too that need more than
a laptop are held to the flags and keys that there are.
"""

import ast
import functools
import importlib
import re
import sys

import pytest
from absl import flags

from tests import pages, programs
from txl_jax import models
from txl_jax.experiment import config_file, sections
from txl_jax.paper import published
from txl_jax.program import settings
from txl_jax.training import optim

ROOT = programs.ROOT
PAGES = [*pages.PAGES, ROOT / 'CHANGELOG.md']
CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
every_page = pytest.mark.parametrize('page', PAGES, ids=pages.name)
# What a command line stands for, not what it is.
PLACEHOLDER = re.compile(r'\$|…|\.\.\.|FILE|NAME|KEY|PATH|HOST')


def anchors(text):
  """What #… may name in a page: its headings, as GitHub writes them."""
  headings = re.findall(r'^#+ (.*)$', re.sub(r'(?s)```.*?```', '', text), re.M)
  plain = (re.sub(r'[^\w\- ]', '', x.lower()) for x in headings)
  return {x.strip().replace(' ', '-') for x in plain}


@every_page
def test_links(page):
  text = re.sub(r'(?s)```.*?```', '', page.read_text())
  for link in re.findall(r'\]\(([^)\s]+)\)', text):
    if link.startswith(('https:', 'http:')):
      continue
    file, _, anchor = link.partition('#')
    there = (page.parent / file).resolve() if file else page
    assert there.exists(), link
    if anchor:
      assert anchor in anchors(there.read_text()), link


@functools.cache
def flags_of(program):
  if program.startswith('txl_jax'):
    name = 'txl_jax.main' if program == 'txl_jax' else program
    package = hasattr(importlib.import_module(name), '__path__')
    name += '.__main__' * package
    importlib.import_module(name)
    defined = flags.FLAGS.flags_by_module_dict()
    names = name, 'absl.app', 'absl.logging'
    return {flag.name for x in names for flag in defined[x]}
  # A flag may be defined once in a process.
  text = (ROOT / f'{program.replace(".", "/")}/__main__.py').read_text()
  found = re.findall(r"(?:_size|DEFINE_\w+)\(\s*'(\w+)'", text)
  assert len(found) > 5
  return {*found}


def config_of(path):
  if PLACEHOLDER.search(path) or not path or path.startswith(('runs/', 'gs:')):
    path = 'common'  # a run's own has every key
  return config_file.load(path)


def check(command):
  """Its flags and keys exist."""
  program = command[2]
  words = [x for x in command[3:] if x.startswith('--')]
  given = {x[2:].partition('=')[0]: x.partition('=')[2] for x in words}
  keys = settings.flatten(config_of(given.get('config', '')))
  for name in given:
    if name.startswith('config.'):
      key = name.removeprefix('config.')
      assert key in keys, (key, command)
    else:
      known = flags_of(program)
      assert name in known or name.removeprefix('no') in known, command


@every_page
def test_commands(page):
  for command in pages.commands(page):
    check(command)


@pytest.mark.parametrize('file', CONFIGS, ids=pages.name)
def test_commands_of_configs(file):
  text = ast.get_docstring(ast.parse(file.read_text()))
  commands = [*pages.commands_in(text)]
  assert commands or file.name == 'common.py'
  for command in commands:
    check(command)


# README has names of Python, CHANGELOG.md names of keys that are gone.
@pytest.mark.parametrize('page', pages.PAGES[1:], ids=pages.name)
def test_keys_in_the_text(page):
  """Inline code that looks like a key is one, or a section or a file."""
  text = re.sub(r'(?s)```.*?```', '', page.read_text())
  every = [settings.flatten(sections.compose(x)) for x in models.MODELS]
  keys = {key for flat in every for key in flat}
  first = '|'.join({x.partition('.')[0] for x in keys if '.' in x})
  named = rf'`(?:--config\.)?((?:{first})\.[\w.]+)(?:=[^`]*)?`'
  allowed = re.compile(
    r'(eval|generate)\.model|.*\.(npz|pt|py|safetensors|json|bin|txt|en)'
  )
  found = [x for x in re.findall(named, text) if not allowed.fullmatch(x)]
  assert [x for x in found if x not in keys] == []


def names_in(cell):
  """The configs in a cell; `:shaw` after `wt103_128m:xl` is of that file."""
  names = []
  for name in re.findall(r'`(\w*(?::\w+)?)`', cell):
    names.append(names[-1].partition(':')[0] + name if name[0] == ':' else name)
  return names


def test_configs_of_the_tables_of_the_paper():
  """reproduce.md has them in the tables in which the report has them."""
  text = (ROOT / 'docs/reproduce.md').read_text()
  rows = re.findall(r'(?m)^\| ([\d, ]+) \| [^|]+ \| (.*) \|$', text)
  numbers = [int(n) for found, _ in rows for n in found.split(', ')]
  assert sorted(numbers) == [*range(1, 11)]
  tables = {t.number: t.rows for t in published.TABLES}
  of_paper = {r.experiment for x in tables.values() for r in x} - {''}
  for found, cell in rows:
    here = [r for n in found.split(', ') for r in tables[int(n)]]
    known = {r.experiment for r in here} - {''}
    others = {r.experiment for r in here if 'not in this table' in r.model}
    brackets = {x for y in re.findall(r'\((.*?)\)', cell) for x in names_in(y)}
    listed = {*names_in(cell)} - brackets
    if known:  # not Table 9, which is about speed
      assert listed & of_paper <= known - others
      assert brackets & known <= others
      assert 'and more' in cell or known - others <= listed


def test_runs_that_continue_have_every_schedule():
  choices = settings.keys(optim.Optim)['schedule'].choices
  text = (ROOT / 'docs/runs.md').read_text()
  rows = re.findall(r'(?m)^\| (`.*?) \|', text)
  assert {x for row in rows for x in re.findall(r'`(\w+)`', row)} >= {*choices}


def test_lm1b_large_counts_tokens_as_published():
  """Pages and the config train it with n + 2 tokens a sentence."""
  files = [*pages.PAGES, ROOT / 'configs/lm1b_large.py']
  lines = [
    line
    for file in files
    for line in file.read_text().replace('\\\n', ' ').splitlines()
    if '--config=lm1b_large' in line and '--mode' not in line
  ]
  assert len(lines) > 3
  assert [x for x in lines if '--config.data.boundaries=2' not in x] == []


def test_python_is_run():
  """By names_test of api, hub_download_test and reuse_test."""
  found = {pages.name(x) for x in pages.PAGES if pages.python(x)}
  run = {'README.md', 'docs/start.md', 'docs/python.md', 'docs/reuse.md'}
  assert found == {*run, 'docs/hugging_face.md', 'docs/troubleshooting.md'}


# Where the figures of README are told with their commands, dates and machines.
RESULTS = ('results.md', 'benchmarks.md', 'own_text.md', 'music.md')


def test_figures_of_the_results_in_readme_are_on_a_page_of_results():
  """Ours, of each row: a figure alone would have no command and no machine."""
  told = ' '.join((ROOT / 'docs' / x).read_text() for x in RESULTS)
  told = {*re.findall(NUMBER, told)}
  table = (ROOT / 'README.md').read_text().partition('## Results')[2]
  rows = [x.split('|')[2] for x in table.splitlines() if x.startswith('| ')]
  found = re.findall(NUMBER, ' '.join(rows))
  assert len(found) > 5
  assert [x for x in found if x not in told] == []


# As a page has them, with a point or groups of thousands.
NUMBER = r'(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?![\w]|[.,]\d)'


@pytest.mark.thorough
def test_pictures_of_the_mathematics(tmp_path):
  """Drawing them holds the shift to the distances that it shows."""
  script = ROOT / 'docs/pictures/draw.py'
  done = programs.run([sys.executable, str(script), f'--output={tmp_path}'])
  assert done.returncode == 0, done.stderr
  assert {x.name for x in tmp_path.iterdir()} == {
    'shift.png', 'memory.png', 'speed.png',
  }  # fmt: skip
