"""What is known to be needed, beside what XLA and the machine say."""

import importlib
import pathlib

import jax
import jax.numpy as jnp
import pytest

from txl_jax import models
from txl_jax.evaluation import scoring
from txl_jax.models import base
from txl_jax.parallel import capacity, placement
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program.errors import UserError

GIB = 2**30


def test_the_memory_of_this_machine():
  text = pathlib.Path('/proc/meminfo').read_text()
  total = 1024 * int(text.split()[1])
  assert 0.9 * total < capacity._of_machine() <= total * 1.1
  devices = jax.devices()
  assert capacity._there(devices) * len(devices) == capacity._of_machine()


class Device:
  platform = 'gpu'

  def __init__(self, **stats):
    self.memory_stats = lambda: stats or None


def test_what_other_devices_tell():
  two = [Device(bytes_limit=80), Device(bytes_limit=70)]
  assert capacity._there(two) == 70
  assert capacity._there([Device()]) == float('inf')
  assert capacity._there([Device(bytes_in_use=3)]) == float('inf')


def test_what_is_told(monkeypatch):
  monkeypatch.setattr(capacity, '_of_machine', lambda: 8 * GIB)
  mesh = mesh_lib.make_mesh()  # eight devices, a GiB each
  capacity.check('it', mesh, {'a': (GIB / 2, ['x']), 'b': (GIB / 2, ['y'])})
  with pytest.raises(UserError) as e:
    capacity.check('it', mesh, {'a': (GIB / 2, ['x']), 'b': (GIB, 'yz')})
  assert str(e.value) == (
    'it needs at least 1.5 GiB of memory on each device, 1.0 GiB of it for b; '
    'there are 1.0 GiB on each device; allowed: less of it, by y or z'
  )
  with pytest.raises(UserError, match=r'needs at least 8\.5 GiB of memory, 8'):
    capacity.check('it', None, {'a': (8.5 * GIB, ['x'])})


def test_bytes_on_a_device():
  mesh = mesh_lib.make_mesh()
  rows = jax.ShapeDtypeStruct([16, 3], jnp.int32, sharding=placement.rows(mesh))
  everywhere = jax.device_put(jnp.zeros(5), placement.replicated(mesh))
  shape = jax.ShapeDtypeStruct([7], jnp.bfloat16)
  assert capacity.on_a_device([rows, everywhere, shape, ()]) == 24 + 20 + 14


def test_the_largest_product():
  def f(x):
    def body(x, _):
      return x, jnp.einsum('ab,cb->ac', x, x[:2])

    _, y = jax.lax.scan(body, x, length=9)
    return jax.jit(lambda x: x @ x.T)(x).sum() + y.sum()

  jaxpr = jax.make_jaxpr(f)(jnp.ones([4, 50]))
  assert capacity.largest_product(jaxpr) == 4 * 4 * 4
  assert capacity.largest_product(jax.make_jaxpr(jnp.sin)(1.0)) == 0


@pytest.mark.parametrize('longest', [0, 40])
@pytest.mark.parametrize('name', ['pystdlib_tiny', 'ptb'])
def test_it_is_less_than_what_xla_reserves(name, longest):
  c = importlib.import_module(f'txl_jax.configs.{name}').get_config()
  c.model.n_layer = 2
  model = models.build(c.model, 1000).at_test_time(longest)
  params = jax.eval_shape(lambda: base.init_params(model, jax.random.key(0)))
  memory = jax.eval_shape(lambda: model.init_memory(3))
  tokens = jax.ShapeDtypeStruct([2, 3, 40], jnp.int32)
  variables = jax.eval_shape(model.frozen, params)
  arguments = variables, memory, tokens, tokens
  program = scoring.jit_score.trace(*arguments, model=model, mesh=None)
  product = capacity.largest_product(program.jaxpr)
  assert product >= 3 * c.model.n_head * 40 * (40 + c.model.mem_len) * 4
  compiled = program.lower().compile()
  assert product <= capacity.between(compiled)
  held = compiled.memory_analysis().argument_size_in_bytes
  counted = capacity.on_a_device(arguments)
  if longest:  # the weights of position tables that are there are not read
    held += capacity.on_a_device(_of_positions(params))
  # Tuples of buffers take some bytes of their own.
  assert counted == pytest.approx(held, rel=1e-3)


def _of_positions(params):
  layers = (x for name, x in params.items() if name.startswith('layers_'))
  return [params['biases'], *(x['attention']['r'] for x in layers)]
