"""Which checkpoint a mode reads, and how much of the others."""

import jax.numpy as jnp
import pytest

from tests.modes import runs
from tests.refusing import refused
from tests.runs.checkpoint.saves import flip
from txl_jax.experiment import saved_model
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, checkpoint_folder


@pytest.fixture
def kept(tmp_path):
  """Steps 1, 2 and 3, of which 1 is the best."""
  checkpoints = checkpoint.Checkpoints(tmp_path / 'checkpoints')
  for step in 1, 2, 3:
    host = runs.host({}, best_step=1)
    checkpoints.save(step, host, (1,), params={'x': jnp.ones(9)})
  return checkpoint.Checkpoints(checkpoints.folder)


def damage(checkpoints, step):
  flip(max((checkpoints.folder / f'{step}/params').rglob('d/*')), 0)


@pytest.mark.default_cases('best-damaged4-3-read4')
@pytest.mark.parametrize(
  'which, damaged, step, read',
  [
    ('best', [], 1, {1}),
    ('latest', [], 3, {3}),
    ('2', [], 2, {2}),
    ('best', [3], 1, {1}),  # though the newest says which is the best
    ('best', [1], 3, {1, 3}),
    ('best', [1, 3], 2, {1, 3, 2}),
    ('latest', [3], 2, {3, 2}),
  ],
)
def test_only_what_is_used_is_verified(
  kept, monkeypatch, capfd, which, damaged, step, read
):
  for other in damaged:
    damage(kept, other)
  seen, fingerprint = set(), checkpoint_folder.fingerprint

  def note(path):
    number, item, *_ = path.relative_to(kept.folder).parts
    if item != 'host':
      seen.add(int(number))
    return fingerprint(path)

  monkeypatch.setattr(checkpoint_folder, 'fingerprint', note)
  assert saved_model.choose(kept, which) == step
  assert seen == read
  err = capfd.readouterr().err
  gone = f'the best checkpoint, 1, is gone; using {step}'
  assert (gone in err) == (which == 'best' and 1 in damaged)
  assert (gone in err) == ('is gone' in err)
  for other in read - {step}:
    assert err.count(f'checkpoint {other} is damaged') == 1


@pytest.mark.parametrize('which', ['2', '4'])
def test_a_step_that_cannot_be_used(kept, which):
  damage(kept, 2)
  message = refused(saved_model.choose, kept, which)
  allowed = 'best, latest or one of [3, 2, 1]'
  assert message == f"checkpoint is '{which}'; allowed: {allowed}"


def test_no_step_can_be_used(kept, tmp_path):
  for step in 1, 2, 3:
    damage(kept, step)
  for which in 'best', 'latest':
    with pytest.raises(
      UserError, match=r'usable checkpoint; found: \[3, 2, 1\]'
    ):
      saved_model.choose(kept, which)
    none = checkpoint.Checkpoints(tmp_path / 'none')
    with pytest.raises(UserError, match='holds no run; train one first'):
      saved_model.choose(none, which)
