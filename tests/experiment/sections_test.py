"""The values that the sections of a config allow, and the page of all keys."""

import dataclasses
import math
import pathlib
import re

import pytest

from tests import config_page
from tests.modes.changes import changed, refused
from txl_jax.configs import common
from txl_jax.experiment import sections
from txl_jax.models import MODELS
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.program.settings import AT_TEST_TIME, ON_RESUME, OTHER

ROOT = pathlib.Path(__file__).parents[2]
TINY = 1e-30


# A corpus that the other keys of the section go with.
CORPORA = {
  'data.newline': dict(data__corpus='enwik8'),
  'data.alphabet': dict(data__corpus='enwik8'),
  'data.boundaries': dict(data__corpus='lm1b'),
  'train.context': dict(model__mem_len=0),
  'train.eval_context': dict(model__mem_len=0),
  'eval.context': dict(eval__model__mem_len=0),
  'optim.average_start_epoch': dict(optim__average='swa'),
}
TEXT = dict(data__corpus='text', data__path='a.txt', data__level='word')
CORPORA |= dict.fromkeys(
  ('data.vocab_size', 'data.id_dtype'), TEXT | dict(data__level='id')
)


def edge(key, value):
  of_text = key.startswith('data.') and key != 'data.corpus'
  fitting = CORPORA.get(key, TEXT if of_text else {})
  if value == 'text':
    fitting = dict(data__path='a.txt')
  return changed(**{**fitting, key.replace('.', '__'): value})


