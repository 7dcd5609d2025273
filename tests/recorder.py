"""Records what each test runs of the package, and how long it takes.

python -m pytest -p tests.recorder -m 'not slow'     # Python 3.12 or newer

Each worker writes a file into FOLDER, for `python -m tests.mutations`. Lines
that run in a program of their own, or while a module is imported, are unseen.
"""

import json
import os
import pathlib
import sys
import time

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / '.pytest_cache/recorded'
PACKAGE = f'{pathlib.Path(__file__).parents[1] / "txl_jax"}/'
TOOL = 3  # any number of sys.monitoring that no debugger has

tests = {}  # {id: {seconds, thorough, lines: {module: bits in base 16}}}
lines = {}  # of the test that is running: {file: a bit for each line}
known = set()  # code whose lines are watched


def _function(code, _):
  if code.co_filename.startswith(PACKAGE) and code not in known:
    known.add(code)
    sys.monitoring.set_local_events(TOOL, code, sys.monitoring.events.LINE)
  return sys.monitoring.DISABLE  # until the next test


def _line(code, number):
  lines[code.co_filename] = lines.get(code.co_filename, 0) | 1 << number
  return sys.monitoring.DISABLE


def read():
  """Every test that was recorded: {id: {seconds, thorough, lines}}."""
  found = {}
  for path in FOLDER.glob('*.json'):
    found |= json.loads(path.read_text())
  for test in found.values():
    test['lines'] = {k: int(v, 16) for k, v in test['lines'].items()}
  return found


def pytest_configure(config):
  """Forgets earlier records, in the first process; watches, in all."""
  if not hasattr(config, 'workerinput'):
    for path in FOLDER.glob('*.json'):
      path.unlink()
  watch, events = sys.monitoring, sys.monitoring.events
  watch.use_tool_id(TOOL, __name__)
  watch.register_callback(TOOL, events.PY_START, _function)
  watch.register_callback(TOOL, events.LINE, _line)
  watch.set_events(TOOL, events.PY_START)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
  """One test, its fixtures included."""
  lines.clear()
  sys.monitoring.restart_events()
  begin = time.perf_counter()
  result = yield
  tests[item.nodeid] = {
    'seconds': time.perf_counter() - begin,
    'thorough': item.get_closest_marker('thorough') is not None,
    'lines': {k.removeprefix(PACKAGE): f'{v:x}' for k, v in lines.items()},
  }
  return result


def pytest_sessionfinish():
  """Writes what was recorded."""
  if tests:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f'{os.getpid()}.json').write_text(json.dumps(tests))
