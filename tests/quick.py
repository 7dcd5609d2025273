"""What makes tests quick, which compile much and compute little.

FLAGS are of XLA: it compiles fast, and what it compiles runs slowly.
"""

import importlib.metadata

# Names a folder for compiled programs that processes share.
CACHE = 'TXL_JAX_TEST_CACHE'

FLAGS = (
  '--xla_backend_optimization_level=0'
  ' --xla_llvm_disable_expensive_passes=true'
  # The processors are busy with other tests.
  ' --xla_cpu_parallel_codegen_split_count=1'
)
# Halves the time again; XLA ends programs with flags that it does not know.
if importlib.metadata.version('jaxlib').startswith('0.10.'):
  FLAGS += ' --xla_cpu_use_fusion_emitters=false'
