"""How long a user waits: from the command to what it does first.

Every measurement is a process of its own, on the text that is built in.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.results import Measured, spread
from txl_jax.data import data_config
from txl_jax.program.errors import UserError

_MAIN, _CONFIG = ('-m', 'txl_jax.main'), '--config=pystdlib_tiny'


def run(repeats: int) -> dict[str, Measured]:
  """Starts each program so many times, prints and returns the seconds.

  UserError if one fails.
  """
  root = pathlib.Path(__file__).parents[1]
  short = ('train.steps=1', 'optim.warmup=1', 'train.eval_tokens=1000')
  programs = {
    'Python': ('-c', ''),
    'import jax': ('-c', 'import jax'),
    'import txl_jax.main': ('-c', 'import txl_jax.main'),
    'main --help': (*_MAIN, '--help'),
    'main --mode=summary': (*_MAIN, _CONFIG, '--mode=summary'),
    'main, one step': (*_MAIN, _CONFIG, *(f'--config.{x}' for x in short)),
  }
  # They work in a folder of their own, where the text is prepared once.
  paths = [str(root), os.environ.get('PYTHONPATH', '')]
  env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths))}
  results = {}
  with tempfile.TemporaryDirectory() as folder:
    env[data_config.VARIABLE] = folder
    there: Any = dict(cwd=folder, env=env, capture_output=True, text=True)
    for name, arguments in programs.items():
      taken = []
      for n in range(repeats + 1):
        own = [f'--workdir={folder}/{n}'] if _CONFIG in arguments else []
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *arguments, *own], **there)
        if n:  # the first one fills the caches of the system
          taken.append(time.perf_counter() - begin)
        if done.returncode:
          raise UserError(f'{name} failed: {done.stderr.strip()[-300:]}')
      print(f'{name}: {spread(taken, ".2f")} s', flush=True)
      results[name] = Measured(taken, 's')
  return results
