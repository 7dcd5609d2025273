"""Files that mean harm: whether anything was run, imported or opened.

And how much memory it took, and what was told.
"""

import contextlib
import encodings.cp437  # noqa: F401, of zipfile, on first use
import struct
import sys
import threading
import time
import tracemalloc

import hypothesis
from hypothesis import strategies as st

from tests import refusing
from txl_jax.program.errors import UserError

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


def refused(call, *args, most=3000, **limits):
  """Returns the error message, one line of fewer than `most` characters."""
  with nothing_runs(**limits):
    said = refusing.refused(call, *args)
  assert len(said) < most
  return said


def read_or_refuse(call, *args, most=3000, **limits):
  """What is read, or None where it is refused in a line."""
  with nothing_runs(**limits):
    try:
      return call(*args)
    except UserError as e:
      assert '\n' not in str(e) and len(str(e)) < most
  return None


def damaged(data, whole):
  """A file in which bits are flipped, bytes cut, put in or written over."""
  whole = bytearray(whole)
  kinds = st.sampled_from(['flip', 'cut', 'insert', 'byte', 'number'])
  numbers = st.sampled_from([0, -1, 1 << 62, 1 << 31, 1 << 47])
  for _ in range(data.draw(st.integers(1, 4))):
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(kinds)
    if kind == 'flip':
      whole[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == 'cut':
      del whole[max(at, 1) : at + data.draw(st.integers(1, 50))]
    elif kind == 'insert':
      whole[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    elif kind == 'byte':
      whole[at] = data.draw(st.integers(0, 255))
    else:
      whole[at : at + 8] = struct.pack('<q', data.draw(numbers))
  return bytes(whole)


# Of damaged files, each made in a folder of its own.
EXAMPLES = hypothesis.settings(
  deadline=None,
  max_examples=40,
  database=None,
  suppress_health_check=list(hypothesis.HealthCheck),
)
