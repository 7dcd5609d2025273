"""Configs: checking their values, writing them down, comparing two of them.

The keys themselves, with defaults and meaning, are in configs/common.py;
ml_collections refuses a key or a type that is not there. Here are the values.
"""

import itertools
import json
import math

from txl_jax.errors import UserError

_CHOICES = {
  'data.corpus': (
    'pystdlib',
    'text',
    'enwik8',
    'text8',
    'wt103',
    'wt2',
    'ptb',
    'lm1b',
  ),
  'data.newline': ('keep', 'drop'),
  'data.level': ('byte', 'word'),
  'model.name': ('transformer_xl',),
  'model.same_length': ('off', 'M', 'M+1'),
  'model.memory_init': ('empty', 'zeros'),
  'model.tail_order': ('ascending', 'descending'),
  'model.dtype': ('float32', 'bfloat16'),
  'model.remat': ('none', 'scores', 'layer'),
  'train.resume': ('auto', 'must', 'never'),
  'train.nonfinite': ('stop', 'skip', 'rollback'),
  'optim.name': ('adam', 'sgd'),
  'optim.state_dtype': ('float32', 'bfloat16'),
  'optim.schedule': ('cosine', 'inverse_sqrt', 'constant', 'plateau'),
  'optim.average': ('off', 'ema', 'swa', 'nt'),
  'eval.split': ('train', 'validation', 'test'),
  'eval.same_length': ('off', 'M', 'M+1'),
  'eval.first_token': ('none', 'eos'),
  'generate.same_length': ('off', 'M', 'M+1'),
}

# (lowest, highest or None, whether the lowest itself is allowed)
_COUNT, _SIZE = (0, None, True), (1, None, True)
_POSITIVE, _SHARE = (0, None, False), (0, 1, True)
_RANGES = {
  'seed': (0, 2**32 - 1, True),
  'data.min_count': _SIZE,
  'data.max_size': _COUNT,
  'data.boundaries': (1, 2, True),
  'model.n_layer': _SIZE,
  'model.d_model': (2, None, True),
  'model.n_head': _SIZE,
  'model.d_head': _SIZE,
  'model.d_ff': _SIZE,
  'model.mem_len': _COUNT,
  'model.dropout': (0, 0.999, True),
  'model.dropatt': (0, 0.999, True),
  'model.dropout_embed': (-1, 0.999, True),
  'model.dropout_final': (-1, 0.999, True),
  'model.word_dropout': (0, 0.999, True),
  'model.activation_reg': _COUNT,
  'model.temporal_activation_reg': _COUNT,
  'model.clamp_len': _COUNT,
  'model.d_embed': _COUNT,
  'model.div_val': _SIZE,
  'model.softmax_samples': _COUNT,
  'model.init_std': _POSITIVE,
  'model.proj_init_std': _POSITIVE,
  'model.ln_eps': _POSITIVE,
  'model.unroll': _SIZE,
  'mesh.slices': (-1, None, True),
  'mesh.data': (-1, None, True),
  'mesh.fsdp': (-1, None, True),
  'mesh.tensor': (-1, None, True),
  'train.steps': _SIZE,
  'train.batch_size': _SIZE,
  'train.segment_len': _SIZE,
  'train.accumulate': _SIZE,
  'train.steps_per_dispatch': _SIZE,
  'train.log_every': _SIZE,
  'train.eval_every': _SIZE,
  'train.eval_batch_size': _SIZE,
  'train.eval_tokens': _COUNT,
  'train.save_every': _SIZE,
  'train.stall_seconds': _COUNT,
  'train.nonfinite_limit': _SIZE,
  'optim.lr': _POSITIVE,
  'optim.b1': (0, 0.999999, True),
  'optim.b2': (0, 0.999999, True),
  'optim.eps': _POSITIVE,
  'optim.momentum': (0, 0.999999, True),
  'optim.clip': _COUNT,
  'optim.weight_decay': _COUNT,
  'optim.warmup': _COUNT,
  'optim.lr_floor': _SHARE,
  'optim.plateau_factor': (0, 1, False),
  'optim.plateau_patience': _SIZE,
  'optim.ema_decay': (0, 0.999999, False),
  'optim.average_start': _COUNT,
  'optim.average_patience': _COUNT,
  'profile.start': _COUNT,
  'profile.stop': _COUNT,
  'eval.batch_size': _SIZE,
  'eval.segment_len': _SIZE,
  'eval.mem_len': _COUNT,
  'eval.clamp_len': _COUNT,
  'eval.segments_per_call': _SIZE,
  'generate.max_new_tokens': _COUNT,
  'generate.temperature': _COUNT,
  'generate.top_k': _COUNT,
  'generate.top_p': (0, 1, False),
  'generate.repetition_penalty': _POSITIVE,
  'generate.seed': (0, 2**32 - 1, True),
  'generate.samples': _SIZE,
  'generate.segment_len': _SIZE,
  'generate.mem_len': _COUNT,
  'generate.clamp_len': _COUNT,
}

