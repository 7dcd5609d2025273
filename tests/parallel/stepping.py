"""A process of several that make steps together, to be stopped and killed.

python -m tests.parallel.stepping --lost_seconds=5 --coordinator=HOST:PORT \
  --num_processes=N --process_id=I

Prints its steps. With --library it asks jax itself whether to stop, nothing is
computed, and a thread prints besides as long as it can.
"""

import argparse
import random
import sys
import threading
import time

import jax
from jax.experimental import multihost_utils

from txl_jax.parallel import placement, processes, watchdog


def step(number):
  """What all have to make together, in times of their own."""
  time.sleep(random.uniform(0, 0.04))
  assert int(placement.highest(number)) == number
  print('step', number, flush=True)


def with_watch(lost_seconds):
  with watchdog.Watch(lost_seconds) as watch, watch.signals():
    for number in range(100_000):
      if stopping := watch.stopping():
        raise watchdog.Stopped(stopping, number)
      watch.at(number, watchdog.STEPPING)
      step(number)


def with_library():
  def live():
    while True:
      time.sleep(0.1)
      print('alive', flush=True)

  threading.Thread(target=live, daemon=True).start()
  number = 0
  while not multihost_utils.reached_preemption_sync_point(number):
    time.sleep(0.03)
    print('step', number, flush=True)
    number += 1


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--lost_seconds', type=float, default=45.0)
  parser.add_argument('--library', action='store_true')
  parser.add_argument('--coordinator')
  parser.add_argument('--num_processes', type=int)
  parser.add_argument('--process_id', type=int)
  flags = parser.parse_args()
  start = flags.coordinator, flags.num_processes, flags.process_id
  if flags.library:
    jax.distributed.initialize(*start, cluster_detection_method='deactivate')
    with_library()
  else:
    processes.start('auto', *start, lost_seconds=flags.lost_seconds)
    try:
      with_watch(flags.lost_seconds)
    except watchdog.Stopped as e:
      print(e, file=sys.stderr)
      sys.exit(128 + e.signal)


if __name__ == '__main__':
  main()
