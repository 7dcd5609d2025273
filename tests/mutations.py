"""Changes the package in small wrong ways, and counts those that tests notice.

pip install cosmic-ray                               # and Python 3.12 or newer
python -m pytest -p tests.recorder -m 'not slow'     # what each test runs
python -m tests.mutations --sample=200 --seed=0

cosmic-ray names every small change of the code (another operator, constant,
comparison, condition, decorator, exception; not those of annotations). One of
each module is drawn, and more in proportion to its size; each is made in a copy
of the repository. Tests that run its line, then those that run its module, are
run until one fails or --seconds are used up: of each, those of the default run
first, then thorough ones, the cheapest first; before them all, for speed, those
of the default run in the module's own file. A change that no test notices, or
with which they do not end ('time'), is printed as a diff, to be judged: some
change nothing, and a test that starts a program, whose lines are not recorded,
may notice others. --report has each change with the test that noticed it;
--evidence writes evidence.txt, the order of `python -m pytest --changed`.
"""

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import difflib
import json
import os
import pathlib
import queue
import random
import subprocess
import sys
import tempfile

from cosmic_ray import plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.work_db import use_db

from tests import changed, recorder

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'txl_jax'
FILES_OF_A_MODULE = 8  # in evidence.txt
# They see every key and its default, which no function sets.
KEYS = ('tests/experiment/sections_test.py', 'tests/configs_test.py')


def modules():
  """Every module of the package but lists of names, and configs."""
  for path in sorted(PACKAGE.rglob('*.py')):
    if path.name != '__init__.py' and 'configs' not in path.parts:
      yield str(path.relative_to(PACKAGE))


def changes(source, path, rng):
  """(number of changes of a module, their texts in a random order)."""
  spans = list(_annotations(ast.parse(source)))
  with use_db(':memory:') as db:
    init([path], db, {})
    found = [item.mutations[0] for item in db.work_items]
  inside = lambda x: any(a <= x.start_pos and x.end_pos <= b for a, b in spans)
  found = [x for x in found if not inside(x)]
  rng.shuffle(found)

  def texts():
    seen = {None, source}
    for change in found:
      operator = plugins.get_operator(change.operator_name)()
      with contextlib.suppress(AttributeError):  # an exception with a dot
        text = mutate_code(source, operator, change.occurrence)
        if text not in seen:
          seen.add(text)
          yield text

  return len(found), texts()


def _annotations(tree):
  """Where annotations begin and end."""
  for node in ast.walk(tree):
    for name in ('annotation', 'returns'):
      if x := getattr(node, name, None):
        yield (x.lineno, x.col_offset), (x.end_lineno, x.end_col_offset)


def draw(names, sample, rng):
  """(module, changed text): one of each, the rest in proportion."""
  drawn, more, tickets = [], {}, []
  for name in names:
    path = PACKAGE / name
    count, more[name] = changes(path.read_text(), path, rng)
    tickets += [name] * count
  rng.shuffle(tickets)
  for name in [*names, *tickets]:
    if len(drawn) < sample and (text := next(more[name], None)):
      drawn.append((name, text))
  rng.shuffle(drawn)
  return drawn


def concerned(name, source, text, tests):
  """Tests that run a changed line or its module: near, default, cheap first."""
  lines = _statements(source, _differing(source, text))
  bits = sum(1 << n for n in lines)
  near = {k for k, x in tests.items() if x['lines'].get(name, 0) & bits}
  own = changed.mirror(name), *([] if near else KEYS)
  order = {
    test: (test not in near, x['thorough'], x['seconds'])
    for test, x in tests.items()
    if name in x['lines'] or test.partition('::')[0] in own
  }
  return sorted(order, key=order.__getitem__)


def _differing(source, text):
  a, b = source.splitlines(), text.splitlines()
  same = difflib.SequenceMatcher(None, a, b, autojunk=False)
  for tag, begin, end, *_ in same.get_opcodes():
    if tag != 'equal':
      yield from range(begin + 1, max(end, begin + 1) + 1)


def _statements(source, lines):
  """Lines, and all others of the simple statements that they are in."""
  lines = {*lines}
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.stmt) and not hasattr(node, 'body'):
      span = {*range(node.lineno, node.end_lineno + 1)}
      lines |= span if span & lines else set()
  return lines


def within(seconds, names, tests):
  """As many of the tests as take so long, at least one."""
  chosen = []
  for name in names:
    if chosen and (seconds := seconds - tests[name]['seconds']) < 0:
      break
    chosen.append(name)
  return chosen


