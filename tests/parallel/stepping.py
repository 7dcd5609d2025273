"""A process of several that make steps together, to be stopped and killed.

python -m tests.parallel.stepping --lost_seconds=5 --coordinator=HOST:PORT \
  --num_processes=N --process_id=I

Prints its steps; --raise is the one at which process 1 raises an error.
"""

import argparse
import random
import sys
import time

from txl_jax.parallel import placement, processes, watchdog
from txl_jax.program.errors import UserError


def step(number):
  """What all have to make together, in times of their own."""
  time.sleep(random.uniform(0, 0.04))
  assert int(placement.max_over_processes(number)) == number
  print('step', number, flush=True)


def with_watch(lost_seconds, failing):
  with watchdog.Watch(lost_seconds) as watch, watch.signals():
    for number in range(100_000):
      if stopping := watch.stopping():
        raise watchdog.Stopped(stopping, number)
      watch.step = number
      if number == failing and processes.index() == 1:
        raise UserError('broken')
      step(number)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--lost_seconds', type=float, default=45.0)
  parser.add_argument('--raise', type=int, dest='failing')
  parser.add_argument('--coordinator')
  parser.add_argument('--num_processes', type=int)
  parser.add_argument('--process_id', type=int)
  flags = parser.parse_args()
  start = flags.coordinator, flags.num_processes, flags.process_id
  processes.start('auto', *start, lost_seconds=flags.lost_seconds)
  try:
    with_watch(flags.lost_seconds, flags.failing)
  except watchdog.Stopped as e:
    print(e, file=sys.stderr)
    sys.exit(128 + e.signal)


if __name__ == '__main__':
  main()
