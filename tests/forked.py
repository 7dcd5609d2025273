"""Runs a program with many command lines, importing it once.

python -m tests.forked MODULE IMPORTED… < [[argument, …], …]

Each is run in a child of this process, which has imported what takes long, but
not MODULE, which defines flags. Prints [[status, output, errors], …].
"""

import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import warnings


def run(module, arguments):
  """[status, output, errors] of one command line."""
  with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
    if not (child := os.fork()):
      os.dup2(out.fileno(), 1)
      os.dup2(err.fileno(), 2)
      sys.argv[:] = [module, *arguments]
      # Its last line and status are Python's own.
      runpy.run_module(module, run_name='__main__', alter_sys=True)
      sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for file in out, err:
      file.seek(0)
      texts.append(file.read())
    return [status, *texts]


def main():
  """The program."""
  _, module, *imported = sys.argv
  for name in imported:
    importlib.import_module(name)
  warnings.simplefilter('ignore')  # of JAX: it has no threads yet
  gc.freeze()  # or each child would look at all of it when it ends
  done = [run(module, x) for x in json.load(sys.stdin)]
  print(json.dumps(done))


if __name__ == '__main__':
  main()
