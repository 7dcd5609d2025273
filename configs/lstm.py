"""LSTM: baselines on WikiText-103 and lm1b, AWD-LSTM on Penn Treebank.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=lstm:wt103

wt103 is a baseline of the Transformer-XL paper (Dai et al. 2019), which
measured its relative effective context length in a group of models of 151M
parameters; here 151,434,146. Neither perplexity nor recipe is published. Two
layers of width 1024, embeddings of 500 and their initial projection are our
choice; everything else is as in configs/qrnn.py.

  python -m txl_jax.prepare --dataset=lm1b --vocab_file=1b_word_vocab.txt
  python -m txl_jax.main --config=lstm:lm1b

lm1b is Dauphin et al.'s (2017) comparison for GCNN-13: 39.8 perplexity on the
test split (Grave et al. 2016, arXiv 1609.04309), on one GPU, with two layers of
width 2048 and an adaptive softmax; here 123,660,666 parameters. T 20 and B 128
are from its authors' public code, which has Adagrad at 0.1. Adam and its rate,
the embeddings, the cutoffs, no dropout and 5 epochs of 307,000 steps are our
choice, untuned.

  python -m txl_jax.prepare --dataset=ptb
  python -m txl_jax.main --config=lstm:ptb

ptb is AWD-LSTM (Merity et al. 2017, arXiv 1708.02182). Published: 58.8
perplexity on the test split, and 57.3 after finetuning (not included); 24M
parameters, here 24,210,800 (the original has two biases for each gate, which
are added: 24,221,600).
Published: every value but the initial weights, which are normal with std 0.02,
and the length of an epoch, 343 steps, the mean number of segments of varying
length. The original also scales the rate with the length of a segment.
Weight decay, applied after clipping, is the same in plain gradient descent
whether it is part of the gradient or not; ours excludes biases.

Hardware: published only for lm1b, one GPU. Neither compiled for a GPU nor timed
here.
"""

from txl_jax.configs import common, qrnn

VARIANTS = ('wt103', 'ptb', 'lm1b')


def get_config(variant='wt103'):
  """The config."""
  common.check_variant(variant, VARIANTS)
  c = common.get_config('lstm')
  {'wt103': _wt103, 'ptb': _ptb, 'lm1b': _lm1b}[variant](c)
  return c


def _wt103(c):
  other = qrnn.get_config()
  c.data.update(other.data)
  c.train.update(other.train)
  c.optim.update(other.optim)
  c.model.n_layer = 2
  c.model.d_model = 1024
  c.model.d_hidden = 1024
  c.model.d_embed = 500
  c.model.tie_projs = (True,) * 4
  c.model.proj_init_std = 0.05  # with 0.01 the first layer would see almost 0
  c.model.cutoffs = other.model.cutoffs
  c.model.dropout = 0.1
  c.model.locked_dropout = True
  c.eval.split = 'test'
  c.eval.segment_len = 140
  c.generate.segment_len = 140


def _lm1b(c):
  epoch = 307_000
  c.data.corpus = 'lm1b'
  c.model.n_layer = 2
  c.model.d_model = 2048
  c.model.d_hidden = 2048
  c.model.d_embed = 512
  c.model.tie_projs = (True,) * 4
  c.model.proj_init_std = 0.05  # as for wt103
  c.model.cutoffs = (60_000, 100_000, 640_000)
  c.model.div_val = 4
  c.model.dropout = 0.0
  c.train.steps = 5 * epoch
  c.train.batch_size = 128
  c.train.segment_len = 20
  c.train.eval_every = 20_000
  c.train.save_every = 20_000
  c.optim.lr = 1e-3
  c.optim.clip = 1.0
  c.eval.split = 'test'


def _ptb(c):
  epoch = 343
  c.data.corpus = 'ptb'
  c.model.n_layer = 3
  c.model.d_model = 400
  c.model.d_hidden = 1150
  c.model.forget_bias = 0.0
  c.model.weight_drop = 0.5
  c.model.locked_dropout = True
  c.model.dropout = 0.25
  c.model.dropout_embed = 0.4
  c.model.dropout_final = 0.4
  c.model.word_dropout = 0.1
  c.model.activation_reg = 2.0
  c.model.temporal_activation_reg = 1.0
  c.train.steps = 750 * epoch
  c.train.batch_size = 40
  c.train.segment_len = 70
  c.train.varlen = True
  c.train.eval_every = epoch
  c.train.save_every = epoch
  c.optim.name = 'sgd'
  c.optim.lr = 30.0
  c.optim.schedule = 'constant'
  c.optim.clip = 0.25
  c.optim.weight_decay = 1.2e-6
  c.optim.average = 'nt'
  c.optim.average_patience = 5
  c.eval.split = 'test'
  c.eval.segment_len = 70
  c.generate.segment_len = 70