def first_to_fail(root, names, seconds, cache):
  """The test that notices what is in root, 'time', or None.

  Files are collected whole; `pytest_collection_modifyitems` below has the
  tests in their order.
  """
  order, failed = root / 'order.json', root / 'failed.txt'
  order.write_text(json.dumps(names))
  failed.unlink(missing_ok=True)
  command = [sys.executable, '-m', 'pytest', '-x', '-n0', '-o', 'addopts=']
  command += ['-p', 'no:cacheprovider', '-p', __spec__.name]
  command += dict.fromkeys(name.partition('::')[0] for name in names)
  env = os.environ | {'PYTHONPATH': str(root), 'JAX_PLATFORMS': 'cpu'}
  env |= {'TXL_JAX_MUTATED': str(root), 'JAX_COMPILATION_CACHE_DIR': cache}
  env |= {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1'}
  with subprocess.Popen(
    command,
    cwd=root,
    env=env,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  ) as process:
    try:
      status = process.wait(seconds)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, 9)
      return 'time'
  if failed.exists():
    return failed.read_text()
  return f'pytest, status {status}' if status else None


# This module is also a plugin of the pytest that it starts.
def pytest_collection_modifyitems(items):
  """The tests that are asked for, in their order."""
  names = json.loads(pathlib.Path('order.json').read_text())
  place = {name: i for i, name in enumerate(names)}
  items[:] = [x for x in items if x.nodeid in place]
  items.sort(key=lambda x: place[x.nodeid])


def _tell(report):
  if report.failed:
    path = pathlib.Path(os.environ['TXL_JAX_MUTATED']) / 'failed.txt'
    path.write_text(report.nodeid)


pytest_runtest_logreport = pytest_collectreport = _tell


def judged(root, name, text, tests, seconds, cache):
  """A change, and what noticed it."""
  path = root / 'txl_jax' / name
  source = path.read_text()
  names = within(seconds, concerned(name, source, text, tests), tests)
  file = changed.mirror(name)
  first = lambda x: x.startswith(f'{file}::') and not tests[x]['thorough']
  own = [x for x in names if first(x)]
  others = [x for x in names if not first(x)]
  path.write_text(text)
  limit, noticed = 60 + 4 * seconds, None
  for batch in filter(None, (own, others)):
    noticed = noticed or first_to_fail(root, batch, limit, cache)
  path.write_text(source)
  both = source.splitlines(True), text.splitlines(True)
  diff = ''.join(difflib.unified_diff(*both, name, 'changed', n=2))
  return {'module': name, 'noticed': noticed, 'diff': diff}


def evidence(tests, report):
  """{module: files of tests}: what noticed most, its own, the nearest."""
  noticed = collections.defaultdict(collections.Counter)
  for x in report:
    if x['noticed'] and '::' in x['noticed']:
      noticed[x['module']][x['noticed'].partition('::')[0]] += 1
  lines, seconds = collections.Counter(), collections.Counter()
  for test, x in tests.items():
    file = test.partition('::')[0]
    seconds[file] += x['seconds']
    for name, bits in x['lines'].items():
      lines[name, file] += bits.bit_count()
  found = {}
  for name in modules():
    files = [file for of, file in lines if of == name]
    per_second = {x: lines[name, x] / (1 + seconds[x]) for x in files}
    own = changed.mirror(name)
    order = {x: (noticed[name][x], x == own, per_second[x]) for x in files}
    best = sorted(files, key=order.__getitem__, reverse=True)
    found[name] = best[:FILES_OF_A_MODULE]
  return found


def main():
  """The program."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('modules', nargs='*', help='as attention.py; all')
  parser.add_argument('--sample', type=int, default=200, help='changes')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--jobs', type=int, default=(os.cpu_count() or 1) + 1)
  parser.add_argument(
    '--seconds', type=float, default=100, help='of tests, for each change'
  )
  parser.add_argument('--report', type=pathlib.Path, default='mutations.json')
  parser.add_argument('--evidence', action='store_true')
  args = parser.parse_args()
  tests = recorder.read()
  if not tests:
    parser.error("first: python -m pytest -p tests.recorder -m 'not slow'")
  names = args.modules or [*modules()]
  drawn = draw(names, args.sample, random.Random(args.seed))
  copies, report = queue.Queue(), []
  with contextlib.ExitStack() as stack:
    archive = subprocess.check_output(['git', 'archive', 'HEAD'], cwd=ROOT)
    cache = stack.enter_context(tempfile.TemporaryDirectory())
    for _ in range(args.jobs):
      copy = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
      subprocess.run(['tar', 'x', '-C', copy], input=archive, check=True)
      copies.put(copy)

    def work(change):
      copy = copies.get()
      try:
        return judged(copy, *change, tests, args.seconds, cache)
      finally:
        copies.put(copy)

    pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(args.jobs))
    for found in pool.map(work, drawn):
      report.append(found)
      args.report.write_text(json.dumps(report, indent=1))
      if found['noticed'] in (None, 'time'):
        print(found['diff'], found['noticed'] or '', flush=True)
  count = sum(x['noticed'] not in (None, 'time') for x in report)
  thorough = collections.Counter(
    x['noticed']
    for x in report
    if tests.get(x['noticed'], {'thorough': False})['thorough']
  )
  default = count - thorough.total()
  n = len(report)
  print(f'{n} changes; noticed: {count / n:.1%}, by default {default / n:.1%}')
  for test, times in thorough.most_common():
    print(f'{times} by a thorough test alone: {test}')
  if args.evidence:
    changed.write(evidence(tests, report))


if __name__ == '__main__':
  main()
