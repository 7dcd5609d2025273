"""A small model on Python's standard library, on a CPU in minutes.

Not from the paper: a first run without downloads, and the default config.

  python -m txl_jax.main --config=pystdlib_tiny

Expected: 1.855 to 1.883 bits per byte on the validation split with three seeds
(gzip -9: 1.92); 6 minutes on 2 cores of an AMD EPYC (Zen 5), 13 on one core of
a Zen 4 (2026-11-21 and 22, docs/results.md). It is for CPUs.
"""

from txl_jax.configs import common


def get_config():
  """The config."""
  c = common.get_config()
  c.data.corpus = 'pystdlib'
  c.model.n_layer = 4
  c.model.d_model = 128
  c.model.n_head = 4
  c.model.d_head = 32
  c.model.d_ff = 512
  c.model.mem_len = 128
  c.model.dropout = 0.0
  c.train.steps = 3000
  # Many streams and short segments: small, diverse batches, and a memory four
  # segments long.
  c.train.batch_size = 32
  c.train.segment_len = 32
  c.train.log_every = 100
  c.train.eval_every = 1000
  c.train.eval_batch_size = 16
  c.train.eval_tokens = 100_000
  c.train.sample_tokens = 60
  c.train.save_every = 500
  c.optim.lr = 3e-3
  c.optim.warmup_fraction = 1 / 30
  c.optim.clip = 0.25
  c.eval.segment_len = 64
  return c
