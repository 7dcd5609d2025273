"""Speed of training, scoring, writing and data; programs for TPUs and GPUs.

python -m benchmarks train
python -m benchmarks eval --hf_python=~/hf/bin/python
python -m benchmarks decode --batch=1 --segment=16 --memory=1600 --steps=4
python -m benchmarks attention --batch=16 --segment=768 --memory=768
python -m benchmarks sliding --lengths=800,1800,2800,3800 --segment=64
python -m benchmarks startup
python -m benchmarks softmax
python -m benchmarks prepare --megabytes=540
python -m benchmarks data --megatokens=100
python -m benchmarks hlo --topology=v3:4x4 --config=enwik8_24l
python -m benchmarks hlo --topology=h200 --config=enwik8_12l

train, eval and decode measure us and Hugging Face transformers in turn, with
the same sizes, or with --peer=x_transformers its nearest model; decode writes
segments token by token after a text as long as the memory. attention measures
every implementation of relative attention that the machine has, beside
attention without positions; sliding a memory beside a window that is read anew;
startup how long it takes until something happens; softmax the adaptive softmax
beside full ones; prepare and data the speed of preparing words and of cutting
batches. --json=FILE keeps what they measured, with versions and hardware. hlo
compiles the training step, or with --program=eval or decode a call of scoring
or generation, for TPUs or GPUs that need not be there, and tells whether it
fits, its largest buffers, what devices exchange, and how long it takes at
least. See docs/benchmarks.md and docs/scaling.md.
"""

from txl_jax.program import huge_pages, signals

if __name__ == '__main__':
  huge_pages.restart('benchmarks')
  signals.begin()  # before the other imports

import functools
import os
import sys
import types

from absl import app, flags
from ml_collections import config_flags

from benchmarks import (
  attention_speed,
  compiled_step,
  data_speed,
  ours,
  programs,
  results,
  side_by_side,
  softmax_speed,
  startup_speed,
)
from txl_jax.experiment import config_file
from txl_jax.program import command_line, errors
from txl_jax.program.errors import UserError

FLAGS = flags.FLAGS


def _size(name, default, what, at_least=1):
  flags.DEFINE_integer(name, default, what, lower_bound=at_least)
  return name


# Of train, eval and decode, as both sides are told.
_SIZES = (
  _size('layers', 12, 'Number of layers.'),
  _size('d_model', 512, 'Model width, even.', at_least=2),
  _size('heads', 8, 'Number of attention heads.'),
  _size('d_head', 64, 'Width of each head.'),
  _size('d_ff', 2048, 'Width of the feed-forward layers.'),
  _size('batch', 2, 'Rows of a batch, over all devices.'),
  _size('segment', 256, 'Tokens per segment.', at_least=2),
  _size('memory', 256, 'States in the memory.', at_least=0),
  _size('vocab', 204, 'Symbols in the vocabulary.', at_least=2),
  _size('steps', 20, 'Segments per measurement, after warm-up.'),
  _size('segments_per_call', 16, 'eval: segments we score per call.'),
)
_size('megabytes', 540, 'prepare: size of the text in megabytes.')
_size('megatokens', 100, 'data: size of the corpus in millions of tokens.')
_size('pairs', 5, 'Measurements of each side, or of each corpus.')
_size('words', 267_735, 'softmax and prepare: words in the vocabulary.', 2)
_size('width', 1024, 'softmax: width of the head and of the model.')
_size('div_val', 4, 'softmax: tail i is div_val^i times narrower.')
_size('tokens', 8192, 'softmax: tokens per step.')
_size('window_tokens', 4, 'sliding: tokens predicted per measurement.')
flags.DEFINE_list('lengths', '800,1800', 'sliding: attention lengths.')
flags.DEFINE_float(
  'dropatt', 0.0, 'attention: dropout of the probabilities.', 0, 0.999
)
flags.DEFINE_string('json', '', 'File to write the measurements to.')
_size('threads', None, 'CPU threads for each side; default: all.')
_CUTOFFS = '20000,40000,200000'
flags.DEFINE_list('cutoffs', _CUTOFFS, 'softmax: first word of each tail.')
_DTYPES = 'float32', 'bfloat16'
flags.DEFINE_enum('dtype', 'float32', _DTYPES, 'Compute dtype of both sides.')
_PEERS = 'transformers', 'x_transformers'
flags.DEFINE_enum('peer', 'transformers', _PEERS, 'The other side.')
flags.DEFINE_string(
  'hf_python', sys.executable, 'Python interpreter with torch and the peer.'
)
flags.DEFINE_string('topology', '', 'hlo: TPUs as v3:4x4, or GPUs as h200:8.')
flags.DEFINE_string('hlo_file', '', 'hlo: where to write the compiled program.')
flags.DEFINE_enum(
  'program', 'train', [*programs.PROGRAMS], 'hlo: which program to compile.'
)
_CONFIG = 'hlo: as for txl_jax.main; set keys with --config.section.key=value.'
config_flags.DEFINE_config_file('config', None, _CONFIG)
flags.FLAGS['config'].parser = config_file.Parser()


