"""Keys of a config, on sections that are made here."""

import dataclasses
import importlib.util
import json
import math

import numpy as np
import pytest

from txl_jax.experiment import sections
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.program.settings import AT_TEST_TIME, NEVER, ON_RESUME, OTHER, key


@dataclasses.dataclass(frozen=True)
class Oven:
  fuel: str = key('gas', 'What burns.', choices={'gas': 'blue', 'wood': ''})
  level: int = key(1, 'Which.', choices={1: 'low', 2: 'high'}, may_change=OTHER)
  heat: float = key(0.5, 'How hot.', above=0, at_most=1)
  trays: int = key(3, 'How many.', at_least=1, may_change=AT_TEST_TIME)
  shape: str = key('flat', 'What of.', choices=('flat', 'deep'))
  fan: bool = key(False, 'Whether it blows.', may_change=ON_RESUME)
  fan_speed: float = key(0.0, 'How much.', at_least=-1)
  label: str = key('', 'What it is called.', may_change=AT_TEST_TIME)
  steps: tuple[int, ...] = key((), 'When.')
  file: str = settings.file_path('~/a', 'Where it is written.')

  def problems(self):
    if self.fan_speed and not self.fan:
      yield 'fan_speed', '0 without oven.fan'


Overrides = settings.overrides(Oven)


@dataclasses.dataclass(frozen=True)
class Hot(Oven):
  late: Overrides = dataclasses.field(default_factory=Overrides)


@dataclasses.dataclass(frozen=True)
class Root:
  seed: int = key(0, 'Of all.', at_least=0)
  oven: Hot = dataclasses.field(default_factory=Hot)


def config(**changes):
  """The defaults as a ConfigDict, with key=value of the oven replaced."""
  made = settings.to_config_dict(Root())
  made.oven.update(changes)
  return made.lock()


def as_dict(**changes):
  """The same as a dict, which takes values of any type."""
  made = config().to_dict()
  made['oven'] |= changes
  return made


def read(found):
  made = settings.fill(Root(), found)
  settings.check(made)
  return made


def refused(found):
  with pytest.raises(UserError) as e:
    read(found)
  assert '\n' not in str(e.value)
  return str(e.value)


def test_a_config_has_the_defaults():
  assert config().to_dict() == {
    'seed': 0,
    'oven': {
      'fuel': 'gas', 'level': 1, 'heat': 0.5, 'trays': 3, 'shape': 'flat',
      'fan': False, 'fan_speed': 0.0, 'label': '', 'steps': (), 'file': '~/a',
      'late': {'trays': None, 'label': None},
    },
  }  # fmt: skip
  assert read(config()) == read(config().to_dict()) == Root()


def test_a_key_is_known_by_its_declaration():
  entry = settings.keys(Oven)['heat']
  assert (entry.meaning, entry.may_change) == ('How hot.', NEVER)
  assert (entry.at_least, entry.above, entry.at_most) == (None, 0, 1)
  assert entry.bounds() == 'above 0, at most 1'
  assert settings.keys(Oven)['fan'].bounds() == ''
  assert settings.keys(Oven)['shape'].choices == {'flat': '', 'deep': ''}
  assert list(settings.keys(Oven))[:3] == ['fuel', 'level', 'heat']


def test_a_number_without_bounds_is_finite():
  holds = settings.Key('', {}).holds
  assert holds(-(10**400)) and holds(1e308)
  assert not any(map(holds, (math.nan, math.inf, -math.inf)))


NUMBER = 'above 0, at most 1'
TRAYS = 'at least 1, at most 1000000000'
SPEED = 'at least -1, at most 1e+38'
WRONG = [
  (name, value, allowed)
  for name, values, allowed in (
    # Values beyond their bounds, or that are not among the choices.
    ('heat', (0.0, -0.5, 1.1, math.nan, 10**190), NUMBER),
    ('trays', (0, 10**9 + 1), TRAYS),
    ('fan_speed', (math.inf, 1e39), SPEED),
    ('label', ('a\udcff',), 'text in UTF-8'),
    ('file', ('a\0',), 'a path without the character NUL'),
    # Of another type.
    ('heat', ('0.5', None, True), 'a number'),
    ('trays', (1.5, 2.0, True), 'a whole number'),
    ('fan', ('False', 0), 'True or False'),
    ('label', (3,), 'text'),
    ('steps', (5, '5'), 'a tuple'),
    # Of either kind.
    ('fuel', ('coal', None, ['gas'], ({'gas'},)), 'gas, wood'),
    ('level', (3, '1', True, 1.0), '1, 2'),
  )
  for value in values
]


