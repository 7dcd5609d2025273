"""What the evaluation programs share."""

import math

import pytest

from tests.modes import runs
from txl_jax.experiment import analysis
from txl_jax.program.errors import UserError


def test_a_figure_that_is_not_finite(tmp_path):
  """As of weights that have diverged: told in a line, and nothing written."""
  job = runs.job(runs.config(), tmp_path)
  record = {'program': 'eval_test', 'nats': math.nan}
  with pytest.raises(UserError, match=r'eval_test\.json: not written'):
    analysis.report(job, record, ['test: nan'])
  assert not list(tmp_path.iterdir())
