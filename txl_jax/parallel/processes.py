"""Many processes that run one program: how they start and how they agree.

Process 0 writes files and the console; the others take part in computing. What
it decides reaches them through the store of keys of jax.distributed, not
through the devices: it works while these are busy, and once they are lost.

All processes must call `on_main`, `main_first`, `check_same` and `fetch`, and
what calls them, as most methods of `checkpoint.Checkpoints` do, in the same
order.
"""

import glob
import importlib.util
import json
import os
import re
import socket
import sys
import threading

import jax
from jax._src import distributed as jax_distributed

from txl_jax.errors import UserError
from txl_jax.parallel import witness

_TIMEOUT = 300  # seconds until all processes have come
# Seconds without a sign after which the runtime aborts. `watch` is faster, but
# not where the host of process 0 is lost, which its messages go through.
_HEARTBEAT = 45
_FOREVER = 7 * 24 * 3600 * 1000  # ms; a lost process ends the wait before

_calls = 0
_inside = False  # of a function that `on_main` runs
_witness = None


def start(mode='auto', coordinator=None, processes=None, process=None):
  """Joins the other processes, if there are any.

  Args:
    mode: 'auto' joins where the other arguments are given or where a cluster
      is found: Cloud TPU, SLURM, Open MPI, Kubernetes. 'off' never does.
    coordinator: 'HOST:PORT' of process 0.
    processes: how many there are.
    process: which of them this is, from 0.

  Raises:
    UserError: not all arguments are given, or one is not allowed, or the
      cluster does not say who its processes are.
  """
  given = {
    '--coordinator': coordinator,
    '--num_processes': processes,
    '--process_id': process,
  }
  found = [name for name, value in given.items() if value is not None]
  if mode not in ('auto', 'off'):
    raise UserError(f'--distributed={mode}; allowed: auto, off')
  if mode == 'off':
    if found:
      raise UserError(f'{found[0]} is given; allowed: --distributed=auto')
    return
  if found:
    _check(given)
    arguments = {
      'coordinator_address': coordinator,
      'num_processes': processes,
      'process_id': process,
      'cluster_detection_method': 'deactivate',
    }
    _join(f'process {process} of {processes}', coordinator, arguments)
  elif method := cluster(os.environ):
    arguments = {} if method == 'tpu' else {'cluster_detection_method': method}
    _join('a process', f'the coordinator of {method}', arguments)


def _check(given):
  missing = [name for name, value in given.items() if value is None]
  if missing:
    raise UserError(
      f'{missing[0]} is missing; allowed: all of --coordinator=HOST:PORT '
      '--num_processes=N --process_id=I, or none'
    )
  coordinator, processes, process = given.values()
  port = re.fullmatch(r'[^\s:]+:(\d{1,5})|\[[^\]\s]+\]:(\d{1,5})', coordinator)
  if not port or not 0 < int(port[1] or port[2]) < 65536:
    raise UserError(f'--coordinator={coordinator}; allowed: HOST:PORT')
  if processes < 1:
    raise UserError(f'--num_processes={processes}; allowed: at least 1')
  if not 0 <= process < processes:
    raise UserError(f'--process_id={process}; allowed: 0 to {processes - 1}')


def cluster(environ):
  """How jax finds the processes of the cluster that this one is a part of.

  Args:
    environ: environment variables.

  Returns:
    'slurm', 'ompi', 'k8s' or 'tpu'; '' for a process on its own.

  Raises:
    UserError: there are more processes, but jax cannot find them.
  """
  tasks = int(environ.get('SLURM_NTASKS', 1))
  # A shell in an allocation has SLURM_NTASKS too, but is no task of a step.
  in_step = {'SLURM_STEP_NODELIST', 'SLURM_PROCID', 'SLURM_LOCALID'}
  in_step = in_step <= environ.keys() and 'SLURM_JOB_ID' in environ
  if in_step and int(environ.get('SLURM_STEP_NUM_TASKS', tasks)) > 1:
    return 'slurm'
  if int(environ.get('OMPI_COMM_WORLD_SIZE', 1)) > 1:
    if 'OMPI_MCA_orte_hnp_uri' in environ:
      return 'ompi'
    raise UserError(
      'Open MPI does not tell its coordinator (version 5 never does); allowed: '
      '--coordinator=HOST:PORT --num_processes=$OMPI_COMM_WORLD_SIZE '
      '--process_id=$OMPI_COMM_WORLD_RANK, or --distributed=off'
    )
  platforms = environ.get('JAX_PLATFORMS', 'tpu')
  tpu = glob.glob('/dev/accel*') or glob.glob('/dev/vfio/[0-9]*')
  if tpu and 'tpu' in platforms and importlib.util.find_spec('libtpu'):
    return 'tpu'
  if {'KUBERNETES_SERVICE_HOST', 'JOB_COMPLETION_INDEX'} <= environ.keys():
    if importlib.util.find_spec('kubernetes'):
      return 'k8s'
    raise UserError(
      'the other pods of this Kubernetes job cannot be found without the '
      'package kubernetes; allowed: pip install "jax[k8s]", or --coordinator '
      '--num_processes --process_id, or --distributed=off'
    )
  return ''


