"""The ablations of Dai et al. 2019 (arXiv 1901.02860) on WikiText-103.

  python -m txl_jax.prepare --dataset=wt103
  python -m txl_jax.main --config=wt103_128m
  python -m txl_jax.main --config=wt103_128m:shaw

Published (Table 6, validation perplexity at the training attention length, at
the best one, and that length), 128M parameters, here 127,896,282 for `xl`:

  xl                       27.02  26.77  500
  shaw                     27.94  27.94  256
  xl_half                  28.69  28.33  460
  xl_no_recurrence         29.59  29.02  260
  xl_no_recurrence_half    30.10  30.10  120
  shaw_no_recurrence       29.75  29.75  120
  shaw_no_recurrence_half  30.50  30.50  120
  vaswani_half             30.97  30.97  120
  al_rfou_half             31.16  31.16  120

and with the device memory of `xl` (Table 10) spent on longer segments instead:

  xl_no_recurrence_176          28.43  27.98  400
  xl_no_recurrence_half_172     28.83  28.83  120

These are the 128M models of Table 8. --mode=attention_length measures such a
row, --mode=recl Table 8.
Hardware: compiled for one GPU in bfloat16 (docs/scaling.md), a step takes 4.3
GiB, which fits a card of 24 GB; not timed here.
Never published: the widths and the batch. 12 layers, D 384, 8 heads of 48 and F
1728 are our choice, which gives the 128M parameters; everything else is as in
wt103_base, except segments of 128.
"""

from txl_jax.configs import common, wt103_base

# The best attention length at test time, as published.
VARIANTS = {
  'xl': 500,
  'shaw': 256,
  'xl_half': 460,
  'xl_no_recurrence': 260,
  'xl_no_recurrence_half': 120,
  'shaw_no_recurrence': 120,
  'shaw_no_recurrence_half': 120,
  'vaswani_half': 120,
  'al_rfou_half': 120,
  'xl_no_recurrence_176': 400,
  'xl_no_recurrence_half_172': 120,
}


def get_config(variant='xl'):
  """The config of a variant."""
  common.check_variant(variant, VARIANTS)
  c = wt103_base.get_config()
  c.model.n_layer = 12
  c.model.d_model = 384
  c.model.n_head = 8
  c.model.d_head = 48
  c.model.d_ff = 1728
  c.model.mem_len = 128
  c.train.segment_len = 128
  longest = VARIANTS[variant]
  lengths = {64, 128, 256, 512, longest}
  c.attention_length.update(lengths=tuple(sorted(lengths)), tokens=0)
  c.eval.split = 'validation'
  c.eval.segment_len = 128
  c.generate.segment_len = 128
  common.at_test_time(c, mem_len=longest, clamp_len=None, same_length='M')
  c = common.ablate(c, variant)
  if not c.model.get('mem_len'):
    c.eval.window = c.generate.window = longest
  return c
