import os
import re
import types

import pytest

from benchmarks import topologies
from txl_jax.program.errors import UserError

# GiB of memory that each card is sold with.
SOLD = {'h200': 141, 'h100': 80, 'a100-80': 80, 'a100-40': 40}
SOLD |= {'rtx4090': 24, 'l4': 24, 'a100': 80}


VARIABLES = 'CUDA_VISIBLE_DEVICES', 'JAX_SKIP_CUDA_CONSTRAINTS_CHECK'
VARIABLES += 'TPU_SKIP_MDS_QUERY', 'TPU_ACCELERATOR_TYPE'
VARIABLES += 'TPU_WORKER_HOSTNAMES', 'ALLOW_MULTIPLE_LIBTPU_LOAD'


@pytest.fixture(autouse=True)
def environment(monkeypatch):
  """What is set here, the compilers find; it is as before after a test."""
  for name in VARIABLES:
    monkeypatch.setenv(name, '')
  monkeypatch.setenv('XLA_FLAGS', '--mine')


@pytest.fixture
def asked(monkeypatch):
  """What the compiler is asked for, in place of it."""
  calls = []

  def describe(*args, **kwargs):
    calls.append((args, kwargs))
    return types.SimpleNamespace(devices=[object()] * 8)

  monkeypatch.setattr(topologies.topologies, 'get_topology_desc', describe)
  return calls


@pytest.mark.parametrize('name', SOLD)
def test_cards(asked, name):
  _, hardware = topologies.describe(name)
  # The driver keeps a part of it, less than a tenth.
  assert 0.9 < hardware.memory / 2**30 / SOLD[name] < 1
  ((_, kwargs),) = asked
  assert kwargs['topology'] == '1x1x1'
  text = kwargs['target_config']
  assert re.sub(r'"[^"]*"|[^{}]', '', text) == '{}{{}}'
  fields = dict(re.findall(r'(\w+): (\S+)', text))
  assert int(fields['device_memory_size']) == hardware.memory
  assert int(fields['memory_bandwidth']) == hardware.bandwidth
  # What a block can ask for is 1 KiB less than what its processor has.
  shared = int(fields['shared_memory_per_core'])
  assert int(fields['shared_memory_per_block_optin']) == shared - 1024
  assert fields['device_description_str'].startswith('"NVIDIA')


def test_several_cards_of_a_host(asked):
  devices, hardware = topologies.describe('a100-40:8')
  ((args, kwargs),) = asked
  assert args == ('', 'cuda') and kwargs['topology'] == '1x1x8'
  assert len(devices) == 8
  assert hardware.speed == 300e9  # half of 600 GB/s both ways


def test_no_gpu_is_touched(asked):
  topologies.describe('h200')
  assert os.environ['CUDA_VISIBLE_DEVICES'] == '-1'
  assert os.environ['XLA_FLAGS'].startswith('--mine --xla_gpu_autotune_level=0')


@pytest.mark.parametrize('topology', ['h300', 'h200:0', 'h200:x', ''])
def test_unknown_topology(asked, topology):
  with pytest.raises(UserError) as e:
    topologies.describe(topology)
  assert str(e.value) == (
    f'--topology is {topology!r}; allowed: TPUs as v3:4x4, GPUs as h200 or '
    'h200:8: h200, h100, a100-80, a100-40, rtx4090, l4, a100'
  )
  assert not asked


def test_topology_that_the_compiler_refuses(monkeypatch):
  def refuse(*_, **__):
    raise RuntimeError('no such chip')

  monkeypatch.setattr(topologies.topologies, 'get_topology_desc', refuse)
  monkeypatch.setattr(topologies.importlib.util, 'find_spec', lambda _: True)
  refused = r"^--topology is 'v9:1x1': no such chip$"
  with pytest.raises(UserError, match=refused):
    topologies.describe('v9:1x1')


@pytest.mark.parametrize(
  'topology, package', [('v3:4x4', 'jax[tpu]'), ('h200', 'jax[cuda13]')]
)
def test_compiler_that_is_missing(monkeypatch, topology, package):
  def missing(*_, **__):
    raise NotImplementedError('topology not implemented for cuda')

  monkeypatch.setattr(topologies.topologies, 'get_topology_desc', missing)
  monkeypatch.setattr(topologies.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(UserError) as e:
    topologies.describe(topology)
  assert str(e.value).endswith(
    f' compiler is not installed; allowed: pip install "{package}"'
  )
