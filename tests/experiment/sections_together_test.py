"""Values of a config that are allowed, but not together."""

import pytest

from tests.modes.changes import changed, refused
from txl_jax.configs import common
from txl_jax.experiment import sections

STEPS = common.get_config().train.steps
BEFORE_THE_END = f'allowed: from 1 to {STEPS - 1} with'
ADAPTIVE = dict(
  model__cutoffs=(5, 7), model__tie_projs=(False, True, True), model__div_val=4
)
ASCENDING = 'allowed: whole numbers above 0, each above the one before'
CHOICES = 'allowed: (), or 3 values that are True or False'
SWA = dict(optim__average='swa')
FROM_EPOCH = SWA | dict(optim__average_start_epoch=2)
DROP = dict(optim__schedule='drop')
TABLE = dict(optim__lr=1e-3, optim__lr_floor=0.5)
FRACTION = dict(train__steps=14, optim__warmup_fraction=0.5)
WARMUP = 'optim.cosine_end is 7; allowed: 0, or above the 7 steps of warm-up'
LENGTHS = 'one or more whole numbers from 1 to 1000000'
SHARES = 'one or more numbers above 0, at most 1'
WINDOW = dict(eval__context=3, eval__window=4)

ALLOWED = [
  ADAPTIVE,
  dict(train__eval_tokens=2),
  SWA | dict(optim__average_start=1),
  SWA | dict(optim__average_start=STEPS - 1),
  dict(optim__average='nt', optim__average_start=STEPS),
  FROM_EPOCH | dict(train__epochs=3),
  FROM_EPOCH | dict(train__epochs=0),
  WINDOW | dict(eval__window=0),
  dict(train__varlen_rate=True, train__varlen=True),
  DROP | dict(optim__drop_at=1),
  DROP | dict(optim__drop_at=STEPS - 1),
  dict(optim__schedule='constant', optim__drop_at=STEPS),
  TABLE | dict(optim__lr_table=5e-4),
  dict(optim__warmup=7, optim__cosine_end=8),
  FRACTION | dict(optim__cosine_end=8),
  dict(model__tie_positions=True),
  dict(profile__start=5, profile__stop=6),
  dict(profile__start=5, profile__stop=0),
  dict(attention_length__lengths=(1, 10**6)),
  dict(recl__shares=(1e-30, 1), recl__others=('a',)),
  dict(recl__longest=2, recl__step=1),
]
REFUSED = [
  (ADAPTIVE | dict(model__cutoffs=x), f'model.cutoffs is {x!r}; {ASCENDING}')
  for x in ((5, 5), (0, 5), (5, 7.5), (7, 5))
]
REFUSED += [
  (ADAPTIVE | dict(model__tie_projs=x), f'model.tie_projs is {x!r}; {CHOICES}')
  for x in ((True,), (True, [True], 1))
]
REFUSED += [
  (SWA | dict(optim__average_start=at),
   f'optim.average_start is {at}; {BEFORE_THE_END} average swa')
  for at in (0, STEPS)
]  # fmt: skip
REFUSED += [
  (DROP | dict(optim__drop_at=at),
   f'optim.drop_at is {at}; {BEFORE_THE_END} schedule drop')
  for at in (0, STEPS)
]  # fmt: skip
REFUSED += [
  (FROM_EPOCH | values, f'optim.average_start_epoch is 2; allowed: {allowed}')
  for values, allowed in (
    (dict(optim__average='ema'), '0 without average swa'),
    (dict(optim__average_start=5), '0 with optim.average_start'),
    (dict(train__epochs=2), 'below train.epochs, 2'),
    (dict(train__epochs=1), 'below train.epochs, 1'),
  )
]
REFUSED += [
  (dict(attention_length__lengths=x),
   f'attention_length.lengths is {x!r}; allowed: {LENGTHS}')
  for x in ((), (0,), (5, 10**6 + 1))
]  # fmt: skip
REFUSED += [
  (dict(recl__shares=x), f'recl.shares is {x!r}; allowed: {SHARES}')
  for x in ((), (0.0,), (0.5, 1.001))
]
REFUSED += [
  (dict(recl__others=x), f'recl.others is {x!r}; allowed: folders')
  for x in (('',), ('a', 'a\0'))
]
REFUSED += [
  (dict(recl__step=501),
   'recl.step is 501; allowed: at most half of recl.longest, 500'),
  (dict(optim__warmup=7, optim__cosine_end=1), WARMUP.replace('7;', '1;')),
  (ADAPTIVE | dict(model__div_val=3),
   'model.div_val is 3; allowed: numbers with div_val^2 a divisor of 512'),
  (dict(train__eval_tokens=1),
   'train.eval_tokens is 1; allowed: 0, or at least 2'),
  (WINDOW, 'eval.context is 3; allowed: 0 with eval.window'),
  (dict(train__varlen_rate=True),
   'train.varlen_rate is True; allowed: False without train.varlen'),
  (TABLE | dict(optim__lr_table=4e-4),
   'optim.lr_table is 0.0004; allowed: 0, or at least lr x lr_floor, 0.0005'),
  (dict(optim__warmup=7, optim__cosine_end=7), WARMUP),
  (FRACTION | dict(optim__cosine_end=7), WARMUP),
  (dict(model__tie_positions=True, model__untie_biases=True),
   'model.untie_biases is True; allowed: False with model.tie_positions'),
  (dict(profile__start=5, profile__stop=5),
   'profile.stop is 5; allowed: 0, or above profile.start, 5'),
  (dict(generate__prompt='a', generate__prompt_file='b'),
   "generate.prompt_file is 'b'; allowed: '' with generate.prompt"),
  (dict(generate__prompt_tokens=5, generate__prompt_file='b'),
   'generate.prompt_tokens is 5; allowed: 0 with generate.prompt or '
   'generate.prompt_file'),
]  # fmt: skip


@pytest.mark.parametrize('values', ALLOWED)
def test_values_that_go_together(values):
  sections.read(changed(**values))


@pytest.mark.parametrize('values, said', REFUSED)
def test_values_that_do_not(values, said):
  assert refused(changed(**values)) == said