@pytest.mark.parametrize('name, value, allowed', WRONG)
def test_a_value_that_is_not_allowed(name, value, allowed):
  shown = tuple(value) if isinstance(value, list) else value
  expected = f'oven.{name} is {shown!r}; allowed: {allowed}'
  assert refused(as_dict(**{name: value})) == expected


RIGHT = [('heat', 1), ('heat', 1e-30), ('fan_speed', -1), ('trays', 1)]
RIGHT += [('trays', 10**9), ('label', 'a\0'), ('level', 2), ('label', 'é\n')]
RIGHT += [('steps', (1, 'x')), ('steps', [1])]


@pytest.mark.parametrize('name, value', RIGHT)
def test_a_value_that_is_allowed(name, value):
  made = read(as_dict(**{name: value, 'fan': True}))
  value = tuple(value) if isinstance(value, list) else value
  assert made.oven == Hot(**{name: value, 'fan': True})


def test_keys_that_do_not_go_together():
  read(config(fan_speed=2.0, fan=True))
  message = refused(config(fan_speed=2.0))
  assert message == 'oven.fan_speed is 2.0; allowed: 0 without oven.fan'


def test_keys_that_are_not_declared_or_missing():
  found = config().to_dict()
  found['oven']['trayz'] = 3
  nearest = 'there is no such key; the nearest is oven.trays'
  assert refused(found) == f'oven.trayz = 3: {nearest}'
  for name in 'grill', 'grill.heat', 'oven.late.heat', 'oven.heat.late':
    found = config().to_dict()
    *outer, own = name.split('.')
    section = found
    for part in outer:
      if not isinstance(section.get(part), dict):
        section[part] = {}
      section = section[part]
    section[own] = 1
    assert refused(found).startswith(f'{name} = 1: there is no such key; ')
  found = config().to_dict()
  del found['oven']['heat']
  assert refused(found) == 'oven.heat is missing from the config'
  del found['seed']
  assert refused(found) == 'seed is missing from the config'


def test_the_nearest_key():
  for name, nearest in ('oven.trayz', 'oven.trays'), ('ovem.heat', 'oven.heat'):
    said = settings.no_such_key(Root(), name)
    assert said.endswith(f'the nearest is {nearest}')
  for name in 'zzz', '':
    said = settings.no_such_key(Root(), name)
    assert said.endswith('docs/config.md lists all')


@pytest.mark.parametrize('value', [None, 5, 'x', ()])
def test_a_value_in_place_of_a_section(value):
  found = config().to_dict()
  found['oven']['late'] = value
  assert refused(found).startswith(f'oven.late is {value!r}; allowed: ')
  found['oven'] = value
  assert refused(found).startswith(f'oven is {value!r}; allowed: ')


@pytest.mark.parametrize(
  'value, said',
  [('x' * 10_000, "'" + 'x' * 198 + '…'), (np.zeros(2), 'array([0., 0.])')],
  ids=['text', 'array'],
)
def test_what_is_shown_of_a_value(value, said):
  for name in 'trays', 'fuel':
    message = refused(as_dict(**{name: value}))
    assert message.startswith(f'oven.{name} is {said}; allowed: ')


def test_the_home_folder(monkeypatch):
  monkeypatch.setenv('HOME', '/home/cook')
  oven = settings.expand_home(read(config(label='~/a'))).oven
  assert (oven.file, oven.label) == ('/home/cook/a', '~/a')
  odd = settings.expand_home(Root(oven=Hot(file=3)))
  with pytest.raises(UserError, match='file is 3; allowed: text'):
    settings.check(odd)


