"""What benchmarks measure, as text and as a JSON file."""

import datetime
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import txl_jax
from txl_jax.parallel import hardware
from txl_jax.program import files
from txl_jax.program.errors import UserError


class Measured(NamedTuple):
  """All measurements of one thing, in the order in which they were made."""

  values: Sequence[float]
  unit: str


def spread(values: Sequence[float], form: str) -> str:
  """'median (lowest to highest)' of numbers, in a format like '.1f'."""
  low, high = min(values), max(values)
  median = statistics.median(values)
  return f'{median:{form}} ({low:{form}} to {high:{form}})'


def check(path: str) -> None:
  """Raises a UserError where a file of results could not be written."""
  folder, there = os.path.dirname(path) or '.', os.path.exists(path)
  if not os.path.isdir(folder) or (there and not os.path.isfile(path)):
    raise UserError(f'--json is {path!r}; allowed: a file in a folder that is')
  # As `write` does, which is called when all is measured.
  with files.writing(f'--json: {path}'):
    temporary = pathlib.Path(f'{path}.tmp')
    temporary.touch()
    temporary.unlink()


def write(
  path: str,
  benchmark: str,
  sizes: Mapping[str, Any],
  results: Mapping[str, Measured],
) -> None:
  """Writes results, what they are of, the versions and the machine.

  UserError if the file cannot be written.
  """
  record = {
    'benchmark': benchmark,
    'command': sys.argv[1:],
    'sizes': dict(sizes),
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'versions': dict(txl_jax=txl_jax.__version__, jaxlib=version('jaxlib')),
    'hardware': hardware.describe(),
    'load': os.getloadavg()[0],
    'results': {},
  }
  for name, (values, unit) in results.items():
    found = dict(unit=unit, values=[*values], median=statistics.median(values))
    ends = dict(lowest=min(values), highest=max(values))
    record['results'][name] = found | ends
  files.write(path, json.dumps(record, indent=2) + '\n')
