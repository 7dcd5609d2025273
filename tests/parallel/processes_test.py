import glob
import importlib.util
import io
import os
import signal
import socket
import sys
import threading
from concurrent import futures

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests import programs
from tests.parallel.store import Store
from txl_jax.parallel import placement, processes
from txl_jax.program.errors import UserError


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('auto', 'a:1', 2), '--process_id=None; allowed: --coordinator=HOST:PORT'),
    (('auto', None, 2, 0), '--coordinator=None --num_processes=2'),
    (('auto', 'a', 2, 0), '--coordinator=a --num_processes=2'),
    (('auto', 'a:1', 0, 0), 'cannot join the processes at a:1: '),
    (('auto', 'a:1', 2, 2), 'cannot join the processes at a:1: '),
  ],
)
def test_flags_that_are_refused(arguments, message):
  with pytest.raises(UserError) as e:
    processes.start(*arguments)
  assert message in str(e.value)


def test_one_process_starts_nothing(monkeypatch):
  monkeypatch.setattr(processes, 'cluster', lambda environ: '')
  processes.start()
  assert not jax.distributed.is_initialized()
  assert (processes.index(), processes.count()) == (0, 1)
  assert processes.is_main()
  assert processes.on_main(lambda: (1, 'é')) == (1, 'é')
  assert processes.main_first(list) == []
  processes.check_same({'a': 1})


def test_what_jax_is_told_of_other_processes(monkeypatch):
  """A pause of lost_seconds is half of the time that it waits."""
  given = {}
  begin = lambda *_, **options: given.update(options)
  monkeypatch.setattr(jax.distributed, 'initialize', begin)
  processes.start('auto', 'a:1', 2, 0, lost_seconds=7.2)
  assert given['heartbeat_timeout_seconds'] == 15
  for method in 'slurm', 'tpu':  # jax finds the hosts of a TPU by itself
    monkeypatch.setattr(processes, 'cluster', lambda environ, x=method: x)
    processes.start()
    own = None if method == 'tpu' else method
    assert given['cluster_detection_method'] == own
    assert given['heartbeat_timeout_seconds'] == 90  # by default
  given.clear()
  processes.start('off', 'a:1', 2, 0)
  assert not given


def test_a_tpu_on_its_own_has_no_coordinator(monkeypatch):
  def fail(*_, **__):
    raise ValueError(text)

  text = 'coordinator_address should be defined.'
  monkeypatch.setattr(jax.distributed, 'initialize', fail)
  monkeypatch.setattr(processes, 'cluster', lambda environ: 'tpu')
  processes.start()
  text = 'no answer'
  with pytest.raises(UserError, match='at the coordinator of tpu: no answer'):
    processes.start()


SLURM = {
  'SLURM_JOB_ID': '7',
  'SLURM_STEP_NODELIST': 'n[1-2]',
  'SLURM_NTASKS': '2',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '0',
}
POD = {'KUBERNETES_SERVICE_HOST': '10.0.0.1'}


