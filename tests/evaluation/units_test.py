import math

import pytest

from txl_jax.evaluation import units


def test_figures():
  # A uniform guess among 8 is 3 bits, or a perplexity of 8.
  nats = math.log(8)
  assert units.to_units(nats, 'bpc') == pytest.approx(dict(nats=nats, bpc=3))
  assert units.to_units(nats, 'ppl') == pytest.approx(dict(nats=nats, ppl=8))


def test_perplexity_does_not_overflow():
  ppl = units.to_units(1e6, 'ppl')['ppl']
  assert ppl > 1e300 and math.isfinite(ppl)
