"""Values of a config that are allowed, but not together."""

import pytest

from tests.modes.changes import changed, refused
from txl_jax.configs import common
from txl_jax.experiment import sections


@pytest.mark.parametrize(
  'key, value, allowed',
  [
    (
      'model.cutoffs',
      (5, 5),
      'whole numbers above 0, each above the one before',
    ),
    (
      'model.cutoffs',
      (0, 5),
      'whole numbers above 0, each above the one before',
    ),
    ('model.cutoffs', (5, 7.5), 'whole numbers above 0, each above the one'),
    ('model.cutoffs', (7, 5), 'whole numbers above 0, each above the one'),
    ('model.tie_projs', (True,), '(), or 3 values that are True or False'),
    (
      'model.tie_projs',
      (True, [True], 1),
      '(), or 3 values that are True or False',
    ),
    ('model.div_val', 3, 'numbers with div_val^2 a divisor of 512'),
  ],
)
def test_adaptive_softmax(key, value, allowed):
  good = dict(cutoffs=(5, 7), tie_projs=(False, True, True), div_val=4)
  config = changed(**{f'model__{k}': v for k, v in good.items()})
  sections.read(config)
  config[key.split('.')[0]][key.split('.')[1]] = value
  assert refused(config).startswith(f'{key} is {value!r}; allowed: {allowed}')


def test_an_evaluation_of_one_token():
  sections.read(changed(train__eval_tokens=2))
  assert refused(changed(train__eval_tokens=1)) == (
    'train.eval_tokens is 1; allowed: 0, or at least 2'
  )


def test_an_average_that_never_starts():
  steps = common.get_config().train.steps
  for start in 1, steps - 1:
    sections.read(changed(optim__average='swa', optim__average_start=start))
  sections.read(changed(optim__average='nt', optim__average_start=steps))
  for start in 0, steps:
    wrong = changed(optim__average='swa', optim__average_start=start)
    assert refused(wrong).startswith(
      f'optim.average_start is {start}; allowed: from 1 to '
    )


@pytest.mark.parametrize(
  'average, start, epoch, epochs, allowed',
  [
    ('ema', 0, 2, 0, '0 without average swa'),
    ('swa', 5, 2, 0, '0 with optim.average_start'),
    ('swa', 0, 2, 2, 'below train.epochs, 2'),
    ('swa', 0, 2, 3, ''),
    ('swa', 0, 2, 0, ''),
  ],
)
def test_an_average_from_an_epoch_on(average, start, epoch, epochs, allowed):
  own = dict(optim__average_start=start, optim__average_start_epoch=epoch)
  c = changed(optim__average=average, train__epochs=epochs, **own)
  if not allowed:
    sections.read(c)
    return
  expected = f'optim.average_start_epoch is {epoch}; allowed: {allowed}'
  assert refused(c) == expected


def test_a_context_or_a_window():
  sections.read(changed(eval__context=3))
  assert refused(changed(eval__context=3, eval__window=4)) == (
    'eval.context is 3; allowed: 0 with eval.window'
  )


def test_a_rate_by_lengths_that_do_not_vary():
  sections.read(changed(train__varlen_rate=True, train__varlen=True))
  assert refused(changed(train__varlen_rate=True)) == (
    'train.varlen_rate is True; allowed: False without train.varlen'
  )


def test_the_step_of_a_drop():
  steps = common.get_config().train.steps
  for at in 1, steps - 1:
    sections.read(changed(optim__schedule='drop', optim__drop_at=at))
  sections.read(changed(optim__schedule='constant', optim__drop_at=steps))
  for at in 0, steps:
    wrong = changed(optim__schedule='drop', optim__drop_at=at)
    assert refused(wrong) == (
      f'optim.drop_at is {at}; allowed: from 1 to {steps - 1} with '
      'schedule drop'
    )


@pytest.mark.parametrize(
  'good, wrong, said',
  [
    (
      dict(optim__lr=1e-3, optim__lr_floor=0.5, optim__lr_table=5e-4),
      dict(optim__lr_table=4e-4),
      'optim.lr_table is 0.0004; allowed: 0, or at least lr x lr_floor, 0.0005',
    ),
    (
      dict(optim__warmup=7, optim__cosine_end=8),
      dict(optim__cosine_end=7),
      'optim.cosine_end is 7; allowed: 0, or above the 7 steps of warm-up',
    ),
    (
      dict(train__steps=14, optim__warmup_fraction=0.5, optim__cosine_end=8),
      dict(optim__cosine_end=7),
      'optim.cosine_end is 7; allowed: 0, or above the 7 steps of warm-up',
    ),
    (
      dict(model__tie_positions=True),
      dict(model__untie_biases=True),
      'model.untie_biases is True; allowed: False with model.tie_positions',
    ),
  ],
)
def test_keys_of_one_section(good, wrong, said):
  sections.read(changed(**good))
  assert refused(changed(**good | wrong)) == said


def test_a_trace_without_steps():
  sections.read(changed(profile__start=5, profile__stop=6))
  sections.read(changed(profile__start=5, profile__stop=0))
  message = refused(changed(profile__start=5, profile__stop=5))
  assert message == 'profile.stop is 5; allowed: 0, or above profile.start, 5'


def test_two_prompts():
  config = changed(generate__prompt='a', generate__prompt_file='b')
  assert refused(config).startswith("generate.prompt_file is 'b'; allowed: ")
