"""Whether anything was run, imported or opened, and how much memory it took."""

import contextlib
import sys
import threading
import time
import tracemalloc

import hypothesis

_EVENTS = (
  'exec', 'compile', 'import', 'marshal.', 'os.system', 'os.exec', 'os.spawn',
  'os.posix_spawn', 'subprocess.', 'pickle.find_class', 'socket.', 'ctypes.',
  'shutil.', 'os.remove', 'os.rename', 'builtins.input',
)  # fmt: skip
_SEEN = []
_WATCHING = []  # the thread whose events count


def _hook(event, args):
  if threading.get_ident() in _WATCHING and event.startswith(_EVENTS):
    _SEEN.append((event, repr(args)[:200]))


sys.addaudithook(_hook)


@contextlib.contextmanager
def nothing_runs(seconds=20.0, memory=64 << 20):
  """Fails if the block runs code, is slow, or takes more bytes at a time."""
  _SEEN.clear()
  tracemalloc.start()
  started = time.thread_time()  # others may use the processor too
  _WATCHING.append(threading.get_ident())
  try:
    yield
  finally:
    _WATCHING.pop()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
  # An error of the block is told as it is.
  assert not _SEEN, [*_SEEN]
  assert time.thread_time() - started < seconds
  assert peak < memory, f'{peak:,} bytes'


# Of damaged files, each made in a folder of its own.
EXAMPLES = hypothesis.settings(
  deadline=None,
  max_examples=40,
  database=None,
  suppress_health_check=list(hypothesis.HealthCheck),
)
