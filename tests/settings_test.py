import importlib.util
import json
import math

import pytest

from configs import common
from txl_jax import settings
from txl_jax.errors import UserError

TINY = 1e-30


def changed(**values):
  """The defaults with section__key=value replaced."""
  config = common.get_config()
  with config.ignore_type():
    config.update_from_flattened_dict(
      {key.replace('__', '.'): value for key, value in values.items()}
    )
  return config


def refused(config):
  with pytest.raises(UserError) as e:
    settings.validate(config)
  assert '\n' not in str(e.value)
  return str(e.value)


def edge(key, value):
  return changed(**{key.replace('.', '__'): value})


# Key, values at the edges that are allowed, values just outside.
RANGES = [
  ('seed', [0, 2**32 - 1], [-1, 2**32]),
  ('model.dropout_embed', [-1.0, 0.0, 0.9], [-1.1, -0.5, 1.0, math.nan]),
  ('model.dropout_final', [-1.0, 0.0, 0.9], [-1.1, -0.5, 1.0, math.nan]),
  ('generate.seed', [0, 2**32 - 1], [-1, 2**32]),
  ('model.d_model', [2, 1024], [0, 1, 3]),
  ('model.d_embed', [0, 256], [-1]),
  ('model.div_val', [1], [0, -1]),
  ('data.boundaries', [1, 2], [0, 3]),
  ('optim.plateau_factor', [TINY, 1.0], [0.0, 1.001]),
  ('optim.ema_decay', [TINY, 0.999999], [0.0, -0.1, 1.0, math.nan]),
  ('generate.top_p', [TINY, 1.0], [0.0, 1.001]),
  ('optim.lr_floor', [0.0, 1.0], [-TINY, 1.001]),
  ('optim.warmup', [0, 400_000], [-1, 400_001]),
  ('train.accumulate', [1, 2, 11, 22], [0, 3, 44]),
  ('mesh.data', [-1, 1, 8], [0, -2]),
  ('mesh.slices', [1, 8], [0, -1, -2]),  # mesh.data is -1 already
  ('mesh.fsdp', [1, 8], [0, -1, -2]),
  ('mesh.tensor', [1, 8], [0, -1, -2]),
  ('train.steps_per_dispatch', [1, 50, 100], [0, -1]),
  ('checkpoint', ['best', 'latest', '0', '120'], ['', 'newest', '-1', '1.5']),
]
EVERY = ('log_every', 'eval_every', 'save_every')
SIZES = {
  'data': ('min_count',),
  'model': ('n_layer', 'n_head', 'd_head', 'd_ff', 'unroll'),
  'train': (
    'steps',
    'batch_size',
    'segment_len',
    'eval_batch_size',
    'nonfinite_limit',
    *EVERY,
  ),
  'optim': ('plateau_patience',),
  'eval': ('batch_size', 'segment_len', 'segments_per_call'),
  'generate': ('samples', 'segment_len'),
}
COUNTS = {
  'model': ('mem_len', 'clamp_len', 'softmax_samples'),
  'data': ('max_size',),
  'train': ('eval_tokens',),
  'optim': ('average_start', 'average_patience'),
  'profile': ('start', 'stop'),
  'eval': ('mem_len', 'clamp_len'),
  'generate': ('max_new_tokens', 'top_k', 'mem_len', 'clamp_len'),
}
BELOW_ONE = {
  'model': ('dropout', 'dropatt', 'word_dropout'),
  'optim': ('b1', 'b2', 'momentum'),
}
POSITIVE = {
  'model': ('init_std', 'proj_init_std', 'ln_eps'),
  'optim': ('lr', 'eps'),
  'generate': ('repetition_penalty',),
}
FROM_ZERO = {
  'model': ('activation_reg', 'temporal_activation_reg'),
  'train': ('stall_seconds',),
  'optim': ('clip', 'weight_decay'),
  'generate': ('temperature',),
}
RANGES += [
  (f'{section}.{key}', allowed, outside)
  for keys, allowed, outside in (
    (SIZES, [1, 10**6], [0, -1]),
    (COUNTS, [0, 10**6], [-1]),
    (BELOW_ONE, [0.0, 0.9], [-0.1, 1.0, math.nan]),
    (POSITIVE, [TINY, 10.0], [0.0, -1.0, math.nan, math.inf]),
    (FROM_ZERO, [0.0, 10.0], [-TINY, math.nan, math.inf]),
  )
  for section in keys
  for key in keys[section]
]


