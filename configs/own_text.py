r"""Your own text, or token ids, on a laptop or one GPU.

  python -m txl_jax.main --config=own_text:bytes --config.data.path=book.txt
  python -m txl_jax.main --config=own_text:subwords --config.data.path=book.txt
  python -m txl_jax.main --config=own_text:nanogpt \
    --config.data.path=nanoGPT/data/shakespeare_char
  python -m txl_jax.main --config=own_text:ids --config.data.path=music.jsonl \
    --config.data.field=ids --config.data.documents=record

Not from the paper. `bytes`, `subwords` and `ids` are for a few megabytes and
two CPU cores; `bytes_gpu` and `subwords_gpu` for a hundred times that, and one
GPU. The models are pre-norm (model.pre_norm): at this rate a post-norm model,
as in the paper, may learn only token frequencies (docs/troubleshooting.md).

Expected on War and Peace: 1.97 bits per byte with bytes and 1.57 with subwords
on the validation split, one seed, in 14 minutes on 2 cores of an AMD EPYC (Zen
5) beside other programs, 2026-11-23 (docs/own_text.md, with samples). The GPU
variants: hardware unknown, not trained by us at full size.
`nanogpt` has the size, batches and steps of nanoGPT's recipe for a CPU: 0.8M
parameters, 2,000 steps of 12 x 64 bytes or token ids, of a text or of a folder
that its prepare.py wrote; docs/results.md has the figures.
"""

from txl_jax.configs import common

VARIANTS = ('bytes', 'subwords', 'bytes_gpu', 'subwords_gpu', 'nanogpt', 'ids')


def get_config(variant='bytes'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  level, _, gpu = variant.partition('_')
  c = common.get_config()
  c.data.corpus = 'text'
  c.model.pre_norm = True
  c.model.dropout = 0.1
  c.optim.clip = 0.25
  if gpu:
    _for_a_gpu(c)
  else:
    _for_a_laptop(c)
  if variant == 'nanogpt':
    c.model.update(mem_len=64, dropout=0.0)
    c.train.update(steps=2000, batch_size=12, segment_len=64)
    c.optim.warmup_fraction = 0.1
    c.data.level = 'auto'
  if level == 'subwords':
    c.data.level = 'subword'
    c.data.max_size = 32_000 if gpu else 4096
  if level == 'ids':
    c.data.level = 'id'
  return c


def _for_a_laptop(c):
  c.model.update(n_layer=4, d_model=128, n_head=4, d_head=32, d_ff=512)
  c.model.update(mem_len=128)
  c.train.update(steps=3000, batch_size=32, segment_len=32)
  c.train.update(log_every=100, eval_every=500, save_every=500)
  c.train.sample_tokens = 60
  c.train.update(eval_batch_size=16, eval_tokens=100_000)
  c.optim.update(lr=3e-3, warmup_fraction=1 / 15)
  c.eval.segment_len = 64


def _for_a_gpu(c):
  c.model.update(n_layer=12, d_model=512, n_head=8, d_head=64, d_ff=2048)
  c.model.update(mem_len=512, dtype='bfloat16')
  c.train.update(steps=50_000, batch_size=32, segment_len=256)
  c.train.update(log_every=100, eval_every=1000, save_every=1000)
  c.train.sample_tokens = 60
  c.train.update(eval_batch_size=16, eval_tokens=500_000)
  c.optim.update(lr=5e-4, warmup_fraction=0.04)
  c.eval.segment_len = 256