def test_overrides():
  """Of the keys that change at test time, unset until they are given."""
  assert list(settings.keys(Overrides)) == ['trays', 'label']
  assert Overrides() == Overrides(trays=None, label=None)
  entry = settings.keys(Overrides)['trays']
  assert (entry.meaning, entry.at_least) == ('How many.', 1)
  assert entry.may_change == ON_RESUME
  found = config()
  found.oven.late.trays = 2
  assert read(found).oven.late.given() == {'trays': 2}
  with pytest.raises(TypeError):
    found.oven.late.trays = '2'
  found.oven.late.trays = 0
  assert refused(found).startswith('oven.late.trays is 0; allowed: at least 1')


def test_read():
  found = {'trays': 2, 'steps': [1, 2]}
  assert settings.read(Oven, found) == Oven(trays=2, steps=(1, 2))
  with pytest.raises(TypeError, match='trayz'):
    settings.read(Oven, {'trayz': 2})


MAY_CHANGE = {
  NEVER: ('seed', 'oven.fuel', 'oven.heat', 'oven.steps', 'oven.fan_speed'),
  OTHER: ('oven.level',),
  AT_TEST_TIME: ('oven.trays', 'oven.label'),
  ON_RESUME: ('oven.fan', 'oven.late.trays', 'oven.late.label'),
}


@pytest.mark.parametrize(
  'free', [(), (ON_RESUME,), (OTHER, AT_TEST_TIME, ON_RESUME)]
)
def test_keys_that_differ(free):
  then = settings.flatten(config())
  assert not list(settings.differences(Root(), then, then, *free))
  for when, names in MAY_CHANGE.items():
    for name in names:
      other = {**then, name: 'else'}
      without = {k: x for k, x in then.items() if k != name}
      for before in then, without:  # a key that is missing had its default
        found = list(settings.differences(Root(), other, before, *free))
        assert found == [(name, 'else', then[name])] * (when not in free)
        assert not list(settings.differences(Root(), before, then, *free))


@pytest.mark.parametrize(
  'name', ['oven.fan_', 'oven.fa', 'oven.fan.speed', 'fan', 'oven', 'grill.fan']
)
def test_a_name_like_that_of_a_free_key_is_not_free(name):
  for now, then in ({name: 1}, {}), ({}, {name: 1}):
    found = list(settings.differences(Root(), now, then, ON_RESUME))
    assert found == [(name, now.get(name), then.get(name))]


def test_a_python_file_gives_the_config_back(tmp_path):
  """With numbers of numpy, and a command with what Python reads otherwise."""
  made = sections.compose()
  made.data.corpus, made.data.path = 'text', 'say "é"\n\'\\ """ {x}'
  made.optim.lr, made.model.cutoffs = 1e-7 * np.sqrt(2), (1, 2)
  made.eval.model.mem_len = 5
  command = 'python … --workdir="runs/a\\xyz\\N" \'\'\' """'
  text = settings.to_python(sections.read(made), command, {})
  (tmp_path / 'config.py').write_text(text)
  spec = importlib.util.spec_from_file_location('it', tmp_path / 'config.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  again = module.get_config()
  assert again.to_dict() == made.to_dict()
  assert again.is_locked and again.eval.model.is_locked
  assert command in module.__doc__
  # What is unset keeps its type.
  assert again.generate.model.mem_len is None
  again.generate.model.mem_len = 4
  with pytest.raises(TypeError):
    again.generate.model.mem_len = 'x'


def test_json_gives_the_config_back():
  made = read(config(steps=(1, 2), label='é'))
  found = json.loads(settings.to_json(made))
  assert settings.flatten(found) == settings.flatten(made)
  assert settings.flatten(found)['oven.steps'] == (1, 2)
  first = settings.to_json(made).splitlines()[:3]
  assert first == ['{', ' "oven": {', '  "fan": false,']  # sorted
  assert found['oven']['late'] == {'trays': None, 'label': None}


def test_a_model_of_another_name_is_told_by_its_name():
  now = {'model.name': 'b', 'model.a': 1, 'seed': 1}
  then = {'model.name': 'a'}
  found = [name for name, *_ in settings.differences(Root(), now, then)]
  assert found == ['model.name', 'model.a', 'seed']
