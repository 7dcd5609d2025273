"""Coordination of the processes of one program.

Process 0 writes files and prints; the others only compute. It sends its
decisions not over the devices but through the key-value store of
jax.distributed, which works while devices are busy or lost.

`on_main`, `gather`, `main_first`, `check_same`, `placement.fetch` and most
methods of `Checkpoints` are collective: all processes must call them in the
same order.
"""

import glob
import importlib.util
import json
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import distributed as jax_distributed  # for `store` alone

from txl_jax.program import signals
from txl_jax.program.errors import UserError, shown

_TIMEOUT = 300  # seconds until all processes have started
_FOREVER = 7 * 24 * 3600 * 1000  # ms; jax ends the wait if a process is lost


def start(
  mode: str = 'auto',
  coordinator: str | None = None,
  processes: int | None = None,
  process: int | None = None,
  lost_seconds: float = 45.0,
) -> None:
  """Joins the other processes, if there are any.

  Mode 'auto' joins if coordinator ('HOST:PORT' of process 0), processes (their
  number) and process (index from 0) are all given, or if `cluster` finds one;
  'off' never joins. A process that is silent for one to two times lost_seconds
  counts as lost, and jax ends the others. UserError if joining fails.
  """
  values = coordinator, processes, process
  if mode == 'off':
    return
  if coordinator is not None and ':' in coordinator and None not in values:
    _join(coordinator, lost_seconds, 'deactivate', *values)
  elif values != (None, None, None):
    raise UserError(
      f'--coordinator={coordinator} --num_processes={processes} '
      f'--process_id={process}; allowed: --coordinator=HOST:PORT '
      '--num_processes=N --process_id=I, or none of them'
    )
  elif method := cluster(os.environ):
    where = f'the coordinator of {method}'
    _join(where, lost_seconds, None if method == 'tpu' else method)


def cluster(environ: Mapping[str, str]) -> str:
  """The cluster_detection_method of jax that applies to this process.

  It is 'slurm', 'ompi', 'k8s' or 'tpu', from environment variables; '' for a
  single process. jax's own detection mistakes the shell of an interactive SLURM
  step (SLURM_NTASKS=2, SLURM_STEP_NUM_TASKS=1) for one of two processes and
  waits for the other.
  """
  tasks = int(environ.get('SLURM_NTASKS', 1))
  # A shell in an allocation has SLURM_NTASKS too, but is not a task of a step.
  step = {'SLURM_JOB_ID', 'SLURM_STEP_NODELIST', 'SLURM_PROCID'}
  in_step = step | {'SLURM_LOCALID'} <= environ.keys()
  if in_step and int(environ.get('SLURM_STEP_NUM_TASKS', tasks)) > 1:
    return 'slurm'
  if int(environ.get('OMPI_COMM_WORLD_SIZE', 1)) > 1:
    return 'ompi'
  platforms = environ.get('JAX_PLATFORMS', 'tpu')
  tpu = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*')
  if tpu and 'tpu' in platforms and importlib.util.find_spec('libtpu'):
    return 'tpu'
  in_pod = {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'}
  return 'k8s' if in_pod <= environ.keys() else ''


def _join(where, lost_seconds, method, *values):
  """Starts jax.distributed."""
  # The preemption service would swallow SIGTERM.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      *values,
      cluster_detection_method=method,
      # jax sends a heartbeat every half of it and waits as long for an answer.
      heartbeat_timeout_seconds=math.ceil(2 * lost_seconds),
      initialization_timeout=_TIMEOUT,
    )
    count()  # waits until all devices are known
  except (ValueError, RuntimeError) as e:
    # Without a coordinator address, this is a single TPU host.
    if method or 'coordinator_address should be' not in str(e):
      raise UserError(f'cannot join the processes at {where}: {e}') from e


def count() -> int:
  """Number of processes."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
  """Index of this process, from 0."""
  return jax.process_index() if jax.distributed.is_initialized() else 0


def is_main() -> bool:
  """Whether this is process 0, which writes for all."""
  return index() == 0


def print_on_main(*lines: str) -> None:
  """Prints lines on process 0 alone."""
  if is_main():
    print(*lines, sep='\n', flush=True)


def name() -> str:
  """Name of this process in error messages."""
  return f'process {index()} of {count()} on {socket.gethostname()}'


def store() -> Any:
  """The key-value store shared by all processes; there must be several."""
  client = jax_distributed.global_state.client  # jax has no public name for it
  assert client is not None
  return client


def leave(line: str) -> None:
  """Ends this process with an error line, without waiting for the others."""
  try:
    signals.clear()
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
  finally:  # even if standard error is closed
    os._exit(1)


def on_main(function: Callable[[], Any]) -> Any:
  """Calls a function on process 0 only; returns its JSON result on all.

  The function must not call `on_main`. A UserError on process 0 is raised on
  all processes; so is an OSError, on the others as a UserError. RuntimeError if
  process 0 is calling another function.
  """
  if count() == 1:
    return function()
  call = store().key_value_increment(f'txl_jax/calls/{index()}', 1)
  key = f'txl_jax/on_main/{call}'
  name = getattr(function, '__qualname__', '')
  if is_main():
    message = {'function': name}
    error = None
    try:
      message['value'] = function()
    except (UserError, OSError) as e:
      message['error'] = str(e)
      error = e
    store().key_value_set(key, json.dumps(message))
    if error:
      raise error
  main = json.loads(store().blocking_key_value_get(key, _FOREVER))
  if main['function'] != name:
    raise RuntimeError(f'process 0 calls {main["function"]}, this one {name}')
  if 'error' in main:
    raise UserError(main['error'])
  return main['value']


def gather(value: Any) -> list[Any]:
  """The JSON values that all processes give, in their order."""
  if count() == 1:
    return [value]
  call = store().key_value_increment(f'txl_jax/calls/{index()}', 1)
  keys = [f'txl_jax/gather/{call}/{n}' for n in range(count())]
  store().key_value_set(keys[index()], json.dumps(value))
  texts = (store().blocking_key_value_get(key, _FOREVER) for key in keys)
  return [json.loads(text) for text in texts]


def main_first(function: Callable[[], Any]) -> Any:
  """Calls `function` on process 0, then on the others; it may prepare files."""
  result = []
  on_main(lambda: result.append(function()))
  return result[0] if result else function()


def check_same(values: Mapping[str, Any]) -> None:
  """UserError unless the JSON `values` equal those of process 0."""
  if count() == 1:
    return
  main = on_main(lambda: values)
  for name, value in json.loads(json.dumps(values)).items():
    if main[name] != value:
      both = f'{shown(value)} here, {shown(main[name])} on process 0'
      raise UserError(f'{name} is {both}; allowed: the same on every process')
