"""A small checkpoint: what is saved, and whether it is all there again."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np

from txl_jax.parallel import mesh as mesh_lib
from txl_jax.runs import checkpoint_folder

HOST = {'best': 1.5, 'names': ['a', 'é'], 'nested': {'n': 3}}
PARAMS = {
  'table': np.arange(24, dtype=np.float32).reshape(8, 3),
  'deep': {'half': np.arange(4).astype(jnp.bfloat16)},
}
TRAINING = {'step': np.int32(5), 'rows': np.ones([8, 2], np.int32)}


def mesh_of(devices):
  devices = jax.devices()[:devices]
  return mesh_lib.make_mesh(devices=devices)


def save(c, step, host=HOST, params=PARAMS, **kwargs):
  items = dict(params=params, training=TRAINING)
  c.save(step, host, **jax.tree.map(jnp.asarray, items), **kwargs)


def abstract(tree):
  here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here)
  return jax.tree.map(shape, tree)


def bits(tree):
  return jax.tree.map(lambda x: (x.dtype, np.asarray(x).tobytes()), tree)


def copy(c, step, other):
  """Another step with the contents of one, and a seal of its own."""
  shutil.copytree(c.folder / f'{step}', c.folder / f'{other}')
  (c.folder / f'{other}/seal.json').unlink()
  checkpoint_folder.seal(c.folder / f'{other}', f'{other}')


def assert_whole(c, step):
  """The step restores to what `save` has written."""
  got = c.restore(step, params=abstract(PARAMS), training=abstract(TRAINING))
  assert bits(got) == bits({'params': PARAMS, 'training': TRAINING})
  assert c.host(step) == HOST


def whole(c):
  """The steps whose files are those that were sealed, newest first."""
  return [
    s for s in c.steps() if not checkpoint_folder.damage(c.folder / str(s))
  ]


def names(folder):
  return sorted(path.name for path in folder.iterdir())


def files(folder):
  return sorted(path for path in folder.rglob('*') if path.is_file())


def contents(folder):
  return {path: path.read_bytes() for path in files(folder)}


def flip(path, byte, bit=0):
  data = bytearray(path.read_bytes())
  data[byte] ^= 1 << bit
  path.write_bytes(data)


def cut(path):
  path.write_bytes(path.read_bytes()[:-1])
