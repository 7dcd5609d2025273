"""TPUs and GPUs that programs are compiled for and that need not be there.

The compilers come with jax[tpu] and jax[cuda13]; a description stands for the
device.
"""

import importlib.util
import os
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from txl_jax.program.errors import UserError


class Hardware(NamedTuple):
  """What is published of a device of JAX."""

  memory: float  # bytes
  speed: float  # bytes a second that a chip sends over all its links
  bandwidth: float  # bytes a second that a device reads or writes
  cores: int = 1  # devices of a chip
  clock: float = 0  # cycles a second; 0 where it is not known
  # Shares of the memory that JAX takes, by default and at most.
  pools: tuple[float, float] = (1.0, 1.0)


# By device_kind. The speed is half the 'bidirectional ICI bandwidth per chip'
# of cloud.google.com/tpu/docs/v5e, v5p and v6e, and for v3 and v4 the
# 'all-reduce bandwidth per Pod' of their pages divided by the chips of a pod,
# which on v5e and v6e is the same figure. The bandwidth is that of the HBM of a
# chip on the same pages, halved where a chip is two devices. The clock is the
# published peak by what the matrix units of a device do in a cycle: 2 of
# 128 x 128 multiplications on v3, 8 on v4 and v5p, 4 on v5e.
_TPUS = {
  'TPU v3': Hardware(16 * 2**30, 340e12 / 1024, 900e9 / 2, 2, clock=0.94e9),
  'TPU v4': Hardware(32 * 2**30, 1.1e15 / 4096, 1200e9, clock=1.05e9),
  'TPU v5 lite': Hardware(16e9, 200e9, 819e9, clock=1.5e9),
  'TPU v5': Hardware(95e9, 600e9, 2765e9, clock=1.75e9),
  'TPU v5p': Hardware(95e9, 600e9, 2765e9, clock=1.75e9),
  'TPU v6 lite': Hardware(32e9, 400e9, 1640e9),
}


class _Card(NamedTuple):
  """A GPU, as its data sheet (nvidia.com) and the CUDA driver describe it."""

  kind: str  # name of the device, without NVIDIA
  capability: str  # compute capability
  cores: int  # multiprocessors
  cache: int  # MiB of L2
  bandwidth: int  # GB/s of the memory
  clock: float  # GHz at most
  memory: int  # MiB that the driver leaves to programs


_CARDS = {
  'h200': _Card('H200', '9.0', 132, 50, 4800, 1.98, 143_156),
  'h100': _Card('H100 80GB HBM3', '9.0', 132, 50, 3350, 1.98, 81_008),
  'a100-80': _Card('A100-SXM4-80GB', '8.0', 108, 40, 2039, 1.41, 81_158),
  'a100-40': _Card('A100-SXM4-40GB', '8.0', 108, 40, 1555, 1.41, 40_370),
  'rtx4090': _Card('GeForce RTX 4090', '8.9', 128, 72, 1008, 2.52, 24_217),
  'l4': _Card('L4', '8.9', 58, 48, 300, 2.04, 22_563),
}
_CARDS['a100'] = _CARDS['a100-80']
# By capability: threads that a multiprocessor holds at most, its float32 units
# and KiB of shared memory; GB/s that a card sends over NVLink, or else PCIe.
_ARCHITECTURES = {
  '9.0': (2048, 128, 228, 450),
  '8.0': (2048, 64, 164, 300),
  '8.9': (1536, 128, 100, 32),
}


