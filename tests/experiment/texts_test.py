"""What is a text of a call, how it is scored, and with which options."""

import types

import numpy as np
import pytest

from tests.refusing import refused
from txl_jax.data.vocabularies import Bytes, Ids, Words
from txl_jax.experiment import call_options, sections, text_score, texts

BYTES = Bytes.all_bytes()


def test_token_ids():
  for value in [3], [np.int64(3), 'a'], (3, 4), np.array([3]), np.zeros(0):
    assert texts.is_ids(value)
  for value in '3', b'3', [], ['3', 4], [[3]], 3, np.int32(3), np.ones([1, 1]):
    assert not texts.is_ids(value)
  assert refused(texts.ids, BYTES, 'x', np.array(5)).startswith('x is int64 []')


@pytest.mark.parametrize(
  'vocabulary, first, text_bytes',
  [
    (BYTES, 'none', 6), (Words(('<eos>', 'a'), (), '<eos>'), 'eos', 9),
    (Ids.of_names({}, 2), 'none', 0), (Ids.of_names({0: 'a'}, 1), 'none', 6),
  ],
)  # fmt: skip
def test_a_score(monkeypatch, vocabulary, first, text_bytes):
  score_at = lambda t, *_, **more: types.SimpleNamespace(nll=t + more['top'])
  monkeypatch.setattr(text_score, 'scorer', lambda *_: score_at)
  arrays = np.zeros(2, np.int32), np.zeros([2, 2], int), np.array([3, 5])
  K, least = len(vocabulary), 1 if first == 'eos' else 2
  for t in 0.5, 1.0, 2.0:
    values = {'eval.temperature': t, 'eval.first_token': first}
    given = sections.changed(sections.defaults(), values), {}, vocabulary, None
    whole = texts.TokenisedText(*arrays, 9)
    found = text_score.score(*given, whole, print, top=999)
    assert (found.total, found.text_bytes) == (1 + K, text_bytes)
    assert found.top_ids.shape == (3 - least, K)
    warm = found.at_temperature
    assert (warm.total, warm.top_ids.size) == (t, 0) if warm else t == 1
  none = texts.TokenisedText(*(x[:0] for x in arrays), 0)
  message = refused(text_score.score, *given, none, print, top=0)
  assert message.endswith(f' of text is 0; allowed: at least {least}')


def test_options_of_a_call():
  for section, last in ('eval', 'clamp_len'), ('generate', 'samples, stop'):
    with pytest.raises(TypeError, match=f"no option 'x'; allowed: .*, {last}$"):
      call_options.changed(sections.defaults(), section, {'x': 1})
