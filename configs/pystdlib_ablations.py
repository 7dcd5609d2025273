"""The ablations and baselines of Dai et al. 2019, each on a CPU in minutes.

  python -m txl_jax.main --config=pystdlib_ablations:xl
  python -m txl_jax.main --config=pystdlib_ablations:shaw

Not from the paper: counterparts of the rows of its Tables 6, 8 and 10 on the
sources of Python's standard library, with the same tokens for all. Segments and
a memory of 32 bytes, 3 layers of width 96. docs/results.md has the figures, and
compares their orderings with the paper's.
"""

from txl_jax.configs import common, pystdlib_tiny

# The baselines, with about as many parameters as `xl`, 387,040; in training,
# `al_rfou_aux` has 492,576.
BASELINES = {
  'vaswani': ('vaswani', {}),
  'al_rfou': ('al_rfou', dict(table_len=32)),
  'al_rfou_aux': (
    'al_rfou',
    dict(table_len=32, layer_losses=True, second_target=0.5),
  ),
  'lstm': ('lstm', dict(n_layer=2, d_hidden=216, init_std=0.1)),
  'qrnn': ('qrnn', dict(d_hidden=244, init_std=0.1)),
  'gcnn': ('gcnn', dict(blocks='[4,96]*5')),
}

# The rows of Table 6; those of Table 10, whose longer segments cost as much as
# a memory; and the other models of Table 8.
VARIANTS = (
  *common.ABLATIONS,
  'xl_no_recurrence_44',
  'xl_no_recurrence_half_43',
  *BASELINES,
)


def get_config(variant='xl'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  c = pystdlib_tiny.get_config()
  c.optim.update(warmup=100, warmup_fraction=0.0)
  c.train.sample_tokens = 0
  c.model.n_layer = 3
  c.model.d_model = 96
  c.model.n_head = 3
  c.model.d_ff = 384
  c.model.mem_len = 32
  c.train.steps = 2000
  c.train.batch_size = 32
  c.train.segment_len = 32
  c.train.eval_every = 500
  c.eval.segment_len = 32
  c.attention_length.lengths = (16, 32, 64, 96, 128, 192, 256)
  c.attention_length.tokens = 20_000
  c.recl.step = 16
  c.recl.longest = 256
  c.recl.positions = 500
  if variant in BASELINES:
    c = common.baseline(c, *BASELINES[variant])
    if variant in ('lstm', 'qrnn'):  # learn slowly at the others' rate
      c.optim.lr = 5e-3
      c.optim.clip = 1.0
    return c
  return common.ablate(c, variant)