def describe(
  topology: str, dump: str = ''
) -> tuple[list[Any], Hardware | None]:
  """The devices of a topology, and what is published of each.

  A topology of TPUs is written as 'v3:4x4', see `jax.experimental.topologies`;
  of GPUs as 'h200', or 'h200:8' for eight of them in one host. The compiler for
  TPUs writes the bundles of each instruction to the folder `dump`, see
  `hlo.bundles`. UserError if the compiler is missing or does not know it.
  """
  # Arrays that the host makes need neither a TPU nor a GPU that is there.
  jax.config.update('jax_platforms', 'cpu')
  name, _, count = topology.partition(':')
  if name in _CARDS and (not count or (count.isdecimal() and int(count))):
    return _gpus(_CARDS[name], count or '1')
  if not name.startswith('v'):
    allowed = f'TPUs as v3:4x4, GPUs as h200 or h200:8: {", ".join(_CARDS)}'
    raise UserError(f'--topology is {topology!r}; allowed: {allowed}')
  if not importlib.util.find_spec('libtpu'):
    wanted = 'pip install "jax[tpu]"'
    raise UserError(f'the TPU compiler is not installed; allowed: {wanted}')
  # There is no TPU to be asked who it is, or to be kept from others.
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
  os.environ.setdefault('TPU_ACCELERATOR_TYPE', topology.replace(':', '-'))
  os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
  os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
  if dump:
    os.environ['LIBTPU_INIT_ARGS'] = (
      f'{os.environ.get("LIBTPU_INIT_ARGS", "")} --xla_jf_dump_to={dump} '
      '--xla_jf_dump_llo_text=true '
      '--xla_jf_dump_llo_pass_label_regex=^final_bundles'
    )
  try:
    # Both cores of a v4 are one device of JAX.
    options: dict[str, Any] = {}
    if name == 'v4':
      options['chip_config_name'] = 'megacore'
    if {*count.split('x')} == {'1'}:  # a host has four chips by default
      options['chips_per_host_bounds'] = (1, 1, 1)
    found = topologies.get_topology_desc(topology, 'tpu', **options)
    devices = found.devices
  except (ValueError, RuntimeError) as e:
    raise UserError(f'--topology is {topology!r}: {e}') from e
  return devices, _TPUS.get(devices[0].device_kind)


def _gpus(card, count):
  # A GPU that is there would be asked for its versions, and programs be tried
  # out on it; where none are, some products of Triton do not compile.
  os.environ['CUDA_VISIBLE_DEVICES'] = '-1'
  os.environ['JAX_SKIP_CUDA_CONSTRAINTS_CHECK'] = '1'
  os.environ['XLA_FLAGS'] = (
    f'{os.environ.get("XLA_FLAGS", "")} --xla_gpu_autotune_level=0 '
    '--xla_gpu_enable_triton_gemm=false'
  )
  threads, fpus, shared, links = _ARCHITECTURES[card.capability]
  major, _, minor = card.capability.partition('.')
  # Instructions of one architecture alone exist from Hopper on.
  features = 'ACCELERATED_FEATURES' if int(major) >= 9 else 'NONE'
  # A GpuTargetConfigProto of XLA.
  config = f"""
    platform_name: "CUDA" device_description_str: "NVIDIA {card.kind}"
    dnn_version_info {{ major: 9 minor: 10 }}
    gpu_device_info {{
      runtime_version: "13.0.0" core_count: {card.cores} fpus_per_core: {fpus}
      cuda_compute_capability {{ major: {major} minor: {minor}
                                 feature_extension: {features} }}
      threads_per_warp: 32 threads_per_block_limit: 1024
      threads_per_core_limit: {threads} registers_per_block_limit: 65536
      registers_per_core_limit: 65536 shared_memory_per_block: {48 * 1024}
      shared_memory_per_block_optin: {(shared - 1) * 1024}
      shared_memory_per_core: {shared * 1024} block_dim_limit_x: {2**31 - 1}
      block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: {card.bandwidth * 10**9} clock_rate_ghz: {card.clock}
      l2_cache_size: {card.cache * 2**20}
      device_memory_size: {card.memory * 2**20}
    }}
  """
  options = dict(target_config=config, topology=f'1x1x{count}')
  try:
    found = topologies.get_topology_desc('', 'cuda', **options)
  except NotImplementedError as e:  # what JAX says of a platform without one
    why = 'the CUDA compiler is not installed'
    raise UserError(f'{why}; allowed: pip install "jax[cuda13]"') from e
  # JAX takes 75 % of a GPU; XLA_PYTHON_CLIENT_MEM_FRACTION gives it more, but
  # for what the CUDA context and its libraries need.
  pools = 0.75, 0.95
  hardware = Hardware(
    card.memory * 2**20, links * 1e9, card.bandwidth * 1e9, pools=pools
  )
  return found.devices, hardware
