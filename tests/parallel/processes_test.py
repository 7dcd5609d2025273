import glob
import importlib.util
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests import programs
from txl_jax.errors import UserError
from txl_jax.parallel import placement, processes


@pytest.mark.parametrize(
  'arguments, message',
  [
    (('on',), '--distributed=on; allowed: auto, off'),
    (('off', 'a:1'), '--coordinator is given; allowed: --distributed=auto'),
    (('auto', 'a:1', 2), '--process_id is missing; allowed: all of '),
    (('auto', None, 2, 0), '--coordinator is missing; allowed: all of '),
    (('auto', 'a', 2, 0), '--coordinator=a; allowed: HOST:PORT'),
    (('auto', 'a:0', 2, 0), '--coordinator=a:0; allowed: HOST:PORT'),
    (('auto', 'a:65536', 2, 0), '--coordinator=a:65536; allowed: HOST:PORT'),
    (('auto', 'a:1', 0, 0), '--num_processes=0; allowed: at least 1'),
    (('auto', 'a:1', 2, 2), '--process_id=2; allowed: 0 to 1'),
    (('auto', 'a:1', 2, -1), '--process_id=-1; allowed: 0 to 1'),
  ],
)
def test_flags_that_are_refused(arguments, message):
  with pytest.raises(UserError) as e:
    processes.start(*arguments)
  assert str(e.value).startswith(message) and '\n' not in str(e.value)


def test_one_process_starts_nothing(monkeypatch):
  monkeypatch.setattr(processes, 'cluster', lambda environ: '')
  processes.start()
  assert not jax.distributed.is_initialized()
  assert (processes.index(), processes.count()) == (0, 1)
  assert processes.is_main()
  assert processes.on_main(lambda: (1, 'é')) == (1, 'é')
  assert processes.main_first(list) == []
  processes.check_same({'a': 1})


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
    ({k: v for k, v in SLURM.items() if k != 'SLURM_STEP_NODELIST'}, ''),
    (
      {'OMPI_COMM_WORLD_SIZE': '2', 'OMPI_MCA_orte_hnp_uri': '1.0;tcp://a:1'},
      'ompi',
    ),
    ({'OMPI_COMM_WORLD_SIZE': '1', 'OMPI_MCA_orte_hnp_uri': 'x'}, ''),
    ({'OMPI_COMM_WORLD_SIZE': '4'}, 'Open MPI does not tell its coordinator'),
    (POD, ''),
    (POD | {'JOB_COMPLETION_INDEX': '1'}, 'the other pods of this Kubernetes'),
  ],
)
def test_clusters(monkeypatch, environ, expected):
  monkeypatch.setattr(glob, 'glob', lambda pattern: [])
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  if ' ' in expected:
    with pytest.raises(UserError, match=expected):
      processes.cluster(environ)
  else:
    assert processes.cluster(environ) == expected


def test_clusters_that_need_a_package(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
  monkeypatch.setattr(glob, 'glob', lambda p: [p] if p == '/dev/accel*' else [])
  assert processes.cluster({}) == 'tpu'
  assert processes.cluster({'JAX_PLATFORMS': 'tpu,cpu'}) == 'tpu'
  assert processes.cluster({'JAX_PLATFORMS': 'cpu'}) == ''
  monkeypatch.setattr(glob, 'glob', lambda pattern: [])
  assert processes.cluster({}) == ''
  assert processes.cluster(POD | {'JOB_COMPLETION_INDEX': '1'}) == 'k8s'


@pytest.mark.parametrize('process', [0, 1])
def test_the_others_do_not_come(process):
  with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
  program = (
    'from txl_jax import distributed\n'
    'distributed._TIMEOUT = 2\n'
    f'distributed.start("auto", "127.0.0.1:{port}", 2, {process})\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=programs.ROOT,
    env=programs.environment(),
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 1
  assert done.stderr.splitlines()[-1] == (
    f'error: process {process} of 2 on {socket.gethostname()} cannot join the '
    f'others at 127.0.0.1:{port}: not all were there within 2 s'
  )


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


def test_arrays_from_rows():
  rows = NamedSharding(mesh(), PartitionSpec('data'))
  x = {
    'inputs': np.arange(24, dtype=np.int32).reshape(8, 3),
    'lengths': None,
    'reset': np.arange(8) > 3,
  }
  out = placement.from_rows(x, np.arange(8), 8, rows)
  assert out['lengths'] is None
  for name in ('inputs', 'reset'):
    assert out[name].sharding == rows and out[name].dtype == x[name].dtype
    np.testing.assert_array_equal(placement.fetch(out[name]), x[name])
    for shard in out[name].addressable_shards:
      np.testing.assert_array_equal(shard.data, x[name][shard.index])


def test_put():
  everywhere = NamedSharding(mesh(), PartitionSpec())
  out = placement.put(np.float32(0.25), everywhere)
  assert out == 0.25 and out.dtype == np.float32 and out.shape == ()
  assert len(out.addressable_shards) == 8
