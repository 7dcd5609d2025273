"""What training needs of a device, beside what XLA reserves for it."""

import jax
import pytest

from benchmarks import compiled_step
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import config_file, target_device
from txl_jax.program.errors import UserError
from txl_jax.training import fit

CPU = target_device.Device('cpu', 'cpu')
# Of few layers and rows, for the compiler to be quick.
CASES = {
  'enwik8_12l': (204, dict(n_layer=6), dict(batch_size=4), dict(tensor=4)),
  'wt103_base': (60_000, dict(n_layer=2), dict(batch_size=4), dict(fsdp=2)),
  'lstm:ptb': (10_000, {}, dict(batch_size=8), {}),
}


@pytest.mark.parametrize('name', CASES)
def test_within_20_percent_of_the_compiler(name):
  vocab_size, model, train, mesh = CASES[name]
  c = config_file.load(name)
  c.model.update(model)
  c.train.update(train)
  c.mesh.update(mesh | {'data': 1})
  if name == 'wt103_base':
    c.model.cutoffs = (20_000, 40_000, 50_000)
  found = fit.needs(c, vocab_size, CPU)
  devices = jax.devices()[: max(mesh.values(), default=1)]
  there = mesh_lib.make_mesh(c.mesh, devices)
  compiled, _ = compiled_step.compile_step(c, vocab_size, there)
  expected = sum(compiled_step.memory(compiled).values())
  assert found == pytest.approx(expected, rel=0.2)


def small(name='enwik8_12l', **train):
  c = config_file.load(name)
  c.train.update(train)
  return c


def test_more_layers_need_as_much_more_each():
  sizes = []
  for n in 6, 9, 12:
    c = small(batch_size=2, segment_len=64)
    c.model.update(n_layer=n, mem_len=64, d_model=64, d_ff=128)
    sizes.append(fit.needs(c, 204, CPU))
  few, some, many = sizes
  assert many - some == pytest.approx(some - few, rel=1e-6) and some > few


@pytest.mark.parametrize(
  'change', ['train.accumulate=2', 'model.remat=layer', 'mesh.fsdp=8']
)
def test_what_needs_less(change):
  c = small(batch_size=16)
  whole = fit.needs(c, 204, CPU)
  (section, key), value = change.split('=')[0].split('.'), change.split('=')[1]
  c[section][key] = int(value) if value.isdecimal() else value
  assert fit.needs(c, 204, CPU) < 0.75 * whole


def test_a_batch_that_cannot_be_divided():
  c = small(batch_size=22)
  c.mesh.data = 4
  with pytest.raises(UserError, match=r'train.batch_size is 22; .* of 4 '):
    fit.needs(c, 204, CPU)
