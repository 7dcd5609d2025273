"""Eight simulated CPU devices, set before jax is first imported.

Tests compile much and compute little, so LLVM optimises nothing here. The
programs that tests start have an environment of their own.
"""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
flags = os.environ.get('XLA_FLAGS', '')
if 'host_platform_device_count' not in flags:
  flags += ' --xla_force_host_platform_device_count=8'
  flags += ' --xla_backend_optimization_level=0'
  os.environ['XLA_FLAGS'] = flags.strip()
