"""Descriptions of devices, and programs that exceed their memory."""

import importlib.util
import json
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from tests import programs
from txl_jax.parallel import hardware
from txl_jax.program.errors import UserError


def test_the_processor_is_named(tmp_path):
  file = tmp_path / 'cpuinfo'
  file.write_text('processor : 0\nmodel name\t: A CPU @ 2 GHz \nflags: x\n')
  assert hardware._cpu(str(file)) == 'A CPU @ 2 GHz'
  # Others have no such line, or no such file.
  for text in 'model name:\nflags : x\n', 'processor : 0\n', '':
    file.write_text(text)
    assert hardware._cpu(str(file))
    assert 'flags' not in hardware._cpu(str(file))
  assert hardware._cpu(str(tmp_path / 'none'))


def test_the_devices_of_these_tests():
  found = hardware.describe()
  assert (found['platform'], found['devices']) == ('cpu', 8)
  assert found['device'] == found['cpu'] and found['processes'] == 1
  assert json.loads(json.dumps(found)) == found


@pytest.mark.thorough
@pytest.mark.parametrize(
  'platform, why', [('cuda', 'none found)'), ('nonsense', 'Unable to init')]
)
def test_a_platform_that_does_not_exist(platform, why):
  """Whether jax knows its name or not."""
  if importlib.util.find_spec(f'jax_{platform}13_plugin'):
    pytest.skip('there may be such a device')
  flags = '--config=pystdlib_tiny', '--mode=summary'
  done = subprocess.run(
    [sys.executable, '-m', 'txl_jax.main', *flags],
    cwd=programs.ROOT,
    env=os.environ | {'JAX_PLATFORMS': platform},
    capture_output=True,
    text=True,
    check=False,
  )
  programs.assert_refused(done, f"JAX_PLATFORMS is '{platform}'; ", f' ({why}')
  assert len(done.stderr.splitlines()) == 1


def compiled(donated):
  """x [1024] float32 -> [2, 1024], and x + 1 in its place if it is donated."""

  def f(x):
    return jnp.stack([x, x]), x + 1

  x = jax.ShapeDtypeStruct([1024], jnp.float32)
  options = dict(donate_argnums=0) if donated else {}
  return jax.jit(f, **options).lower(x).compile()


@pytest.mark.parametrize('donated, KiB', [(False, 16), (True, 12)])
def test_arguments_and_results_are_counted_once(monkeypatch, donated, KiB):
  program = compiled(donated)
  over = program.memory_analysis().temp_size_in_bytes + KiB * 1024
  # Beside arrays, results have a table of their addresses.
  monkeypatch.setattr(hardware, '_memory', lambda devices: over + 100)
  hardware.check_memory('it', program, jax.devices())
  monkeypatch.setattr(hardware, '_memory', lambda devices: over - 1)
  message = r'^it needs 0\.0 GiB of memory on each dev'
  with pytest.raises(UserError, match=message):
    hardware.check_memory('it', program, jax.devices())


def test_both_sizes_are_told(monkeypatch):
  sizes = dict(argument=3 << 30, temp=1 << 29, output=1 << 30, alias=1 << 30)
  sizes = {f'{k}_size_in_bytes': x for k, x in sizes.items()}
  program = types.SimpleNamespace(
    memory_analysis=lambda: types.SimpleNamespace(**sizes)
  )
  monkeypatch.setattr(hardware, '_memory', lambda devices: 7 << 29)
  hardware.check_memory('it', program, jax.devices())
  monkeypatch.setattr(hardware, '_memory', lambda devices: 2 << 30)
  told = r'^it needs 3\.5 GiB of memory on each device, which has 2\.0 GiB; try'
  with pytest.raises(UserError, match=told):
    hardware.check_memory('it', program, jax.devices())


def test_devices_of_a_machine_share_its_memory():
  one = hardware._memory(jax.devices()[:1])
  assert 2**28 < one == 8 * hardware._memory(jax.devices())


class GPU:
  platform, device_kind = 'gpu', 'GPU of a test'

  def __init__(self, limit):
    self._stats = {'bytes_limit': limit} if limit else None

  def memory_stats(self):
    return self._stats


def test_the_smallest_device_counts(monkeypatch):
  devices = [GPU(9), GPU(7), GPU(None)]
  assert hardware._memory(devices) == 7
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  assert hardware.describe()['device'] == 'GPU of a test'


def test_peaks(monkeypatch):
  class Device:
    device_kind = 'TPU v3'

  monkeypatch.setattr(jax, 'devices', lambda: [Device, None])
  monkeypatch.setattr(jax, 'device_count', lambda: 32)
  # 16 chips of 123 TFLOP/s; float32 is made of bfloat16 passes.
  assert hardware.peak('bfloat16') == 16 * 123e12
  assert hardware.peak('float32') == 16 * 123e12
  Device.device_kind = 'Tesla T4'
  assert hardware.peak('bfloat16') is None
  Device.device_kind = 'cpu'
  assert hardware.peak('float32') is None


# TFLOP/s of dense bfloat16 and float32, which is TF32, by the data sheets.
SHEETS = {
  **{f'Tesla V100-SXM2-{n}GB': (None, 15.7) for n in (16, 32)},
  'Tesla T4': (None, 8.1),
  'NVIDIA A40': (149.7, 74.8),
  'NVIDIA L4': (121, 60),
  'NVIDIA L40S': (362, 183),
  'NVIDIA H100 80GB HBM3': (989.5, 494.5),
  'NVIDIA H100 PCIe': (756.5, 378),
  'NVIDIA H200': (989.5, 494.5),
  'NVIDIA B200': (2250, 1100),
}


def test_peaks_of_data_sheets():
  for kind in hardware._PEAKS:
    two = [hardware.peak(x, kind, 2) for x in ('bfloat16', 'float32')]
    if kind in SHEETS:
      assert two == [x and 2 * x * 1e12 for x in SHEETS[kind]]
    else:
      assert two[0] == two[1] * (1 if 'TPU' in kind else 2)
