"""A small Transformer-XL on Penn Treebank, on a CPU in minutes.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=ptb_tiny
  python -m txl_jax.main --config=ptb_tiny:shaw

Not from the paper: a first word-level run, a baseline for comparing
regularisation, and with its variants a small counterpart of Tables 6 to 8.
Expected: 96.4 and 95.9 perplexity on the test split (validation 101.6 twice)
with seeds 0 and 1, on one core in 17 minutes (Intel Xeon) and 12 (AMD EPYC),
2026-11-22; docs/results.md has the curve, and other regularisation.
"""

from txl_jax.configs import common

# The baselines, with about as many parameters as `xl`.
BASELINES = {
  'vaswani': ('vaswani', {}),
  'lstm': ('lstm', dict(n_layer=2, d_hidden=256, init_std=0.1)),
  'gcnn': ('gcnn', dict(blocks='[4,128]*5')),
}
VARIANTS = 'xl', 'shaw', 'xl_no_recurrence', *BASELINES


def get_config(variant='xl'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  c = common.get_config()
  c.data.corpus = 'ptb'
  c.model.n_layer = 3
  c.model.d_model = 128
  c.model.n_head = 4
  c.model.d_head = 32
  c.model.d_ff = 512
  c.model.mem_len = 64
  c.model.dropout = 0.0
  c.model.dropatt = 0.0
  c.model.pre_norm = True
  c.model.cutoffs = (1000, 4000)
  c.train.steps = 2700
  c.train.batch_size = 16
  c.train.segment_len = 64
  c.train.log_every = 100
  c.train.eval_every = 450
  c.train.eval_batch_size = 10
  c.train.save_every = 900
  c.optim.lr = 4e-3
  c.optim.warmup = 200
  c.optim.weight_decay = 0.1
  c.eval.split = 'test'
  c.eval.segment_len = 64
  c.generate.segment_len = 64
  common.at_test_time(c, mem_len=128)
  if variant not in BASELINES:
    return common.ablate(c, variant)
  c = common.baseline(c, *BASELINES[variant])
  if variant == 'lstm':  # learns more slowly at the others' rate
    c.optim.lr = 1e-2
    c.optim.clip = 1.0
    c.optim.weight_decay = 0.01
  return c
