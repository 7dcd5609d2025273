"""The device that a program is compiled for.

The machine need not have it: `python -m benchmarks hlo` compiles for TPUs and
GPUs of other machines.
"""

import functools
import os
import re
from typing import Any, NamedTuple

import jax


class Device(NamedTuple):
  """A target of compilation."""

  platform: str  # cpu, gpu, tpu
  kind: str = ''  # device_kind in JAX: 'NVIDIA H100 80GB HBM3', 'TPU v5e'

  @property
  def ampere(self) -> bool:
    """Whether it is an NVIDIA GPU of compute capability 8.0 or above."""
    return self.platform == 'gpu' and not _OTHERS.search(self.kind)

  @property
  def multiplies_bfloat16(self) -> bool:
    """Whether bfloat16 products are fast; assumed except on CPUs.

    CPUs need instructions for them, AMX or AVX512-BF16.
    """
    return self.platform != 'cpu' or cpu_units() in ('amx_bf16', 'avx512_bf16')


# AMD GPUs, and older NVIDIA GPUs (developer.nvidia.com/cuda-gpus).
_OTHERS = re.compile(
  r'AMD|Instinct|gfx|GTX|Quadro|Tesla|TITAN|'
  r'\b(K\d+|M\d+|P\d+|T4|T\d{3,4}|V100|RTX 20\d\d)\b'
)


# The values of --xla_cpu_max_isa in order, each with the flag in /proc/cpuinfo
# of the multiply instructions that it adds.
_ISA = ('SSE4_2', ''), ('AVX', ''), ('AVX2', 'avx2'), ('AVX512', 'avx512f')
_ISA += ('AVX512_VNNI', ''), ('AVX512_BF16', 'avx512_bf16'), ('AMX', 'amx_bf16')


@functools.cache
def cpu_units(cpuinfo: str = '/proc/cpuinfo') -> str:
  """The best multiply instructions that XLA can use on this CPU.

  One of amx_bf16, avx512_bf16, avx512f, avx2; '' for none, or if unknown.
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
  target: Any = jax.sharding.get_abstract_mesh().abstract_device
  if target is None:
    jax_config: Any = jax.config
    target = jax_config.jax_default_device or jax.devices()[0]
    if isinstance(target, str):
      target = jax.devices(target)[0]
  is_gpu = target.platform in ('cuda', 'rocm')
  return Device('gpu' if is_gpu else target.platform, target.device_kind)