@pytest.mark.parametrize('key, allowed, outside', RANGES)
def test_edges(key, allowed, outside):
  for value in allowed:
    config = edge(key, value)
    if key == 'train.steps':
      config.optim.warmup = 0
    settings.validate(config)
  for value in outside:
    message = refused(edge(key, value))
    assert message.startswith(f'{key} is {value!r}; allowed: ')


def test_every_number_has_edges():
  numbers = {
    key
    for key, value in settings.flatten(common.get_config()).items()
    if isinstance(value, int | float) and not isinstance(value, bool)
  }
  assert {key for key, *_ in RANGES} == numbers | {'checkpoint'}


@pytest.mark.parametrize(
  'key, value, allowed',
  [
    (
      'data.corpus',
      'wikitext',
      'pystdlib, text, enwik8, text8, wt103, wt2, ptb, lm1b',
    ),
    ('data.level', 'char', 'byte, word'),
    ('eval.first_token', '<eos>', 'none, eos'),
    ('model.same_length', 'on', 'off, M, M+1'),
    ('model.dtype', 'float16', 'float32, bfloat16'),
    ('optim.name', '', 'adam, sgd'),
    ('optim.state_dtype', 'float16', 'float32, bfloat16'),
    ('optim.average', 'on', 'off, ema, swa, nt'),
    ('eval.split', 'valid', 'train, validation, test'),
  ],
)
def test_choices(key, value, allowed):
  assert refused(edge(key, value)) == f'{key} is {value!r}; allowed: {allowed}'


@pytest.mark.parametrize(
  'key, value, allowed',
  [
    (
      'model.cutoffs',
      (5, 5),
      'whole numbers above 0, each above the one before',
    ),
    (
      'model.cutoffs',
      (0, 5),
      'whole numbers above 0, each above the one before',
    ),
    ('model.cutoffs', (5, 7.5), 'whole numbers above 0, each above the one'),
    ('model.tie_projs', (True,), '() or 3 of True and False'),
    ('model.div_val', 3, 'numbers whose powers for each tail divide 512'),
    ('model.softmax_samples', 9, '0 with model.cutoffs or model.d_embed'),
  ],
)
def test_adaptive_softmax(key, value, allowed):
  good = dict(cutoffs=(5, 7), tie_projs=(False, True, True), div_val=4)
  config = changed(**{f'model__{k}': v for k, v in good.items()})
  settings.validate(config)
  config[key.split('.')[0]][key.split('.')[1]] = value
  assert refused(config).startswith(f'{key} is {value!r}; allowed: {allowed}')


@pytest.mark.parametrize(
  'key, value, allowed',
  [('div_val', 2, 1), ('tail_order', 'descending', 'asc')],
)
def test_options_of_tails_without_tails(key, value, allowed):
  config = changed(**{f'model__{key}': value})
  assert refused(config).startswith(
    f'model.{key} is {value!r}; allowed: {allowed}'
  )


def test_an_evaluation_of_one_token():
  settings.validate(changed(train__eval_tokens=2))
  assert refused(changed(train__eval_tokens=1)) == (
    'train.eval_tokens is 1; allowed: 0, or at least 2'
  )


def test_an_average_that_never_starts():
  steps = common.get_config().train.steps
  settings.validate(
    changed(optim__average='swa', optim__average_start=steps - 1)
  )
  settings.validate(changed(optim__average='nt', optim__average_start=steps))
  for start in 0, steps:
    wrong = changed(optim__average='swa', optim__average_start=start)
    assert refused(wrong).startswith(
      f'optim.average_start is {start}; allowed: a step of swa, from 1 to '
    )


def test_a_trace_without_steps():
  settings.validate(changed(profile__start=5, profile__stop=6))
  settings.validate(changed(profile__start=5, profile__stop=0))
  message = refused(changed(profile__start=5, profile__stop=5))
  assert message == 'profile.stop is 5; allowed: 0, or above profile.start, 5'