# Steps at which something happens between two calls of the device.
_BETWEEN = ('train.steps', 'train.log_every', 'train.eval_every')
_BETWEEN += ('train.save_every', 'profile.start', 'profile.stop')

# Keys that may change when a run continues: its record does not depend on
# them.
_FREE = ('checkpoint', 'data.dir', 'data.path', 'data.vocab_file')
_FREE += ('train.resume', 'train.stall_seconds')
_FREE += ('train.save_every', 'train.async_checkpoints')
_FREE += ('train.tensorboard', 'train.compilation_cache')
_FREE += ('profile.', 'eval.', 'generate.')
_FREE += ('mesh.',)  # but for rounding
_FREE += ('train.nonfinite',)  # and the limit of it: what comes if that comes
_FREE += ('train.batch_size',)  # the run says what becomes of its memory


def flatten(config):
  """A ConfigDict or nested dict as {'section.key': value}."""
  flat = {}
  for key, value in config.items():
    if hasattr(value, 'items'):
      flat |= {f'{key}.{k}': v for k, v in flatten(value).items()}
    else:
      # JSON gives a tuple back as a list.
      flat[key] = tuple(value) if isinstance(value, list) else value
  return flat


def validate(config):
  """Checks every value that can be checked without data and devices.

  Raises:
    UserError: names the key, what was found and what is allowed.
  """
  flat = flatten(config)
  missing = sorted((_CHOICES.keys() | _RANGES.keys()) - flat.keys())
  if missing:
    raise UserError(
      f'{missing[0]} is missing from the config; configs/common.py has all keys'
    )

  def refuse(key, allowed):
    raise UserError(f'{key} is {flat[key]!r}; allowed: {allowed}')

  for key, choices in _CHOICES.items():
    if flat[key] not in choices:
      refuse(key, ', '.join(choices))
  for key, (low, high, inclusive) in _RANGES.items():
    value = flat[key]
    below = value < low or (value == low and not inclusive)
    if not math.isfinite(value) or below or (high is not None and value > high):
      lower = f'{"at least" if inclusive else "above"} {low}'
      refuse(key, f'{lower}, {"finite" if high is None else f"at most {high}"}')
  for key in ('model.dropout_embed', 'model.dropout_final'):
    if -1 < flat[key] < 0:
      refuse(key, '-1, or at least 0')
  if flat['model.d_model'] % 2:
    refuse('model.d_model', 'even numbers')
  _check_bins(flat, refuse)
  sizes = {k: n for k, n in flat.items() if k.startswith('mesh.')}
  for key, size in sizes.items():
    if size == 0:
      refuse(key, 'sizes above 0, or -1')
  rest = [key for key, size in sizes.items() if size == -1]
  if len(rest) > 1:
    refuse(rest[-1], 'at least 1, for another axis is -1 too')
  if flat['train.batch_size'] % flat['train.accumulate']:
    refuse('train.accumulate', f'divisors of {flat["train.batch_size"]}')
  K = flat['train.steps_per_dispatch']
  for key in _BETWEEN:
    if flat[key] % K:
      refuse(key, f'multiples of train.steps_per_dispatch, {K}')
  limit = flat['train.nonfinite_limit']
  if flat['train.nonfinite'] == 'skip' and limit >= flat['train.log_every']:
    refuse('train.nonfinite_limit', 'less than train.log_every')
  if flat['optim.warmup'] > flat['train.steps']:
    refuse('optim.warmup', f'at most train.steps, {flat["train.steps"]}')
  if flat['train.eval_tokens'] == 1:
    refuse('train.eval_tokens', '0, or at least 2')
  start, steps = flat['optim.average_start'], flat['train.steps']
  if flat['optim.average'] == 'swa' and not 0 < start < steps:
    refuse('optim.average_start', f'a step of swa, from 1 to {steps - 1}')
  if 0 < flat['profile.stop'] <= flat['profile.start']:
    refuse(
      'profile.stop', f'0, or above profile.start, {flat["profile.start"]}'
    )
  which = flat['checkpoint']
  if which not in ('best', 'latest') and not which.isdecimal():
    refuse('checkpoint', 'best, latest or a step')
  if flat['generate.prompt'] and flat['generate.prompt_file']:
    refuse('generate.prompt_file', 'nothing while generate.prompt is given')


