"""The weights of Transformers in the forms that their products read.

Parameters are nested dicts of arrays, of a whole model or of one layer.
"""

import functools
import re
from typing import Any

import jax.numpy as jnp
from flax import traverse_util

_nested = functools.partial(traverse_util.unflatten_dict, sep='/')


def cast(params: Any, dtype: Any) -> Any:
  """Parameters, with those of a layer's products in the dtype of these."""
  used = re.compile(r'(^|/)(attention|ff)/(.*/)?(kernel|bias)$')
  return _nested(
    {
      name: x.astype(dtype) if used.search(name) else x
      for name, x in _flat(params).items()
    }
  )


def joined(params: Any) -> Any:
  """Parameters in which one product makes queries, keys and values."""
  rest, used = _flat(params), re.compile(r'(^|.*/)attention/q/kernel$')
  for start in [m[1] for m in map(used.match, rest) if m]:
    own = f'{start}attention'
    kernels = [rest.pop(f'{own}/{name}/kernel') for name in 'qkv']
    rest[f'{own}/qkv/kernel'] = jnp.stack(kernels, axis=1)  # [D, 3, H, K]
  return _nested(rest)


def outputs_first(params: Any) -> tuple[Any, Any]:
  """Parameters without kernels of `layers.Product`, and these, transposed."""
  rest, used = _flat(params), r'(^|/)(attention/qkv|ff/w[12])/kernel$'
  names = [name for name in rest if re.search(used, name)]
  turned = {name: jnp.moveaxis(rest.pop(name), 0, -1) for name in names}
  return _nested(rest), _nested(turned)


def _flat(params) -> dict[str, Any]:
  return {**traverse_util.flatten_dict(params, sep='/')}
