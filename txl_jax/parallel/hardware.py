"""The machine's devices: their start, their memory, their description."""

import math
import os
import pathlib
import platform
import re
from typing import Any

import jax

from txl_jax.parallel import processes
from txl_jax.program.errors import UserError, first_line, refuse


def check() -> None:
  """Initialises JAX's backend; UserError if JAX_PLATFORMS is unavailable."""
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as e:
    # If the platform's plugin is missing, an assertion in jax fails.
    known = not isinstance(e, AssertionError)
    why = first_line(e).split(' (set JAX')[0] if known else 'none found'
    refuse(
      'JAX_PLATFORMS',
      os.environ.get('JAX_PLATFORMS', ''),
      f"cpu, '' for any device, or one whose JAX plugin is installed ({why})",
    )


def check_memory(what: str, compiled: Any, devices: list[Any]) -> None:
  """UserError if a program needs more memory than one of the devices has.

  The requirement is XLA's own estimate; other programs use memory too, so one
  that passes may still fail. On a CPU the operating system would then kill the
  process without an error message.
  """
  sizes = compiled.memory_analysis()
  if not sizes:  # not available on this backend
    return
  needed = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
  needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  if needed > (available := _memory(devices)):
    raise UserError(
      f'{what} needs {needed / 2**30:,.1f} GiB of memory on each device, which '
      f'has {available / 2**30:,.1f} GiB; try a smaller train.batch_size, '
      'train.segment_len, model.mem_len or model, a larger train.accumulate, '
      'model.remat, or more devices'
    )


def _memory(devices):
  """Smallest memory of a device in bytes; infinite if unknown."""
  if devices[0].platform == 'cpu':
    total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return total / len(devices)
  stats = [device.memory_stats() or {} for device in devices]
  return min(s.get('bytes_limit', math.inf) for s in stats)


def describe() -> dict[str, Any]:
  """Devices, CPU and versions for a report; the values are JSON types."""
  device = jax.devices()[0]
  cpu = _cpu()
  kind = cpu if device.platform == 'cpu' else device.device_kind
  return {
    'device': kind,
    'platform': device.platform,
    'devices': jax.device_count(),
    'processes': processes.count(),
    'cpu': cpu,
    'cpu_cores': os.cpu_count(),
    'jax': jax.__version__,
    'python': platform.python_version(),
  }


def _cpu(cpuinfo: str = '/proc/cpuinfo') -> str:
  """The CPU model name."""
  try:
    text = pathlib.Path(cpuinfo).read_text(errors='replace')
  except OSError:  # not on Linux
    text = ''
  match = re.search(r'^model name[ \t]*:[ \t]*(\S.*)$', text, re.MULTILINE)
  return match[1].strip() if match else platform.machine()


# Peak dense FLOPs per second of one JAX device, by device_kind: (bfloat16,
# float32). None: the device has no units for that dtype. For float32, the peak
# at XLA's default precision: bfloat16 passes on TPUs, TF32 on NVIDIA GPUs from
# Ampere on.
# TPU: 'peak compute per chip' of cloud.google.com/tpu/docs/v2 to v6e; a chip
# of v2 or v3 has two cores, each a JAX device. NVIDIA: the data sheet of each
# card, halved where it quotes figures with sparsity.
_PEAKS = {
  'TPU v2': (45e12 / 2, 45e12 / 2),
  'TPU v3': (123e12 / 2, 123e12 / 2),
  'TPU v4': (275e12, 275e12),
  **dict.fromkeys(('TPU v5 lite', 'TPU v5e'), (197e12, 197e12)),
  **dict.fromkeys(('TPU v5', 'TPU v5p'), (459e12, 459e12)),
  **dict.fromkeys(('TPU v6 lite', 'TPU v6e'), (918e12, 918e12)),
  'Tesla V100-SXM2-16GB': (None, 15.7e12),
  'Tesla V100-SXM2-32GB': (None, 15.7e12),
  'Tesla T4': (None, 8.1e12),
  'NVIDIA A100-SXM4-40GB': (312e12, 156e12),
  'NVIDIA A100-SXM4-80GB': (312e12, 156e12),
  'NVIDIA A100-PCIE-40GB': (312e12, 156e12),
  'NVIDIA A100 80GB PCIe': (312e12, 156e12),
  'NVIDIA A10': (125e12, 62.5e12),
  'NVIDIA A40': (149.7e12, 74.8e12),
  'NVIDIA L4': (242e12 / 2, 120e12 / 2),
  'NVIDIA L40S': (362e12, 183e12),
  'NVIDIA H100 80GB HBM3': (1979e12 / 2, 989e12 / 2),
  'NVIDIA H100 PCIe': (1513e12 / 2, 756e12 / 2),
  'NVIDIA H200': (1979e12 / 2, 989e12 / 2),
  'NVIDIA B200': (4500e12 / 2, 2200e12 / 2),
}


def peak(dtype: str, kind: str = '', count: int = 0) -> float | None:
  """Peak FLOPs per second of `count` devices; None if unknown.

  `kind` is a device_kind; by default all devices of the run are counted.
  """
  kind = kind or jax.devices()[0].device_kind
  each = _PEAKS.get(kind, (None, None))[('bfloat16', 'float32').index(dtype)]
  return each and each * (count or jax.device_count())
