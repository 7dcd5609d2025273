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
