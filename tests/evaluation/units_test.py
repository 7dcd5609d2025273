import math

import numpy as np
import pytest

from txl_jax.data.vocabularies import Bytes, Ids, Words
from txl_jax.evaluation import units


def test_figures():
  # A uniform guess among 8 is 3 bits, or a perplexity of 8.
  nats = math.log(8)
  assert units.to_units(nats, 'bpc') == pytest.approx(dict(nats=nats, bpc=3))
  assert units.to_units(nats, 'ppl') == pytest.approx(dict(nats=nats, ppl=8))


@pytest.mark.parametrize(
  'vocabulary, ids, expected, text',
  [
    (Words(('a', 'b')), [0, 1], {}, ''),
    (Bytes((97, 256)), [0, 0, 1], {'bpb': 6.0}, '6.00000 bits per byte, '),
    (Bytes((97, 256)), [1], {}, ''),
    (Ids.of_names({}, 3), [2, 1, 0, 0, 0], {'bpt': 2.4}, '2.40000 bits per t'),
    (
      Ids.of_names({0: 'a', 1: ' bcd'}, 2),
      [0, 1],
      {'bpt': 6.0, 'bpb': 2.4},
      '6.00000 bits per token, 2.40000 bits per byte, ',
    ),
    # One name for each value.
    (Ids.of_names({0: 'a', 1: 'b'}, 2), [1, 0, 0], None, '4.00000 bits per by'),
  ],
)
def test_bits_of_tokens_and_bytes(vocabulary, ids, expected, text):
  found = units.bits(12 * math.log(2), np.array(ids), vocabulary)
  if expected is not None:
    assert found == pytest.approx(expected)
  shown = units.bits_text({name: round(x, 9) for name, x in found.items()})
  assert shown.startswith(text) and bool(shown) == bool(text)


def test_perplexity_does_not_overflow():
  assert units.to_units(1e6, 'ppl')['ppl'] == math.exp(700)
