"""Huge pages for arrays on Linux.

XLA for CPUs takes the memory of each step from the operating system, which
clears every page of 4 kB at its first use: up to a quarter of the time of a
step (docs/benchmarks.md). glibc asks for pages of 2 MB instead, but only if an
environment variable says so when a program starts.
"""

import contextlib
import os
import sys

_TUNABLE = 'glibc.malloc.hugetlb'  # since glibc 2.35; before, it is ignored


def restart(
  *programs: str, pages: str = '/sys/kernel/mm/transparent_hugepage/enabled'
) -> None:
  """Starts the program anew, in this process, with huge pages for arrays.

  Not if GLIBC_TUNABLES has them on or off, if Linux gives none or gives them
  unasked, or if it is none of `programs`, names of modules or scripts: a
  debugger, say, would lose what it did before it started ours.
  """
  command = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
  ours = command and os.path.basename(command[-1]) in programs
  if not ours or not all(x.startswith('-') for x in command[:-1]):
    return
  tunables = os.environ.get('GLIBC_TUNABLES', '')
  # Without huge pages the program runs as well, more slowly.
  with contextlib.suppress(OSError), open(pages) as f:
    if _TUNABLE not in tunables and '[madvise]' in f.read():
      settings = [*filter(None, [tunables]), f'{_TUNABLE}=1']
      os.environ['GLIBC_TUNABLES'] = ':'.join(settings)
      os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