# Key, values at the edges that are allowed, values just outside.
RANGES = [
  ('seed', [0, 2**32 - 1], [-1, 2**32]),
  ('model.dropout_embed', [-1.0, 0.0, 0.9], [-1.1, 1.0, math.nan]),
  ('model.dropout_final', [-1.0, 0.0, 0.9], [-1.1, 1.0, math.nan]),
  ('model.dropout_table', [-1.0, 0.0, 0.9], [-1.1, 1.0, math.nan]),
  ('generate.seed', [0, 2**32 - 1], [-1, 2**32]),
  ('model.d_model', [2, 1024], [0, 1, 3]),
  ('model.d_embed', [0, 256], [-1]),
  ('model.div_val', [1], [0, -1]),
  ('data.boundaries', [1, 2], [0, 3]),
  ('data.max_size', [0, 3, 10**6], [-1, 1, 2]),
  ('data.vocab_size', [0, 1, 2**20], [-1, 2**20 + 1]),
  ('optim.plateau_factor', [TINY, 1.0], [0.0, 1.001]),
  ('optim.drop_factor', [TINY, 1.0], [0.0, 1.001]),
  ('optim.average_factor', [0.0, 1.0], [-TINY, 1.001]),
  ('optim.lr_table', [0.0, 10.0], [-TINY, math.nan, math.inf]),
  ('optim.cosine_end', [0, 10**6], [-1, 10**9 + 1]),
  ('optim.ema_decay', [TINY, 0.999999], [0.0, -0.1, 1.0, math.nan]),
  ('generate.top_p', [TINY, 1.0], [0.0, 1.001]),
  ('generate.temperature', [0.0, 1e-6, 10.0], [-TINY, 9e-7, math.inf]),
  ('optim.lr_floor', [0.0, 1.0], [-TINY, 1.001]),
  ('optim.warmup', [0, 10**9], [-1, 10**9 + 1]),
  ('optim.warmup_fraction', [0.0, 1.0], [-TINY, 1.001]),
  ('train.accumulate', [1, 2, 11, 22], [0, 3, 44]),
  ('train.batch_size', [1, 2**21 - 1], [2**21, 10**9]),
  ('model.n_layer', [1, 1000], [0, -1, 1001]),
  ('watch.lost_seconds', [5.0, 300.0], [4.9, 0.0, math.nan, math.inf]),
  ('eval.window', [0, 10**6], [-1, 10**6 + 1]),
  ('eval.context', [0, 10**6], [-1, 10**6 + 1]),
  ('eval.temperature', [0.01, 1.0, 10.0], [0.0, 0.009, math.nan, math.inf]),
  ('train.epochs', [0, 10**6], [-1, 10**6 + 1]),
  ('train.eval_every_epochs', [0, 10**6], [-1, 10**6 + 1]),
  ('optim.average_start_epoch', [1, 10**6], [-1, 10**6 + 1]),
  ('train.context', [0, 10**6], [-1, 10**6 + 1]),
  ('train.eval_context', [0, 10**6], [-1, 10**6 + 1]),
  ('train.eval_segment_len', [0, 10**6], [-1, 10**6 + 1]),
  ('train.varlen_limit', [0, 10**6], [-1, 10**6 + 1]),
  ('train.sample_tokens', [0, 10**6], [-1, 10**6 + 1]),
  ('generate.window', [0, 10**6], [-1, 10**6 + 1]),
  ('attention_maps.passage', [1, 1000], [0, -1, 1001]),
  ('attention_maps.tokens', [20, 10**6], [0, -1, 10**9 + 1]),
  ('generate.repetition_penalty', [0.01, 10.0], [0.0, 0.009, math.inf]),
  ('eval.segment_len', [1, 10**6], [0, 10**6 + 1]),
  ('recl.resamples', [0, 10**5], [-1, 10**5 + 1]),
  ('recl.step', [1, 500], [0, -1, 501]),
  ('recl.longest', [200, 10**6], [1, 0, 10**6 + 1]),
  ('checkpoint', ['best', 'latest', '0', '120'], ['', 'newest', '-1', '1.5']),
]
SIZES = {
  'data': ('min_count',),
  'model': ('n_head', 'd_head', 'd_ff'),
  'train': (
    'steps',
    'batch_size',
    'segment_len',
    'eval_batch_size',
    'nonfinite_limit',
    'log_every',
    'eval_every',
    'save_every',
  ),
  'optim': ('plateau_patience',),
  'eval': ('batch_size', 'segment_len', 'segments_per_call'),
  'recl': ('positions', 'batch_size'),
  'eval_speed': ('tokens', 'repeats'),
  'generate': ('samples', 'segment_len'),
}
COUNTS = {
  'model': ('mem_len', 'clamp_len', 'unroll'),
  'train': ('eval_tokens', 'patience'),
  'optim': ('drop_at', 'average_start', 'average_patience'),
  'profile': ('start', 'stop'),
  'eval': ('window',),
  'attention_length': ('tokens',),
  'attention_maps': ('start', 'context'),
  'eval.model': ('mem_len', 'clamp_len'),
  'generate': (
    'prompt_tokens',
    'prompt_start',
    'max_new_tokens',
    'top_k',
    'window',
  ),
  'generate.model': ('mem_len', 'clamp_len'),
}
BELOW_ONE = {
  'model': (
    'dropout',
    'dropatt',
    'dropout_qkv',
    'dropout_final_plain',
    'word_dropout',
  ),
  'optim': ('b1', 'b2', 'momentum'),
}
POSITIVE = {
  'model': ('init_std', 'proj_init_std', 'ln_eps'),
  'optim': ('lr', 'eps'),
}
FROM_ZERO = {
  'model': ('activation_reg', 'temporal_activation_reg'),
  'optim': ('clip', 'l2', 'weight_decay'),
}
RANGES += [
  (f'{section}.{key}', allowed, outside)
  for keys, allowed, outside in (
    (SIZES, [1, 10**6], [0, -1, 10**9 + 1, 10**30]),
    (COUNTS, [0, 10**6], [-1, 10**9 + 1, 10**30]),
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
    sections.read(config)
  for value in outside:
    message = refused(edge(key, value))
    assert message.startswith(f'{key} is {value!r}; allowed: ')


def declared():
  """{'section.key': dataclass field} of every key."""
  return {
    f'{name}.{f.name}'.lstrip('.'): f
    for name, section in settings.sections(sections.defaults()).items()
    for f in dataclasses.fields(section)
    if 'key' in f.metadata
  }


def test_every_number_has_edges():
  numbers = {key for key, f in declared().items() if f.type in (int, float)}
  numbers -= {key for key in numbers if key.startswith('mesh.')}  # make_mesh
  assert {key for key, *_ in RANGES} == numbers | {'checkpoint'}


def test_a_config_has_the_keys_that_are_declared():
  defaults = {key: f.default for key, f in declared().items()}
  assert settings.flatten(sections.compose()) == defaults
  assert settings.flatten(common.get_config()) == defaults


@pytest.mark.parametrize('model', MODELS)
def test_a_config_is_equal_to_one_read_back_and_does_not_change(model):
  config = sections.read(sections.compose(model))
  assert config == sections.defaults(model)
  other = sections.changed(config, {'seed': 3})
  assert (config.seed, other.seed) == (0, 3) and other != config
  for holder in config, config.train, config.model, config.eval.model:
    with pytest.raises(dataclasses.FrozenInstanceError):
      holder.seed = 1
  with pytest.raises(UserError, match=r'^train\.steps is 0; allowed: '):
    sections.changed(config, {'train.steps': 0})


SPANS = 'off, M, M+1'
CHOICES = {
  'data.corpus': 'pystdlib, text, enwik8, text8, wt103, wt2, ptb, lm1b',
  'data.newline': 'keep, drop',
  'data.splits': 'names, none',
  'data.alphabet': 'seen, bytes',
  'data.level': 'byte, word, subword, id, auto',
  'data.id_dtype': 'uint8, uint16, uint32, int32, int64',
  'data.documents': 'none, file, record, line, blank, separator',
  'data.boundaries': '1, 2',
  'model.name': ', '.join(MODELS),
  'model.same_length': SPANS,
  'model.memory_init': 'empty, zeros',
  'model.tail_order': 'ascending, descending',
  'model.dropped_words': 'zero, tiny',
  'model.dtype': 'float32, bfloat16',
  'model.remat': 'none, scores, layer',
  'model.attention': 'auto, xla, triton, tpu, tpu_shift',
  'train.loss': 'full, half',
  'train.rows': 'joined, apart',
  'train.resume': 'auto, must, never',
  'train.nonfinite': 'stop, rollback',
  'optim.name': 'adam, sgd',
  'optim.state_dtype': 'float32, bfloat16',
  'optim.schedule': 'cosine, annealing, inverse_sqrt, constant, drop, plateau',
  'optim.average': 'off, ema, swa, nt',
  'eval.split': 'train, validation, test',
  'eval.first_token': 'none, eos',
  'eval.model.same_length': SPANS,
  'eval_speed.window': 'same, al_rfou',
  'generate.stop': 'none, line',
  'generate.model.same_length': SPANS,
}


@pytest.mark.parametrize('key', CHOICES)
@pytest.mark.parametrize('value', ['', 'on', 'M-1'])
def test_choices(key, value):
  allowed = ', '.join(MODELS) if key == 'model.name' else CHOICES[key]
  expected = f'{key} is {value!r}; allowed: {allowed}'
  assert refused(edge(key, value)) == expected


@pytest.mark.thorough
def test_every_choice_is_in_the_table():
  found = {key for key, f in declared().items() if f.metadata['key'].choices}
  assert found == CHOICES.keys()
  for key, names in CHOICES.items():
    for name in names.split(', '):
      value = int(name) if name.isdecimal() else name
      entry = declared()[key].metadata['key']
      if key == 'model.name':
        continue  # each is a choice of its own keys alone
      assert value in entry.choices
      if key == 'optim.average' or name in ('drop', 'separator'):
        continue  # swa needs a start, a drop a step, a separator its text
      if key != 'model.tail_order' or name == 'ascending':
        sections.read(edge(key, value))


# Keys that may change when a run continues, besides those of FREE_SECTIONS.
FREE = {'experiment', 'origin', 'checkpoint', 'deterministic', 'data.dir'}
FREE |= {'data.path', 'data.validation_path', 'data.test_path'}
FREE |= {'data.tokenizer', 'data.vocab_file'}
# Of these sections, and of the dropouts of the model, all but these may change.
FIXED = {'train.segment_len', 'train.context', 'train.varlen', 'train.rows'}
FIXED |= {'train.varlen_limit', 'train.init_from', 'optim.name'}
FIXED |= {'optim.state_dtype', 'optim.average', 'optim.average_start'}
FIXED |= {'optim.average_start_epoch'}
FREE_SECTIONS = ('profile', 'mesh', 'watch', 'eval', 'generate')
FREE_SECTIONS += (
  'attention_length',
  'recl',
  'eval_speed',
  'attention_maps',
)


def test_keys_that_may_change_when_a_run_continues():
  then = settings.flatten(common.get_config())
  assert then.keys() >= FREE
  free = {k for k in then if k in FREE or k.split('.')[0] in FREE_SECTIONS}
  free |= {k for k in then if k.startswith(('train.', 'optim.'))} - FIXED
  free |= {f'model.{k}' for k in USED - LENGTHS}
  found = sections.defaults()

  def differ(now):
    return list(settings.differences(found, now, then, ON_RESUME, OTHER))

  assert not differ(then | dict.fromkeys(free, 'else'))
  assert not differ({k: x for k, x in then.items() if k not in free})
  for key in then.keys() - free:
    assert differ(then | {key: 'else'}) == [(key, 'else', then[key])]
    without = {k: x for k, x in then.items() if k != key}
    assert not differ(without)  # it had its default
  # A name that begins like that of a key that may change.
  for key in 'train.nonfinite_', 'train.nonfinite_share', 'checkpoints':
    assert differ(then | {key: 1}) == [(key, 1, None)]
  for key in 'eval.mem_len', 'eval.model.d_ff', 'mesh.data_', 'evaluate.split':
    assert differ(then | {key: 1}) == [(key, 1, None)]


# Keys of the model that may differ when a trained one is used.
USED = {'dropout', 'dropout_embed', 'dropout_final', 'dropatt', 'word_dropout'}
USED |= {'locked_dropout', 'activation_reg', 'temporal_activation_reg'}
USED |= {'dropout_final_plain', 'dropout_table', 'locked_table', 'dropout_qkv'}
USED |= {'dropped_words', 'activation_reg_dropped'}
USED |= {'init_std', 'proj_init_std', 'dtype', 'unroll'}
USED |= {'remat', 'attention', 'mem_len', 'clamp_len', 'same_length'}
# Not when a run continues.
LENGTHS = {'mem_len', 'clamp_len', 'same_length'}


def test_keys_of_the_model_that_may_differ_in_use():
  free = (AT_TEST_TIME, ON_RESUME, OTHER)
  entries = settings.keys(sections.defaults().model)
  assert {k for k, entry in entries.items() if entry.may_change in free} == USED
  for use in sections.defaults().eval, sections.defaults().generate:
    overrides = settings.keys(use.model)
    assert overrides.keys() == {'mem_len', 'clamp_len', 'same_length'}


def test_a_config_of_a_model_that_there_is_not():
  with pytest.raises(UserError, match=r'model.name is .lstn.; allowed: transf'):
    common.get_config('lstn')


def test_a_model_that_there_is_not():
  for value in 'rnn', None, 3:
    names = ', '.join(MODELS)
    expected = f'model.name is {value!r}; allowed: {names}'
    assert refused(edge('model.name', value)) == expected
  for config in {}, {'model': 3}, {'model': {}}:
    assert refused(config) == f'model.name is None; allowed: {names}'


def test_the_page_of_keys_is_current_and_can_be_read():
  page = (ROOT / 'docs/config.md').read_text()
  assert page == config_page.page() + '\n'
  head = '| key | default | meaning |\n|---|---|---|\n'
  found = {}
  for part in page.split('\n## ')[1:]:
    name, table = part.split('\n\n', 1)
    if name.startswith('model, '):
      check_other_model(name.rpartition(' ')[2], table)
      continue
    assert table.startswith(head)
    for line in table.removeprefix(head).strip().splitlines():
      first, *row, last = re.split(r'(?<!\\)\|', line)
      assert first == last == ''
      key, default, meaning = map(str.strip, row)
      assert default and meaning
      # Outside code, this would begin a tag of HTML.
      assert not re.search(r'(?<!\\)<', re.sub('`[^`]*`', '', meaning))
      name = '' if name == 'outside sections' else name
      found[f'{name}.{key}'.lstrip('.')] = default, meaning
  assert list(found) == list(declared())
  assert found['optim.lr'][0] == '`0.00025`'
  assert found['eval.model.mem_len'][0] == 'as trained'
  assert found['train.nonfinite'][1].endswith('*Resume.*')
  assert r'the word \<eos>' in found['data.eos'][1]


def check_other_model(name, text):
  """It has a row for each key that Transformer-XL has not, or otherwise."""
  first, own = (MODELS[x].Config for x in ('transformer_xl', name))
  there, keys = settings.keys(first), settings.keys(own)
  defaults = [
    {f.name: f.default for f in dataclasses.fields(x)} for x in (first, own)
  ]
  differ = [
    k
    for k in keys
    if (keys[k], defaults[1][k]) != (there.get(k), defaults[0].get(k))
  ]
  rows = [x.split(' | ')[0] for x in text.splitlines() if x.startswith('| ')]
  assert rows == ['| key', *(f'| {k}' for k in differ)]
  without = ', '.join(f'`{k}`' for k in there if k not in keys)
  assert text.startswith(f'Without {without}.' if without else '| key')


def test_the_page_tells_of_every_model():
  page = (ROOT / 'docs/config.md').read_text()
  heads = re.findall('## model, where model.name is (.*)', page)
  assert ['transformer_xl', *heads] == list(MODELS)
