r"""Transformer-XL and variants with a longer context, half an hour on a CPU.

  python -m txl_jax.main --config=long_context --config.data.path=source.txt
  python -m txl_jax.main --config=long_context:xl_no_recurrence \
    --config.data.path=source.txt

Not from the paper: counterparts of its Tables 6 and 8 with 6.2M parameters,
segments and a memory of 128 subwords, and the same tokens for all, for a text
with long-range dependencies, such as source code. docs/results.md has the text,
the figures and a discussion.
"""

from txl_jax.configs import common, own_text

VARIANTS = 'xl', 'xl_no_recurrence', 'vaswani_memory'


def get_config(variant='xl'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  c = own_text.get_config('subwords')
  c.model.update(n_layer=6, d_model=256, n_head=8, d_head=32, d_ff=1024)
  c.model.update(mem_len=128, dropout=0.0)
  c.train.update(steps=1000, batch_size=16, segment_len=128)
  c.train.update(eval_every=250, save_every=250, sample_tokens=0)
  c.optim.update(lr=2e-3, warmup=200)
  c.eval.segment_len = c.generate.segment_len = 128
  c.attention_length.lengths = (32, 64, 128, 192, 256, 384, 512, 768)
  c.attention_length.tokens = 50_000
  c.recl.step = 64
  c.recl.longest = 768
  c = common.ablate(c, variant)
  c.eval.window = 0  # a sliding window takes an hour for the whole split
  return c
