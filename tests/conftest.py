"""Eight simulated CPU devices, set before jax is first imported."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
flags = os.environ.get('XLA_FLAGS', '')
if 'host_platform_device_count' not in flags:
  flags += ' --xla_force_host_platform_device_count=8'
  os.environ['XLA_FLAGS'] = flags.strip()