@pytest.mark.parametrize(
  'environ, expected',
  [
    ({}, ''),
    (SLURM, 'slurm'),
    (SLURM | {'SLURM_NTASKS': '1'}, ''),
    # A task on its own within a larger allocation; the shell of a job.
    (SLURM | {'SLURM_STEP_NUM_TASKS': '1'}, ''),
    *(({k: SLURM[k] for k in SLURM if k != name}, '') for name in SLURM),
    (
      {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_MCA_orte_hnp_uri': '1.0;tcp://a:1'},
      'ompi',
    ),
    ({'OMPI_COMM_WORLD_SIZE': '1', 'OMPI_MCA_orte_hnp_uri': 'x'}, ''),
    (POD, ''),
    (POD | {'JOB_COMPLETION_INDEX': '1', 'HOME': '/'}, 'k8s'),
  ],
)
def test_clusters(monkeypatch, environ, expected):
  monkeypatch.setattr(glob, 'glob', lambda pattern: [])
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  assert processes.cluster(environ) == expected


def test_clusters_that_need_a_package(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  monkeypatch.setattr(glob, 'glob', lambda p: [p] if p == '/dev/accel*' else [])
  assert processes.cluster({}) == 'tpu'
  assert processes.cluster({'JAX_PLATFORMS': 'tpu,cpu'}) == 'tpu'
  assert processes.cluster({'JAX_PLATFORMS': 'cpu'}) == ''
  monkeypatch.setattr(glob, 'glob', lambda pattern: [])
  assert processes.cluster({}) == ''


def free_port():
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    return s.getsockname()[1]


def run(program):
  return programs.run([sys.executable, '-c', program], timeout=120)


@pytest.mark.thorough
def test_sigterm_ends_a_process_that_is_not_asked():
  """As one on its own; jax would have it wait."""
  done = run(
    'import os, signal, time\n'
    'from txl_jax.parallel import processes\n'
    f'processes.start("auto", "127.0.0.1:{free_port()}", 1, 0)\n'
    'assert processes.count() == 1\n'
    'os.kill(os.getpid(), signal.SIGTERM)\n'
    'time.sleep(20)\n'
  )
  assert done.returncode == -signal.SIGTERM


@pytest.fixture
def become(monkeypatch):
  """Makes this one of two processes that share a store: process 0 or 1."""
  store = Store()
  monkeypatch.setattr(processes, 'store', lambda: store)
  monkeypatch.setattr(processes, 'count', lambda: 2)
  return lambda p: monkeypatch.setattr(processes, 'index', lambda: p)


def test_what_process_0_decides(become):
  def decide(value):
    return processes.on_main(lambda: value)

  def fail():
    raise UserError('data.path: it is gone')

  def full():
    raise OSError('no space')

  become(0)
  assert decide('a') == 'a'
  assert processes.main_first(lambda: 'first') == 'first'
  for _ in range(2):
    processes.check_same({'seed': 1, 'mesh': (1, 2)})
  with pytest.raises(UserError, match='it is gone'):
    processes.on_main(fail)
  with pytest.raises(OSError, match='no space'):
    processes.on_main(full)
  assert decide({'b': [2]}) == {'b': [2]}
  become(1)
  assert decide('not asked') == 'a'
  assert processes.main_first(lambda: 'second') == 'second'
  for seed in 0, 2:
    message = f'seed is {seed} here, 1 on process 0; allowed: the same on every'
    with pytest.raises(UserError, match=message):
      processes.check_same({'seed': seed, 'mesh': (1, 2)})
  for function, message in (fail, 'it is gone'), (full, 'no space'):
    with pytest.raises(UserError, match=message):
      processes.on_main(function)
  assert decide('not asked') == {'b': [2]}


def test_what_all_processes_say(become, monkeypatch):
  """Each waits for the others."""
  become(0)
  values, here = [['a', 0.5], ['', None]], threading.local()
  monkeypatch.setattr(processes, 'index', lambda: here.n)

  def gather(n):
    here.n = n
    return processes.gather(values[n])

  with futures.ThreadPoolExecutor(2) as threads:
    assert list(threads.map(gather, range(2))) == [values, values]


def test_calls_in_another_order(become):
  become(0)
  processes.on_main(lambda: [processes.on_main(list) for _ in range(2)])
  become(1)
  processes.on_main(lambda: 'not asked')
  for other in dict, tuple:
    message = f'process 0 calls list, this one {other.__name__}'
    with pytest.raises(RuntimeError, match=message):
      processes.on_main(other)


def test_what_is_said_is_seen_at_once(monkeypatch):
  """Also where output is a file; a process that leaves flushes nothing."""
  out, err = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
  monkeypatch.setattr(sys, 'stdout', out)
  monkeypatch.setattr(sys, 'stderr', err)
  monkeypatch.setattr(
    os, '_exit', lambda status: err.buffer.write(b'%d' % status)
  )
  processes.print_on_main('a', 'b')
  assert out.buffer.getvalue() == b'a\nb\n'
  print('c')
  processes.leave('error: d')
  assert out.buffer.getvalue() == b'a\nb\nc\n'
  assert err.buffer.getvalue() == b'error: d\n1'


class Elsewhere(NamedSharding):
  """As a process with some of the devices sees a sharding."""

  here: tuple

  def addressable_devices_indices_map(self, shape):
    return {
      d: i for d, i in self.devices_indices_map(shape).items() if d in self.here
    }


def mesh():
  auto = (AxisType.Auto,) * 2
  return jax.make_mesh((4, 2), ('data', 'tensor'), axis_types=auto)


def test_rows_of_a_process():
  m = mesh()
  rows = NamedSharding(m, PartitionSpec('data'))
  np.testing.assert_array_equal(placement.local_rows(rows, 8), np.arange(8))
  part = Elsewhere(m, PartitionSpec('data'))
  # Four devices that hold two blocks, not neighbours, each of them twice.
  part.here = (*m.devices[0], *m.devices[2])
  np.testing.assert_array_equal(placement.local_rows(part, 8), [0, 1, 4, 5])
  part.here = tuple(m.devices[:, 1])
  np.testing.assert_array_equal(placement.local_rows(part, 8), np.arange(8))


def test_put():
  everywhere = NamedSharding(mesh(), PartitionSpec())
  out = placement.put(np.float32(0.25), everywhere)
  assert out == 0.25 and out.dtype == np.float32 and out.shape == ()
  assert len(out.addressable_shards) == 8


def test_the_highest_of_all_processes():
  out = placement.max_over_processes(3)
  assert out == 3 and out.dtype == np.int32 and out.shape == ()
