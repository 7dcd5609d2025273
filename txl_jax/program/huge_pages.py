"""Huge pages for arrays on Linux.

XLA for CPUs takes the memory of each step from the operating system, which
clears every page of 4 kB at its first use: a seventh to a quarter of the time
of a step (docs/benchmarks.md). glibc asks for pages of 2 MB instead, but only
if an environment variable says so when a program starts.
"""

import contextlib
import os
import sys

_TUNABLE = 'glibc.malloc.hugetlb'  # since glibc 2.35; before, it is ignored
_PAGES = '/sys/kernel/mm/transparent_hugepage/enabled'
_STARTED = '_TXL_JAX_STARTED'  # the process that has started anew


def restart(*programs: str) -> None:
  """Starts the program anew, in this process, with huge pages for arrays.

  Programs that it runs have GLIBC_TUNABLES as well. Nothing happens if this
  already has them on or off, if Linux gives no huge pages or gives them
  unasked, or if it is not Python that runs one of `programs`, names of modules
  or scripts, with options of one word at most: a debugger would lose what it
  did before it started ours.
  """
  # Whatever becomes of GLIBC_TUNABLES on the way, there is one restart.
  if os.environ.pop(_STARTED, '') == str(os.getpid()):
    return
  command = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv[1:])]
  ours = command and os.path.basename(command[-1]) in programs
  if not ours or not all(x.startswith('-') for x in command[:-1]):
    return
  tunables = os.environ.get('GLIBC_TUNABLES', '')
  python = sys.executable or ''
  # Without huge pages the program runs as well, more slowly.
  with contextlib.suppress(OSError), open(_PAGES) as f:
    asked = _TUNABLE in tunables or '[madvise]' not in f.read()
    if not asked and os.path.samefile(python, '/proc/self/exe'):
      settings = [*filter(None, [tunables]), f'{_TUNABLE}=1']
      more = {'GLIBC_TUNABLES': ':'.join(settings), _STARTED: str(os.getpid())}
      command = [python, *sys.orig_argv[1:]]
      os.execve(python, command, os.environ | more)
