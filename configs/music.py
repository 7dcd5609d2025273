r"""Four-part chorales as token ids, on a CPU in minutes.

  python examples/music.py prepare
  python -m txl_jax.main --config=music

Not from the paper. A sixteenth is four tokens, soprano to bass; a segment is
two bars, and the memory the four bars before it. Every chorale starts with an
empty memory. docs/music.md has the expected figures and the effect of the
memory.
"""

from txl_jax.configs import own_text


def get_config():
  """The config of chorales made by examples/music.py."""
  c = own_text.get_config('ids')
  c.data.update(path='chorales', field='ids', documents='record')
  c.data.vocab_size = 256  # pitches, and held pitches
  c.model.mem_len = 256
  c.train.update(steps=2000, batch_size=8, segment_len=128, eval_tokens=0)
  c.optim.warmup_fraction = 0.1
  c.train.sample_tokens = 0  # samples would be printed as ids
  c.eval.segment_len = c.generate.segment_len = 128
  return c
