"""QRNN (Merity et al. 2018, arXiv 1803.08240) on WikiText-103.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=qrnn

A baseline of the Transformer-XL paper, for relative effective context length.
Published: 33.0 perplexity on the test split with 151M parameters; here
150,886,638 with a window of 1 in every layer. The public script has 2 in the
first layer, which gives 153,886,638: --config.model.window=2.
Hardware: the original ran 12 hours on one GPU (its abstract); not timed here.
Published: widths, layers, dropout, Adam and its rate, 14 epochs, the rate
divided by 10 after 12 of them, batch, mean segment length, cutoffs. Our choice:
initial weights are normal with std 0.02, tails are those of model.cutoffs, and
an epoch is 12,650 steps, the mean number of segments of varying length.
"""

from txl_jax.configs import common

EPOCH = 12_650


def get_config():
  """The config."""
  c = common.get_config('qrnn')
  c.data.corpus = 'wt103'
  c.model.n_layer = 4
  c.model.d_model = 400
  c.model.d_hidden = 2500
  c.model.window = 1
  c.model.dropout = 0.1
  c.model.locked_dropout = True
  c.model.cutoffs = (2800, 20_000, 76_000)
  c.train.steps = 14 * EPOCH
  c.train.batch_size = 60
  c.train.segment_len = 140
  c.train.varlen = True
  c.train.eval_every = EPOCH
  c.train.save_every = EPOCH
  c.optim.lr = 1e-3
  c.optim.schedule = 'drop'
  c.optim.drop_at = 12 * EPOCH
  c.optim.drop_factor = 0.1
  c.eval.split = 'test'
  c.eval.segment_len = 140
  c.generate.segment_len = 140
  return c
