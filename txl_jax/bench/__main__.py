"""Speed of training, scoring and data; programs for TPUs and GPUs.

python -m txl_jax.bench train
python -m txl_jax.bench eval --hf_python=~/hf/bin/python
python -m txl_jax.bench eval --layers=24 --d_model=1024 --dtype=bfloat16
python -m txl_jax.bench softmax
python -m txl_jax.bench prepare --megabytes=540
python -m txl_jax.bench data --megatokens=100
python -m txl_jax.bench hlo --topology=v3:4x4 --config=configs/enwik8_24l.py
python -m txl_jax.bench hlo --topology=h200 --config=configs/enwik8_12l.py

train and eval measure us beside Hugging Face transformers: both have the same
sizes, run one at a time and in turn. softmax measures the adaptive softmax
beside full ones, prepare the speed of preparing words, data that of cutting
batches. hlo compiles the training step for TPUs or GPUs that need not be
there, and tells whether it fits and what the devices exchange. See
docs/benchmarks.md and docs/scaling.md.
"""

import itertools
import os
import sys

from absl import app, flags
from ml_collections import config_flags

from txl_jax import command_line
from txl_jax.bench import (
  batch_speed,
  compiled_step,
  preparation_speed,
  side_by_side,
  softmax_speed,
)
from txl_jax.errors import UserError


def _size(name: str, default: int, what: str, at_least: int = 1):
  return flags.DEFINE_integer(name, default, what, lower_bound=at_least)


_SIZES = (
  _size('layers', 12, 'Layers.'),
  _size('d_model', 512, 'Model width, even.', at_least=2),
  _size('heads', 8, 'Attention heads.'),
  _size('d_head', 64, 'Width of a head.'),
  _size('d_ff', 2048, 'Width of the feed-forward layers.'),
  _size('batch', 2, 'Rows of a batch, over all devices.'),
  _size('segment', 256, 'Tokens of a segment.', at_least=2),
  _size('memory', 256, 'States of the memory.', at_least=0),
  _size('vocab', 204, 'Symbols of the vocabulary.', at_least=2),
  _size('steps', 20, 'Segments in a measurement, after warm-up.'),
  _size('segments_per_call', 16, 'eval: segments we score in one call.'),
)
_MEGABYTES = _size('megabytes', 540, 'prepare: size of the text.')
_PROCESSES = _size(
  'processes', 0, 'prepare: processes that read; 0 is the default.', at_least=0
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  'float32',
  ['float32', 'bfloat16'],
  'Compute dtype; transformers is left out with bfloat16.',
)
_MEGATOKENS = _size('megatokens', 100, 'data: million tokens of the corpus.')
_PAIRS = _size('pairs', 5, 'Measurements of each side, or of each corpus.')
_THREADS = flags.DEFINE_integer(
  'threads', None, 'CPU threads of each side; all of them by default.', 1
)
_HF_PYTHON = flags.DEFINE_string(
  'hf_python',
  sys.executable,
  'Python interpreter that has torch and transformers.',
)
_WORDS = _size(
  'words', 267_735, 'softmax and prepare: words of the vocabulary.', at_least=2
)
_CUTOFFS = flags.DEFINE_list(
  'cutoffs', ['20000', '40000', '200000'], 'softmax: first word of each tail.'
)
_WIDTH = _size('width', 1024, 'softmax: width of the head and of the model.')
_DIV_VAL = _size('div_val', 4, 'softmax: tail i is div_val^i times narrower.')
_TOKENS = _size('tokens', 8192, 'softmax: tokens of a step.')
_TOPOLOGY = flags.DEFINE_string(
  'topology', '', 'hlo: TPUs as v3:4x4, or GPUs as h200 or h200:8.'
)
_HLO_FILE = flags.DEFINE_string(
  'hlo_file', '', 'hlo: where to write the text of the compiled program.'
)
_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'hlo: config file; any key is set by --config.section.key.'
)
BENCHMARKS = (*side_by_side.BENCHMARKS, 'softmax', 'prepare', 'data', 'hlo')


def _softmax_sizes():
  """The flags of the benchmark softmax."""
  found = ','.join(_CUTOFFS.value)
  cutoffs = tuple(int(x) for x in _CUTOFFS.value if x.isdecimal())
  edges = 0, *cutoffs, _WORDS.value
  ascending = all(a < b for a, b in itertools.pairwise(edges))
  if len(cutoffs) != len(_CUTOFFS.value) or not ascending:
    raise UserError(
      f'--cutoffs is {found}; allowed: ascending numbers from 1 to '
      f'{_WORDS.value - 1}'
    )
  if _WIDTH.value < _DIV_VAL.value ** len(cutoffs):
    raise UserError(
      f'--div_val is {_DIV_VAL.value}; allowed: numbers that leave the last '
      f'tail a width, of {_WIDTH.value}'
    )
  return softmax_speed.Sizes(
    _WORDS.value, cutoffs, _WIDTH.value, _DIV_VAL.value, _TOKENS.value
  )


def _use_threads(threads):
  """Limits the workers to come; XLA has no option of its own for it."""
  count = os.cpu_count() or 1
  threads = threads or count
  if threads > count:
    raise UserError(f'--threads is {threads}; allowed: 1 to {count}')
  if threads < count:
    if not hasattr(os, 'sched_setaffinity'):
      raise UserError(f'--threads is {threads}; allowed here: only {count}')
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
  return threads


def _compile():
  for flag in _TOPOLOGY, _CONFIG:
    if not flag.value:
      raise UserError(f'--{flag.name} is missing; hlo needs it')
  compiled_step.run(_CONFIG.value, _TOPOLOGY.value, _HLO_FILE.value)


def _compare(benchmark):
  sizes = {flag.name: flag.value for flag in _SIZES}
  if sizes['d_model'] % 2:
    raise UserError(f'--d_model is {sizes["d_model"]}; allowed: even numbers')
  threads = _use_threads(_THREADS.value)
  spec = dict(sizes, dtype=_DTYPE.value, threads=threads)
  hf_python = os.path.expanduser(_HF_PYTHON.value)
  side_by_side.run(benchmark, spec, pairs=_PAIRS.value, hf_python=hf_python)


def main(argv: list[str]) -> None:
  """Runs the benchmark that the command names."""
  benchmark = argv[1] if argv[1:] else ''
  if benchmark in side_by_side.BENCHMARKS:
    _compare(benchmark)
  elif benchmark == 'softmax':
    _use_threads(_THREADS.value)
    softmax_speed.run(_softmax_sizes(), _PAIRS.value)
  elif benchmark == 'prepare':
    # One of the words is that of the newlines.
    preparation_speed.run(_MEGABYTES.value, _WORDS.value - 1, _PROCESSES.value)
  elif benchmark == 'data':
    batch_speed.run(_MEGATOKENS.value * 1_000_000, _PAIRS.value)
  elif benchmark == 'hlo':
    _compile()
  else:
    raise UserError(
      f'the benchmark is {benchmark!r}; allowed: {", ".join(BENCHMARKS)}'
    )


if __name__ == '__main__':
  with command_line.told():
    app.run(
      main, flags_parser=lambda argv: command_line.parse(argv, arguments=1)
    )
