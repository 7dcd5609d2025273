"""Start and description of the machine's devices."""

import os
import pathlib
import platform
import re
from typing import Any

import jax

from txl_jax.parallel import processes
from txl_jax.program.errors import first_line, refuse


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
