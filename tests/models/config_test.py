"""Keys of models that do not go together."""

import pytest

from txl_jax.models.config import Config

TWO = dict(cutoffs=(5, 9))
CUTOFFS = {'cutoffs': 'whole numbers above 0, each above the one before'}
TIES = {'tie_projs': '(), or 3 values that are True or False'}
DIVISOR = {'div_val': 'numbers with div_val^2 a divisor of 48'}
CASES = [
  *((dict(cutoffs=x), {}) for x in ((), (1,), (5, 6), (5, 9, 10**9))),
  *((dict(cutoffs=x), CUTOFFS) for x in ((0,), (5, 5), (9, 5), (5, 9.0))),
  *((dict(TWO, tie_projs=x), {}) for x in ((), (True, False, True))),
  *(
    (dict(TWO, tie_projs=x), TIES)
    for x in ((True,), (True,) * 4, (1, 0, 1), (True, 0, 1))
  ),
  (dict(TWO, d_model=48, div_val=4), {}),
  (dict(TWO, d_model=48, div_val=3), DIVISOR),
  (dict(TWO, d_model=9, d_embed=48, div_val=3), DIVISOR),
  (dict(d_model=48, div_val=5, tie_projs=(True,)), {}),
]


@pytest.mark.parametrize('keys, problems', CASES)
def test_keys_that_do_not_go_together(keys, problems):
  assert dict(Config(**keys).problems()) == problems
