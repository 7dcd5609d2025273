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


# Keys, values at the edges that are allowed, values just outside.
EDGES = [
  ('seed generate.seed', [0, 2**32 - 1], [-1, 2**32]),
  ('model.dropout_embed model.dropout_final model.dropout_table',
   [-1.0, 0.0, 0.9], [-1.1, 1.0, math.nan]),
  ('model.d_model', [2, 1024, 10**6], [0, 1, 3, 10**6 + 2]),
  ('model.d_embed', [0, 256], [-1]),
  ('model.div_val', [1], [0, -1]),
  ('model.n_layer', [1, 1000], [0, -1, 1001]),
  ('data.boundaries', [1, 2], [0, 3]),
  ('data.max_size', [0, 3, 10**6], [-1, 1, 2]),
  ('data.vocab_size', [0, 1, 2**20], [-1, 2**20 + 1]),
  ('optim.plateau_factor optim.drop_factor', [TINY, 1.0], [0.0, 1.001]),
  ('optim.lr_table', [0.0, 10.0], [-TINY, math.nan, math.inf]),
  ('optim.warmup', [0, 10**9], [-1, 10**9 + 1]),
  ('optim.cosine_end', [0, 10**6], [-1, 10**9 + 1]),
  ('optim.ema_decay', [TINY, 0.999999], [0.0, -0.1, 1.0, math.nan]),
  ('optim.average_factor optim.lr_floor optim.warmup_fraction',
   [0.0, 1.0], [-TINY, 1.001]),
  ('generate.top_p', [TINY, 1.0], [0.0, 1.001]),
  ('generate.temperature', [0.0, 1e-6, 10.0], [-TINY, 9e-7, math.inf]),
  ('generate.repetition_penalty', [0.01, 10.0], [0.0, 0.009, math.inf]),
  ('train.accumulate', [1, 2, 11, 22], [0, 3, 44]),
  ('train.batch_size', [1, 2**21 - 1], [0, 2**21, 10**9]),
  ('watch.lost_seconds', [5.0, 300.0], [4.9, 0.0, math.nan, math.inf]),
  ('eval.temperature', [0.01, 1.0, 10.0], [0.0, 0.009, math.nan, math.inf]),
  ('eval.window eval.context train.epochs train.eval_every_epochs '
   'train.context train.eval_context train.eval_segment_len '
   'train.varlen_limit train.sample_tokens generate.window',
   [0, 10**6], [-1, 10**6 + 1]),
  ('optim.average_start_epoch', [1, 10**6], [-1, 10**6 + 1]),
  ('attention_maps.passage', [1, 1000], [0, -1, 1001]),
  ('attention_maps.tokens', [20, 10**6], [0, -1, 10**9 + 1]),
  ('eval.segment_len eval_speed.tokens generate.samples generate.segment_len',
   [1, 10**6], [0, -1, 10**6 + 1]),
  ('recl.resamples', [0, 10**5], [-1, 10**5 + 1]),
  ('recl.step', [1, 500], [0, -1, 501]),
  ('recl.longest', [200, 10**6], [1, 0, 10**6 + 1]),
  ('checkpoint', ['best', 'latest', '0', '120'], ['', 'newest', '-1', '1.5']),
  ('data.min_count model.n_head model.d_head model.d_ff train.steps '
   'train.segment_len train.eval_batch_size train.nonfinite_limit '
   'train.log_every train.eval_every train.save_every optim.plateau_patience '
   'eval.batch_size eval.segments_per_call recl.positions recl.batch_size '
   'eval_speed.repeats',
   [1, 10**6], [0, -1, 10**9 + 1, 10**30]),
  ('model.mem_len model.clamp_len model.unroll train.eval_tokens '
   'train.patience optim.drop_at optim.average_start optim.average_patience '
   'profile.start profile.stop attention_length.tokens attention_maps.start '
   'attention_maps.context eval.model.mem_len eval.model.clamp_len '
   'generate.prompt_tokens generate.prompt_start generate.max_new_tokens '
   'generate.top_k generate.model.mem_len generate.model.clamp_len',
   [0, 10**6], [-1, 10**9 + 1, 10**30]),
  ('model.dropout model.dropatt model.dropout_qkv model.dropout_final_plain '
   'model.word_dropout optim.b1 optim.b2 optim.momentum',
   [0.0, 0.9], [-0.1, 1.0, math.nan]),
  ('model.init_std model.proj_init_std model.ln_eps optim.lr optim.eps',
   [TINY, 10.0], [0.0, -1.0, math.nan, math.inf]),
  ('model.activation_reg model.temporal_activation_reg optim.clip optim.l2 '
   'optim.weight_decay',
   [0.0, 10.0], [-TINY, math.nan, math.inf]),
]  # fmt: skip
RANGES = [(key, *values) for keys, *values in EDGES for key in keys.split()]


@pytest.mark.parametrize('key, allowed, outside', RANGES)
def test_edges(key, allowed, outside):
  for value in allowed:
    config = edge(key, value)
    sections.read(config)
  for value in outside:
    message = refused(edge(key, value))
    assert message.startswith(f'{key} is {value!r}; allowed: ')


def test_edges_of_other_models():
  for model, key, allowed, outside in (
    ('gcnn', 'd_model', 10**6, 10**6 + 1), ('lstm', 'n_layer', 1000, 1001),
    ('qrnn', 'zoneout', 0.0, -TINY), ('qrnn', 'zoneout', 0.999, 1.0),
  ):  # fmt: skip
    c = sections.compose(model)
    c.model.update({'tie_weights': False, key: allowed})
    sections.read(c)
    c.model[key] = outside
    assert refused(c).startswith(f'model.{key} is {outside!r}; allowed: ')


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
  for holder in settings.sections(config).values():
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
FREE_SECTIONS += ('attention_length', 'recl', 'eval_speed', 'attention_maps')


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
  assert sections.same_experiment(settings.all_keys(found), 'optim.gone')
  assert not differ({k: x for k, x in then.items() if k not in free})
  for key in then.keys() - free:
    assert differ(then | {key: 'else'}) == [(key, 'else', then[key])]
    without = {k: x for k, x in then.items() if k != key}
    assert not differ(without)  # it had its default


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
  found, others = {}, ['transformer_xl']
  for part in page.split('\n## ')[1:]:
    name, table = part.split('\n\n', 1)
    if name.startswith('model, '):
      others.append(name.rpartition(' ')[2])
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
  assert list(found) == list(declared()) and others == list(MODELS)
  assert found['optim.lr'][0] == '`0.00025`'
  assert found['eval.model.mem_len'][0] == 'as trained'
  assert found['train.nonfinite'][1].endswith('*Resume.*')
  assert r'the word \<eos>' in found['data.eos'][1]
