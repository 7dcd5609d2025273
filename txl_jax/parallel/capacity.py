"""Whether a compiled program fits into memory, before it is run.

A GPU or TPU tells what it could not allocate; on a CPU the system would kill
the process without a word.
"""

import math
import os
from typing import Any

from txl_jax.program.errors import UserError


def check(what: str, compiled: Any, devices: list[Any]) -> None:
  """UserError if one of the devices has less memory than a program needs.

  That is what XLA has planned; what passes may still be too large, as other
  programs need memory too.
  """
  sizes = compiled.memory_analysis()
  if not sizes:  # XLA does not say
    return
  needed = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
  needed += sizes.output_size_in_bytes - sizes.alias_size_in_bytes
  if needed > (there := _there(devices)):
    raise UserError(
      f'{what} needs {needed / 2**30:,.1f} GiB of memory on each device, which '
      f'has {there / 2**30:,.1f} GiB; allowed: less of train.batch_size, '
      'train.segment_len, model.mem_len or the model, more of train.accumulate '
      'or model.remat, or more devices'
    )


def _there(devices):
  """Bytes for each of these devices; infinite where nothing is known."""
  if devices[0].platform == 'cpu':
    every = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return every / len(devices)
  stats = [device.memory_stats() or {} for device in devices]
  return min(s.get('bytes_limit', math.inf) for s in stats)