def _join(who, where, arguments):
  """Starts jax.distributed, or ends the process with one line."""
  global _witness
  failed = f'error: {who} on {socket.gethostname()} cannot join the others at '
  failed += where
  _witness = witness.Witness()
  _witness.tell(f'{failed}; the lines above say why')

  # The runtime aborts at its own timeout, so this one comes before.
  def give_up():
    leave(f'{failed}: not all were there within {_TIMEOUT} s', 1)

  timer = threading.Timer(_TIMEOUT, give_up)
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      heartbeat_timeout_seconds=_HEARTBEAT,
      initialization_timeout=2 * _TIMEOUT,
      **arguments,
    )
  except (ValueError, RuntimeError) as e:
    if arguments or 'coordinator_address should be' not in str(e):
      leave(f'{failed}: {" ".join(str(e).split())}', 1)
    _witness.tell('')  # a TPU on its own
  finally:
    timer.cancel()
  if count() == 1:
    _witness.tell('')


def count():
  """How many processes there are."""
  return jax.process_count() if jax.distributed.is_initialized() else 1


def index():
  """Which of them this is, from 0."""
  return jax.process_index() if jax.distributed.is_initialized() else 0


def is_main():
  """Whether this is process 0, which writes for all."""
  return index() == 0


def print_on_main(*lines):
  """Prints lines on process 0 alone."""
  if is_main():
    print(*lines, sep='\n', flush=True)


def name():
  """This process, as errors call it."""
  return f'process {index()} of {count()} on {socket.gethostname()}'


def store():
  """The keys and values that all processes share; only with several."""
  client = jax_distributed.global_state.client  # jax has no public name for it
  assert client is not None
  return client


def last_words(line):
  """What is said if this process ends and cannot say so itself; '' nothing."""
  if _witness:
    _witness.tell(line)


def leave(line, status):
  """Ends this process at once, a line on standard error being its last.

  No other process is waited for, as an ordinary exit would.
  """
  last_words('')
  try:
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
  finally:  # whether or not someone reads it
    os._exit(status)


def on_main(function):
  """What a function returns on process 0, where alone it is called.

  Args:
    function: takes nothing, returns what JSON can hold.

  Returns:
    The same on every process.

  Raises:
    UserError: it was raised on process 0, as was an OSError, which stays one
      there; so every process fails alike.
  """
  global _calls, _inside
  if _inside or count() == 1:
    return function()
  _calls += 1
  key, error = f'txl_jax/on_main/{_calls}', None
  if is_main():
    _inside, said = True, {}
    try:
      said = {'value': function()}
    except (UserError, OSError) as e:
      error, said = e, {'error': str(e)}
    finally:
      _inside = False
    store().key_value_set(key, json.dumps(said))
    if error:
      raise error
  said = json.loads(store().blocking_key_value_get(key, _FOREVER))
  if 'error' in said:
    raise UserError(said['error'])
  return said['value']


def main_first(function):
  """Calls a function on process 0, then on the others; gives its result.

  For what prepares files that all processes of a file system share.
  """
  result = []

  def first():
    result.append(function())

  on_main(first)
  return result[0] if result else function()


def check_same(values):
  """Checks that values are those of process 0.

  Args:
    values: {name: what JSON can hold}.

  Raises:
    UserError: on the processes where one differs, which it names.
  """
  if count() == 1:
    return
  main = on_main(lambda: values)
  for name, here in json.loads(json.dumps(values)).items():
    if main[name] != here:
      raise UserError(
        f'{name} is {here!r} here, {main[name]!r} on process 0; allowed: the '
        'same on every process'
      )