def _refuse(name, allowed):
  found = FLAGS[name].value
  found = ','.join(found) if isinstance(found, list) else found
  raise UserError(f'--{name} is {found}; allowed: {allowed}')


def _numbers(name):
  """The numbers of a list, 0 for what is no whole number."""
  return tuple(int(x) if x.isdecimal() else 0 for x in getattr(FLAGS, name))


def _use_threads():
  """Limits the workers to come; XLA has no option of its own for it."""
  count = os.cpu_count() or 1
  lowest = 1 if hasattr(os, 'sched_setaffinity') else count
  threads = FLAGS.threads or count
  if not lowest <= threads <= count:
    _refuse('threads', f'{lowest} to {count}')
  if threads < count:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
  FLAGS.threads = threads


def _softmax():
  words, width, cutoffs = FLAGS.words, FLAGS.width, _numbers('cutoffs')
  edges = [0, *cutoffs, words]
  if edges != sorted(set(edges)):
    _refuse('cutoffs', f'ascending numbers from 1 to {words - 1}')
  if width < FLAGS.div_val ** len(cutoffs):
    _refuse('div_val', f'numbers that leave the last tail a width, of {width}')
  more = width, FLAGS.div_val, FLAGS.tokens
  sizes = softmax_speed.Sizes(words, cutoffs, *more)
  return sizes._asdict(), softmax_speed.run(sizes, FLAGS.pairs)


def _spec():
  """The sizes of a model and what it reads, as both sides are told."""
  if FLAGS.d_model % 2:
    _refuse('d_model', 'even numbers')
  return {name: FLAGS[name].value for name in (*_SIZES, 'dtype', 'threads')}


def _models(benchmark):
  spec, hf_python = _spec(), os.path.expanduser(FLAGS.hf_python)
  return spec, side_by_side.run(
    benchmark, spec, FLAGS.pairs, FLAGS.peer, hf_python
  )


def _attention():
  if not 0 <= FLAGS.dropatt < 1:
    _refuse('dropatt', '0 to 0.999')
  names = attention_speed.Sizes._fields
  sizes = attention_speed.Sizes._make(FLAGS[name].value for name in names)
  return sizes._asdict(), attention_speed.run(sizes, FLAGS.pairs)


def _sliding():
  lengths = _numbers('lengths')
  if not lengths or not 1 <= min(lengths) <= max(lengths) <= 10**6:
    _refuse('lengths', 'whole numbers from 1 to 1000000')
  spec = types.SimpleNamespace(**(side_by_side.COMMON | _spec()))
  return ours.sliding(spec, lengths, FLAGS.window_tokens, FLAGS.pairs)


def _prepare():
  # One of the words is that of newlines.
  sizes = dict(megabytes=FLAGS.megabytes, distinct=FLAGS.words - 1)
  return sizes, data_speed.prepare(**sizes)


def _data():
  sizes = dict(tokens=FLAGS.megatokens * 1_000_000)
  return sizes, data_speed.cut(**sizes, repeats=FLAGS.pairs)


# Each returns the sizes and what was measured.
_BENCHMARKS = {
  **{x: functools.partial(_models, x) for x in ('train', 'eval', 'decode')},
  'attention': _attention,
  'sliding': _sliding,
  'startup': lambda: ({}, startup_speed.run(FLAGS.pairs)),
  'softmax': _softmax,
  'prepare': _prepare,
  'data': _data,
}


def main(argv: list[str]) -> None:
  """Runs the benchmark that the command names."""
  benchmark = argv[1] if argv[1:] else ''
  if FLAGS.json:
    results.check(FLAGS.json)
  _use_threads()
  if benchmark in _BENCHMARKS:
    sizes, measured = _BENCHMARKS[benchmark]()
    if FLAGS.json:
      results.write(FLAGS.json, benchmark, sizes, measured)
  elif benchmark == 'hlo':
    for name in 'topology', 'config':
      if not FLAGS[name].value:
        raise UserError(f'--{name} is missing; hlo needs it')
    files = FLAGS.hlo_file, FLAGS.json
    compiled_step.run(FLAGS.config, FLAGS.topology, *files, FLAGS.program)
  else:
    allowed = f'{", ".join(_BENCHMARKS)}, hlo'
    raise UserError(f'the benchmark is {benchmark!r}; allowed: {allowed}')


if __name__ == '__main__':
  parse = functools.partial(command_line.parse, arguments=1)
  with errors.reporting():
    app.run(main, flags_parser=parse)
