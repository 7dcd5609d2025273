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
  def capability(self) -> int:
    """Compute capability of an NVIDIA GPU, 90 for a Hopper; 0 if not known."""
    for pattern, capability in _CAPABILITIES:
      if self.platform == 'gpu' and re.search(rf'\b({pattern})\b', self.kind):
        return capability
    return 0


# developer.nvidia.com/cuda-gpus; the first that fits counts.
_CAPABILITIES = (
  ('GB300|B300', 103),
  ('GB200|B200', 100),
  ('RTX PRO [456]000|RTX 50[5-9]0', 120),
  ('GH200|H200|H100|H800|H20', 90),
  ('L4|L40S?|RTX 40[5-9]0|RTX [2456][05]00 (SFF )?Ada', 89),
  ('A10G?|A40|A16|A2|RTX A[0-9]+|RTX 30[5-9]0', 86),
  ('A100|A800|A30', 80),
  ('T4', 75),
  ('V100', 70),
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
