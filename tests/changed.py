"""Which tests come first after a change: python -m pytest --changed[=COMMIT].

evidence.txt has for each module of txl_jax files of tests that run it: those
first that have noticed most wrong changes of it, then its own and those that
run most of its lines in the least time. `python -m tests.mutations --evidence`
writes it.
"""

import ast
import functools
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
EVIDENCE = ROOT / 'tests/evidence.txt'
# Tests of what is no module.
FOLDERS = {
  'configs': ['tests/configs_test.py', 'tests/keys_test.py'],
  'docs': ['tests/docs_test.py', 'tests/commands_test.py'],
  'examples': ['tests/examples_test.py'],
  'launch': ['tests/launch'],
  'README.md': ['tests/docs_test.py', 'tests/commands_test.py'],
  'CHANGELOG.md': ['tests/docs_test.py'],
}


def differing(commit):
  """Files that differ from a commit, those not yet in git too."""
  git = ['git', '-C', ROOT]
  asked = (
    [*git, 'diff', '--name-only', '--relative', commit, '--'],
    [*git, 'ls-files', '--others', '--exclude-standard'],
  )
  run = functools.partial(subprocess.run, text=True, capture_output=True)
  try:
    done = [run(x, check=False) for x in asked]
  except FileNotFoundError:
    raise ValueError('--changed needs git') from None
  if wrong := [x.stderr for x in done if x.returncode]:
    raise ValueError(f'--changed={commit}: {wrong[0].strip()}')
  return sorted({path for x in done for path in x.stdout.splitlines()})


@functools.cache
def imported(path):
  """The names that a file imports: `from a import b` is a and a.b."""
  names = set()
  for node in ast.walk(ast.parse((ROOT / path).read_text())):
    if isinstance(node, ast.Import):
      names |= {name.name for name in node.names}
    elif isinstance(node, ast.ImportFrom):
      names |= {node.module, *(f'{node.module}.{x.name}' for x in node.names)}
  return names


def importers(path, folder):
  """The files below a folder that import a file."""
  name = path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')
  files = (str(x.relative_to(ROOT)) for x in (ROOT / folder).rglob('*.py'))
  return sorted(file for file in files if name in imported(file))


def read():
  """{module: its files of tests}, see above."""
  lines = (x.split() for x in EVIDENCE.read_text().splitlines())
  return {
    name.rstrip(':'): [f'tests/{x}_test.py' for x in files]
    for name, *files in lines
  }


def write(evidence):
  """The reverse of `read`."""
  short = lambda x: x.removeprefix('tests/').removesuffix('_test.py')
  lines = (f'{k}: {" ".join(map(short, v))}\n' for k, v in evidence.items())
  EVIDENCE.write_text(''.join(lines))


def mirror(module):
  """The file of tests of a module, such as data/streams.py."""
  return f'tests/{module.removesuffix(".py")}_test.py'


def tests(paths):
  """The files of tests of changed files, and then of those that import them."""
  evidence = read()
  found, after = [], []
  for path in paths:
    top = path.split('/')[0]
    if path.endswith('_test.py'):
      found.append(path)
    elif top == 'tests' and path.endswith('.py'):
      found += _tests(importers(path, 'tests'))
    elif path.startswith('txl_jax/') and path.endswith('.py'):
      found += _of(path, evidence)
      for module in importers(path, 'txl_jax'):
        after += _of(module, evidence)
    elif path.startswith('benchmarks/'):
      own = mirror(path)
      found.append(own if (ROOT / own).exists() else 'tests/benchmarks')
    else:
      found += FOLDERS.get(top, [])
  return [x for x in dict.fromkeys(found + after) if (ROOT / x).exists()]


def _tests(paths):
  return [path for path in paths if path.endswith('_test.py')]


def _of(module, evidence):
  """Those that have noticed changes of a module, its mirror, its users."""
  name = module.removeprefix('txl_jax/')
  users = [] if name in evidence else _tests(importers(module, 'tests'))
  return [*evidence.get(name, []), mirror(name), *users]
