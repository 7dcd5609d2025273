"""`python -m txl_jax.convert` in this process, and what it has made in use."""

import numpy as np

from tests import programs
from tests.convert import originals
from txl_jax.convert import __main__ as convert
from txl_jax.convert.formats import torch_file
from txl_jax.program import command_line


def run(source, target, *flags):
  """A CompletedProcess with text output."""
  argv = ['convert', f'--from={source}', f'--to={target}', *flags]
  return programs.within(argv, lambda: convert.main(command_line.parse(argv)))


def use(folder, mode, *overrides, flags=()):
  """A mode of the program with a workdir, on the text of ids beside it."""
  where = f'--config={folder}/config.py', f'--workdir={folder}'
  options = f'data.dir={folder}/../data', *overrides
  keys = [f'--config.{x}' for x in options]
  command = ['python', '-m', 'txl_jax.main', *where, f'--mode={mode}']
  return programs.here([*command, *flags, *keys])


def converted(source, target, *flags):
  """`run`, which succeeds."""
  done = run(source, target, *flags)
  assert done.returncode == 0, done.stderr
  return done


def used(folder, mode, *overrides, flags=()):
  """`use`, which succeeds."""
  done = use(folder, mode, *overrides, flags=flags)
  assert done.returncode == 0, done.stderr
  return done


def write_state(folder, case):
  """A file of a case of `originals`; its arguments and state dict."""
  a = originals.arguments(case)
  state = originals.state(a)
  torch_file.write(folder / 'state.pt', state)
  return a, state


def flags_for(a):
  """What the state dict does not say, as flags."""
  found = {x: a[x] for x in ('tgt_len', 'mem_len', 'clamp_len')}
  if a['attn_type'] == 2:
    found['n_head'] = a['n_head']
  if a['cutoffs'] and a['div_val'] == 1:
    found['cutoffs'] = ','.join(map(str, a['cutoffs']))
  switches = [f'--{x}' for x in ('same_length', 'pre_lnorm') if a[x]]
  return [*(f'--{k}={x}' for k, x in found.items()), *switches]


def write_text(folder, V, size=1200, seed=1):
  """A text of token ids; the ids of its validation split."""
  ids = np.random.default_rng(seed).integers(V, size=size)
  lines = [' '.join(map(str, ids[i : i + 20])) for i in range(0, size, 20)]
  (folder / 'text.txt').write_text('\n'.join(lines) + '\n')


def validation(folder):
  """Token ids of the validation split of the prepared text."""
  (path,) = (folder / '../data').glob('text-*')
  return np.fromfile(path / 'validation.bin', np.uint8).astype(np.int32)
