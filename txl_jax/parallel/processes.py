"""Several processes that run one program: how they start and agree.

Process 0 writes files and the console; the others take part in computing. What
it decides reaches them through the store of keys of jax.distributed, not
through the devices: it works while these are busy, and once they are lost.

All must call `on_main`, `main_first`, `check_same` and `fetch`, and what calls
them, as most methods of `checkpoint.Checkpoints` do, in the same order.
"""

import glob
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import distributed as jax_distributed  # for `store` alone

from txl_jax.program import terminal
from txl_jax.program.errors import UserError
from txl_jax.program.settings import shown

_TIMEOUT = 300  # seconds until all processes have come
_FOREVER = 7 * 24 * 3600 * 1000  # ms; a lost process ends the wait before


def start(
  mode: str = 'auto',
  coordinator: str | None = None,
  processes: int | None = None,
  process: int | None = None,
  lost_seconds: float = 45.0,
) -> None:
  """Joins the other processes, if there are any.

  'auto' joins where all of coordinator ('HOST:PORT' of process 0), processes
  (how many) and process (which, from 0) are given, or where a `cluster` is
  found; 'off' never does. A process that gives no sign for lost_seconds counts
  as lost, and jax ends the others. UserError if they cannot be joined.
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
  """How jax finds the processes of the cluster that this one is a part of.

  By environment variables: 'slurm', 'ompi', 'k8s' or 'tpu'; '' for a process on
  its own. Left to itself jax would take the shell of an interactive SLURM step
  (SLURM_NTASKS=2, SLURM_STEP_NUM_TASKS=1) for one of two processes, and wait
  for the other.
  """
  tasks = int(environ.get('SLURM_NTASKS', 1))
  # A shell in an allocation has SLURM_NTASKS too, but is no task of a step.
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
  # It would only note a SIGTERM, until it is asked.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      *values,
      cluster_detection_method=method,
      heartbeat_timeout_seconds=int(lost_seconds),
      initialization_timeout=_TIMEOUT,
    )
    count()  # all devices are counted
  except (ValueError, RuntimeError) as e:
    # Else it is a TPU on its own.
    if method or 'coordinator_address should be' not in str(e):
      raise UserError(f'the others at {where} cannot be joined: {e}') from e


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
  """The keys and values that all processes share; only with several."""
  client = jax_distributed.global_state.client  # jax has no public name for it
  assert client is not None
  return client


def leave(line: str) -> None:
  """Ends this process with a last line, without waiting for the others."""
  try:
    terminal.clear()
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
  finally:  # whether or not someone reads it
    os._exit(1)


def on_main(function: Callable[[], Any]) -> Any:
  """What a function returns on process 0, where alone it is called.

  That is what JSON can hold. The function must not call `on_main` itself. A
  UserError of process 0 is one on all, its OSError on the others. RuntimeError
  if process 0 is at the call of another function.
  """
  if count() == 1:
    return function()
  call = store().key_value_increment(f'txl_jax/calls/{index()}', 1)
  key, name = f'txl_jax/on_main/{call}', getattr(function, '__qualname__', '')
  if is_main():
    told, error = {'function': name}, None
    try:
      told['value'] = function()
    except (UserError, OSError) as e:
      told['error'], error = str(e), e
    store().key_value_set(key, json.dumps(told))
    if error:
      raise error
  main = json.loads(store().blocking_key_value_get(key, _FOREVER))
  if main['function'] != name:
    raise RuntimeError(f'process 0 calls {main["function"]}, this one {name}')
  if 'error' in main:
    raise UserError(main['error'])
  return main['value']


def main_first(function: Callable[[], Any]) -> Any:
  """Calls what prepares shared files on process 0, then on the others."""
  result = []
  on_main(lambda: result.append(function()))
  return result[0] if result else function()


def check_same(values: Mapping[str, Any]) -> None:
  """UserError where values, {name: what JSON can hold}, are not process 0's."""
  if count() == 1:
    return
  main = on_main(lambda: values)
  for name, here in json.loads(json.dumps(values)).items():
    if main[name] != here:
      found = f'{shown(here)} here, {shown(main[name])} on process 0'
      raise UserError(f'{name} is {found}; allowed: the same on every process')