def _check_bins(flat, refuse):
  """Checks the keys of the adaptive softmax that need no vocabulary."""
  cutoffs, ties = flat['model.cutoffs'], flat['model.tie_projs']
  edges = 0, *cutoffs
  whole = all(type(x) is int for x in cutoffs)
  if not whole or any(a >= b for a, b in itertools.pairwise(edges)):
    refuse('model.cutoffs', 'whole numbers above 0, each above the one before')
  if ties and (len(ties) != len(edges) or set(ties) - {True, False}):
    refuse('model.tie_projs', f'() or {len(edges)} of True and False')
  width = flat['model.d_embed'] or flat['model.d_model']
  if width % flat['model.div_val'] ** len(cutoffs):
    refuse(
      'model.div_val', f'numbers whose powers for each tail divide {width}'
    )
  for key, only in ('model.div_val', 1), ('model.tail_order', 'ascending'):
    if not cutoffs and flat[key] != only:
      refuse(key, f'{only} without model.cutoffs')
  if flat['model.softmax_samples'] and (cutoffs or flat['model.d_embed']):
    refuse('model.softmax_samples', '0 with model.cutoffs or model.d_embed')


def check_batch(config, rows):
  """Checks that batches can be divided among devices.

  Args:
    config: ConfigDict.
    rows: into how many parts.

  Raises:
    UserError: as in `validate`.
  """
  parts = config.train.accumulate * rows
  if config.train.batch_size % parts:
    raise UserError(
      f'train.batch_size is {config.train.batch_size}; allowed: multiples of '
      f'{parts} (train.accumulate {config.train.accumulate} x {rows}, the '
      'parts of the mesh that batches are divided over)'
    )


def check_same(now, then, workdir):
  """Checks that a run continues under the config that it began with.

  Args:
    now: flat dict of the config of this command.
    then: flat dict of the config that the run began with.
    workdir: its folder, for the message.

  Raises:
    UserError: names the first key that differs.
  """
  for key in sorted(now.keys() | then.keys()):
    a, b = now.get(key), then.get(key)
    if a != b and not key.startswith(_FREE):
      raise UserError(
        f'{workdir} holds a run with {key} = {b!r}, this command has {a!r}; '
        'continue with the same value or choose another --workdir'
      )


# Keys of the model that may change when a trained one is used: they are for
# training, give the same figures but for rounding, or have another value in
# the sections eval and generate.
_FREE_WHEN_USED = ('model.dropout', 'model.dropatt', 'model.locked_dropout')
_FREE_WHEN_USED += ('model.word_dropout', 'model.activation_reg')
_FREE_WHEN_USED += ('model.temporal_activation_reg', 'model.softmax_samples')
_FREE_WHEN_USED += ('model.init_std', 'model.proj_init_std', 'model.dtype')
_FREE_WHEN_USED += ('model.unroll', 'model.remat', 'model.mem_len')
_FREE_WHEN_USED += ('model.clamp_len', 'model.same_length')


def check_model(now, then, workdir):
  """Checks that a trained model is used under the config of its model.

  Args:
    now: flat dict of the config of this command.
    then: flat dict of the config that the model was trained with.
    workdir: its folder, for the message.

  Raises:
    UserError: names the first key that differs.
  """
  for key in sorted(k for k in then if k.startswith('model.')):
    if key.startswith(_FREE_WHEN_USED) or now.get(key) == then[key]:
      continue
    raise UserError(
      f'{workdir} holds a model with {key} = {then[key]!r}, this command has '
      f'{now.get(key)!r}; allowed: the same value, as --config='
      f'{workdir}/config.py has it'
    )


def to_json(config):
  """A config as text that `json.loads` reads."""
  return json.dumps(config.to_dict(), indent=1, sort_keys=True)


def to_python(config, command):
  """A config as a Python file that --config takes.

  Args:
    config: ConfigDict.
    command: the command that continues the run, for the docstring.
  """
  lines = [f'  c.{k} = {v!r}' for k, v in flatten(config).items()]
  sections = [k for k, v in config.items() if hasattr(v, 'items')]
  made = [f'  c.{s} = ml_collections.ConfigDict()' for s in sections]
  return '\n'.join(
    [
      '"""The config of this run, complete.',
      '',
      command,
      '"""',
      '',
      'import ml_collections',
      '',
      '',
      'def get_config():',
      '  """The config."""',
      '  c = ml_collections.ConfigDict()',
      *made,
      *lines,
      '  return c.lock()',
      '',
    ]
  )