def test_what_happens_between_dispatches():
  settings.validate(changed(train__steps_per_dispatch=100))
  message = refused(changed(train__steps_per_dispatch=7))
  expected = 'multiples of train.steps_per_dispatch, 7'
  assert message == f'train.steps is 400000; allowed: {expected}'
  every = {f'train__{key}': 8 for key in EVERY}
  every |= dict(train__steps_per_dispatch=4, train__steps=80, profile__stop=16)
  settings.validate(changed(**every))
  for key in (*every.keys() - {'train__steps_per_dispatch'}, 'profile__start'):
    message = refused(changed(**(every | {key: 10})))
    name = key.replace('__', '.')
    assert message.startswith(f'{name} is 10; allowed: multiples of ')


def test_two_prompts():
  config = changed(generate__prompt='a', generate__prompt_file='b')
  assert refused(config).startswith("generate.prompt_file is 'b'; allowed: ")


def test_batch():
  config = changed(train__batch_size=24, train__accumulate=3)
  for rows in (1, 2, 4, 8):
    settings.check_batch(config, rows)
  with pytest.raises(UserError, match=r'batch_size is 24; .* multiples of 15 '):
    settings.check_batch(config, 5)


def test_mesh():
  assert refused(changed(mesh__tensor=-1)) == (
    'mesh.tensor is -1; allowed: at least 1, for another axis is -1 too'
  )
  settings.validate(changed(mesh__tensor=-1, mesh__data=1))


def test_limit_of_updates_left_out():
  config = changed(train__nonfinite='skip', train__nonfinite_limit=99)
  settings.validate(config)
  for limit in 100, 101:
    config.train.nonfinite_limit = limit
    assert refused(config) == (
      f'train.nonfinite_limit is {limit}; allowed: less than train.log_every'
    )
    settings.validate(
      changed(train__nonfinite='rollback', train__nonfinite_limit=limit)
    )


def test_same_model():
  then = settings.flatten(common.get_config())
  now = then | {'model.dropout_embed': 0.5, 'model.mem_len': 7, 'seed': 3}
  now |= {'model.dtype': 'bfloat16', 'train.batch_size': 2}
  settings.check_model(now, then, 'run')
  for key, value in ('pre_norm', True), ('ln_eps', 1e-6), ('cutoffs', (9,)):
    with pytest.raises(UserError) as e:
      settings.check_model(now | {f'model.{key}': value}, then, 'run')
    assert str(e.value).startswith(
      f'run holds a model with model.{key} = {then[f"model.{key}"]!r}, this '
      f'command has {value!r}; allowed: '
    )
  # A key that came later than the run.
  del then['model.pre_norm']
  settings.check_model(now | {'model.pre_norm': True}, then, 'run')


def test_same_config():
  then = settings.flatten(common.get_config())
  free = ['checkpoint', 'data.dir', 'data.path', 'train.resume']
  free += ['train.save_every', 'train.tensorboard', 'eval.split']
  free += ['profile.start', 'profile.stop', 'train.compilation_cache']
  free += ['eval.mem_len', 'generate.seed', 'data.vocab_file']
  free += ['mesh.data', 'mesh.fsdp', 'mesh.slices', 'mesh.tensor']
  free += ['train.stall_seconds', 'train.async_checkpoints']
  free += ['train.nonfinite', 'train.nonfinite_limit', 'train.batch_size']
  settings.check_same(then | dict.fromkeys(free), then, 'runs/a')
  for key in sorted(then.keys() - set(free)):
    if key.startswith(('eval.', 'generate.')):
      continue
    for now in ({**then, key: 'else'}, {k: then[k] for k in then if k != key}):
      with pytest.raises(UserError) as e:
        settings.check_same(now, then, 'runs/a')
      text = str(e.value)
      assert text.startswith(f'runs/a holds a run with {key} = {then[key]!r}, ')
      assert '\n' not in text


def test_python_file_gives_the_config_back(tmp_path):
  prompt = 'say "é"\n\'\\ """ {x}'
  config = changed(generate__prompt=prompt, optim__lr=1e-7, seed=3)
  path = tmp_path / 'config.py'
  path.write_text(settings.to_python(config, 'python -m txl_jax.main …'))
  spec = importlib.util.spec_from_file_location('written', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  again = module.get_config()
  assert again.to_dict() == config.to_dict()
  assert again.is_locked and again.optim.is_locked
  assert 'python -m txl_jax.main …' in module.__doc__
  read = json.loads(settings.to_json(config))
  assert settings.flatten(read) == settings.flatten(config)
