"""Whether anything was run, imported or opened, and how much memory it took."""

import contextlib
import sys
import time
import tracemalloc

_EVENTS = (
  'exec', 'compile', 'import', 'marshal.', 'os.system', 'os.exec', 'os.spawn',
  'os.posix_spawn', 'subprocess.', 'pickle.find_class', 'socket.', 'ctypes.',
  'shutil.', 'os.remove', 'os.rename', 'builtins.input',
)  # fmt: skip
_SEEN = []
_WATCHING = []


def _hook(event, args):
  if _WATCHING and event.startswith(_EVENTS):
    _SEEN.append((event, repr(args)[:200]))


sys.addaudithook(_hook)


@contextlib.contextmanager
def nothing_runs(seconds=20.0, memory=64 << 20):
  """Fails if the block runs code, is slow, or takes more bytes at a time."""
  _SEEN.clear()
  tracemalloc.start()
  started = time.monotonic()
  _WATCHING.append(True)
  try:
    yield
  finally:
    _WATCHING.pop()
    took = time.monotonic() - started
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
  assert not _SEEN
  assert took < seconds
  assert peak < memory, f'{peak:,} bytes'
