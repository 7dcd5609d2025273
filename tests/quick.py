"""Flags of XLA with which it compiles fast, and what it compiles runs slowly.

Tests compile much and compute little.
"""

import importlib.metadata

FLAGS = '--xla_backend_optimization_level=0'
# Halves the time again; XLA ends programs with flags that it does not know.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  FLAGS += ' --xla_cpu_use_fusion_emitters=false'
