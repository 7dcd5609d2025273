"""Models that a config names."""

import pytest

from txl_jax import models
from txl_jax.configs import common
from txl_jax.experiment import sections
from txl_jax.models import transformer_xl, windowed
from txl_jax.program.errors import UserError

V = 11
FIELDS = dict(n_layer=2, d_model=6, n_head=2, d_head=3, d_ff=8, mem_len=6)


def test_build():
  section = dict(name='transformer_xl', **FIELDS)
  model = models.build(section, V, mem_len=9)
  assert isinstance(model, transformer_xl.TransformerXL)
  expected = transformer_xl.Config(**{**FIELDS, 'mem_len': 9})
  assert model.vocab_size == V and model.config == expected
  assert section['mem_len'] == 6  # not changed in place


def test_build_knows_no_other_key():
  with pytest.raises(TypeError, match='mem_length'):
    models.build(dict(name='transformer_xl', mem_length=3), V)


def config(**changes):
  c = common.get_config()
  c.model.update(FIELDS)
  c.model.update(changes)
  return c


@pytest.mark.parametrize('section', ['eval', 'generate'])
def test_model_at_test_time(section):
  c = config(same_length='off', clamp_len=0)
  c[section].model.update(mem_len=20, clamp_len=7, same_length='M+1')
  model = models.at_test_time(sections.read(c), V, section)
  changes = dict(mem_len=20, clamp_len=7, same_length='M+1', attention='xla')
  T, several = c[section].segment_len, section == 'eval'
  assert (model.longest, model.several) == (T, several)
  assert model.model == models.build(c.model, V, **changes)
  assert model.vocab_size == V
  assert (model.config.n_layer, model.config.mem_len) == (2, 20)
  other = 'generate' if section == 'eval' else 'eval'
  as_trained = models.at_test_time(sections.read(c), V, other)
  assert as_trained.config == models.build(c.model, V, attention='xla').config


def test_what_is_not_overridden_is_as_trained():
  c = config(same_length='M', clamp_len=5)
  c.eval.model.mem_len = 0
  model = models.at_test_time(sections.read(c), V, 'eval')
  expected = models.build(c.model, V, mem_len=0, attention='xla').config
  assert model.config == expected and expected.clamp_len == 5


def test_a_window_is_for_models_without_memory():
  c = config(mem_len=0)
  model = models.at_test_time(sections.read(c), V, 'eval', 5)
  assert isinstance(model, windowed.Windowed)
  assert (model.vocab_size, model.window) == (V, 5)
  assert model.model == models.at_test_time(sections.read(c), V, 'eval')
  c.eval.model.mem_len = 3
  with pytest.raises(UserError, match=r'^eval\.window is 5; allowed: 0, ') as e:
    models.at_test_time(sections.read(c), V, 'eval', 5)
  assert len(str(e.value).splitlines()) == 1
