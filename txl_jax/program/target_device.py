"""The device that a program is compiled for.

It may be another than the machine has: `python -m benchmarks hlo` compiles for
TPUs and GPUs that are not there.
"""

import functools
import os
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

  @property
  def multiplies_bfloat16(self) -> bool:
    """Whether products of bfloat16 are faster than those of float32.

    On a CPU, with instructions for them: AMX or AVX512-BF16.
    """
    return self.platform != 'cpu' or cpu_units() in ('amx_bf16', 'avx512_bf16')


# Older GPUs of NVIDIA, by developer.nvidia.com/cuda-gpus, and those of AMD.
_OTHERS = re.compile(
  r'AMD|Instinct|gfx|GTX|Quadro|Tesla|TITAN|'
  r'\b(K\d+|M\d+|P\d+|T4|T\d{3,4}|V100|RTX 20\d\d)\b'
)


# The values of --xla_cpu_max_isa in order, and the instructions for products
# that each allows besides, by their names in Linux.
_ISA = ('SSE4_2', ''), ('AVX', ''), ('AVX2', 'avx2'), ('AVX512', 'avx512f')
_ISA += ('AVX512_VNNI', ''), ('AVX512_BF16', 'avx512_bf16'), ('AMX', 'amx_bf16')


@functools.cache
def cpu_units(cpuinfo: str = '/proc/cpuinfo') -> str:
  """The best instructions for products that XLA has on this CPU.

  One of amx_bf16, avx512_bf16, avx512f, avx2; '' if it has none, or is unknown.
  """
  try:
    with open(cpuinfo) as f:
      flags = next(line for line in f if line.startswith('flags')).split()
  except (OSError, StopIteration):
    return ''
  limit = re.search(r'--xla_cpu_max_isa=(\w+)', os.environ.get('XLA_FLAGS', ''))
  best = ''
  for isa, units in _ISA:
    best = units if units in flags else best
    if limit and isa == limit[1].upper():
      break
  return best


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
