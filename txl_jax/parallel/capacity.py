"""Checks that a compiled program fits into memory, before it runs.

A GPU or TPU reports an allocation that fails; on a CPU, the operating system
would kill the process without an error message.
"""

import math
import os
from typing import Any

from txl_jax.program.errors import UserError


def check(what: str, compiled: Any, devices: list[Any]) -> None:
  """UserError if a program needs more memory than one of the devices has.

  The requirement is XLA's own estimate. A program that passes may still fail,
  since other programs use memory too.
  """
  sizes = compiled.memory_analysis()
  if not sizes:  # not available on this backend
    return
  needed = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
  needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  if needed > (available := _available(devices)):
    raise UserError(
      f'{what} needs {needed / 2**30:,.1f} GiB of memory on each device, which '
      f'has {available / 2**30:,.1f} GiB; try a smaller train.batch_size, '
      'train.segment_len, model.mem_len or model, a larger train.accumulate, '
      'model.remat, or more devices'
    )


def _available(devices):
  """Smallest memory of a device in bytes; infinite if unknown."""
  if devices[0].platform == 'cpu':
    total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return total / len(devices)
  stats = [device.memory_stats() or {} for device in devices]
  return min(s.get('bytes_limit', math.inf) for s in stats)
