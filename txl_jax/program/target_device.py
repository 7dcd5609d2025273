"""The device that a program is compiled for.

It may be another than the machine has: `python -m benchmarks hlo` compiles for
TPUs and GPUs that are not there.
"""

import re
from typing import Any, NamedTuple

import jax


class Device(NamedTuple):
  """What programs are compiled for."""

  platform: str  # cpu, gpu, tpu
  kind: str = ''  # as JAX calls it: 'NVIDIA H100 80GB HBM3', 'TPU v5e'

  @property
  def ampere(self) -> bool:
    """Whether it is an NVIDIA GPU of compute capability 8.0 or above."""
    return self.platform == 'gpu' and not _OTHERS.search(self.kind)


# Older GPUs of NVIDIA, by developer.nvidia.com/cuda-gpus, and those of AMD.
_OTHERS = re.compile(
  r'AMD|Instinct|gfx|GTX|Quadro|Tesla|TITAN|'
  r'\b(K\d+|M\d+|P\d+|T4|T\d{3,4}|V100|RTX 20\d\d)\b'
)


def device() -> Device:
  """The device of the ambient mesh, or else the default one."""
  found: Any = jax.sharding.get_abstract_mesh().abstract_device
  if found is None:
    options: Any = jax.config
    found = options.jax_default_device or jax.devices()[0]
    if isinstance(found, str):
      found = jax.devices(found)[0]
  gpus = ('cuda', 'rocm')
  platform = 'gpu' if found.platform in gpus else found.platform
  return Device(platform, found.device_kind)
