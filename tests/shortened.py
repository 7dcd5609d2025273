"""Runs a command of the pages, as `python` does, with small sizes.

python -m tests.shortened -m txl_jax.main --config=pystdlib_tiny

The flags are those of the command, and after them some that win: a narrow
model with a short memory, few steps, few tokens, and no window in training. A
text of words, TEXT, is in the place of a corpus that would be downloaded. The
number of layers, what is read from where, and every other key are those of the
command. --mode=summary is run as it is.
"""

import os
import runpy
import sys

TEXT = 'words.txt'
_MODEL = dict(d_model=16, d_head=8, d_hidden=16, d_ff=32, mem_len=8)
_CORPUS = {'corpus': 'text', 'path': TEXT, 'level': 'word', 'unk': True}
_MODES = {
  'recl': {'recl.positions': 50},
  'score': {'eval.batch_size': 1},  # of a short text
}
_LONGEST = 500  # of so many steps, one is left; but at least _FEWEST
_FEWEST = 4
_BENCH = (
  '--layers=1', '--d_model=16', '--heads=2', '--d_head=8', '--d_ff=32',
  '--batch=1', '--segment=8', '--memory=8', '--steps=1', '--pairs=1',
  '--words=1000', '--cutoffs=20,100', '--width=64', '--tokens=64',
  '--megabytes=1', '--megatokens=1',
)  # fmt: skip


def of_main(arguments):
  """More flags for a command of txl_jax.main."""
  from txl_jax.data.data_config import WORDS
  from txl_jax.experiment import config_file
  from txl_jax.program import settings
  from txl_jax.runs import workdir

  flags = [x[2:].partition('=') for x in arguments if x.startswith('--')]
  given = {name: value for name, _, value in flags}
  mode = given.get('mode', 'train')
  if mode == 'summary':
    return []
  folders = given.get('workdir', ''), given.get('config.train.init_from', '')
  runs = [x for x in map(workdir.own_config, folders) if x]
  config = given.get('config') or runs[0]
  keys = settings.flatten(config_file.load(config))
  more = dict(_MODES.get(mode, {}))
  if not config.endswith('/config.py'):  # else the run is small
    sizes = {f'model.{key}': size for key, size in _MODEL.items()}
    if 'model.blocks' not in keys:  # which have widths that fit the model's
      more |= {key: size for key, size in sizes.items() if keys.get(key)}
    if given.get('config.data.corpus', keys['data.corpus']) in WORDS:
      more |= {f'data.{key}': value for key, value in _CORPUS.items()}
  if mode in ('train', 'eval') and 'config.eval.batch_size' not in given:
    more['eval.batch_size'] = 256
  if mode == 'train':
    steps = int(given.get('config.train.steps', keys['train.steps']))
    steps = max(_FEWEST, steps // _LONGEST)
    more |= {'train.steps': steps, 'train.eval_tokens': 1000}
    often = 'log_every', 'eval_every', 'save_every'
    more |= {f'train.{key}': 2 for key in often}
    # A window that moves by one byte would take minutes at the end.
    more |= {'optim.warmup': 1, 'eval.window': 0}
  return [f'--config.{key}={value}' for key, value in more.items()]


def main(arguments):
  if arguments[0] == '-m':
    _, module, *flags = arguments
    if module == 'txl_jax':
      plain = not flags or flags[0].startswith('-')
      module = f'txl_jax.{"main" if plain else flags.pop(0)}'
    if module == 'txl_jax.main':
      flags += of_main(flags)
    elif module == 'benchmarks':
      flags += _BENCH
    print('running', module, *flags, file=sys.stderr, flush=True)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name='__main__', alter_sys=True)
    return
  if arguments[0] == 'launch/local.py':
    arguments = [*arguments, *of_main(arguments)]
  print('running', *arguments, file=sys.stderr, flush=True)
  os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == '__main__':
  main(sys.argv[1:])
