"""Where the text of a row ends."""

import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from txl_jax import models
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.data.vocabularies.words import Words
from txl_jax.generation import decoding, text_writer
from txl_jax.generation.generate_config import Generate
from txl_jax.generation.text_writer import Row, Writer

BYTES = Bytes.all_bytes()


def by_hand(text, stops):
  """The text before the stop that is complete first, and whether there is."""
  for end in range(len(text) + 1):
    starts = [end - len(s) for s in stops if text[:end].endswith(s)]
    if starts:
      return text[: min(starts)], True
  return text, False


def pushed(row, pieces):
  out = [row.push(piece) for piece in pieces]
  return [*out, row.rest()]


bits = st.binary(max_size=20).map(lambda x: bytes(97 + b % 3 for b in x))


@hypothesis.settings(
  max_examples=200, deadline=None, derandomize=True, database=None
)
@hypothesis.given(bits, st.lists(bits.filter(len), max_size=3), st.data())
def test_a_text_in_any_pieces(text, stops, data):
  stops = [s[:4] for s in stops]
  cut = data.draw(st.integers(0, len(text)))
  row = Row(BYTES, stops)
  parts = pushed(row, [text[:cut], text[cut:]])
  expected, ended = by_hand(text, stops)
  assert (b''.join(parts), row.is_done) == (expected, ended)
  assert row.num_emitted == len(expected)  # a token is a byte


def test_words_are_kept_whole():
  vocabulary = Words(('a', 'b', 'bc', '.'), (), '')
  row = Row(vocabulary, [b'c'], [0])
  assert row.text == b'a'
  assert row.push([1, 3, 2, 0]) == b' b. b'
  assert row.is_done and row.num_emitted == 2
  assert row.partial == b' b'  # of the third token
  assert row.rest() == b''


def test_the_part_of_a_token_that_is_emitted():
  names = dict(enumerate(['x', 'y', 'abcd', ' ']))
  row = Row(Ids.of_names(names, 4), [b'zzz'])
  parts = [(row.push([i]), row.partial) for i in (0, 1, 2, 3, 3, 3)]
  assert parts[:2] == [(b'', b'')] * 2
  assert parts[2:4] == [(b'xyab', b'ab'), (b'c', b'abc')]
  assert parts[4:] == [(b'd', b''), (b' ', b'')]


@pytest.mark.parametrize(
  'stops, text, done',
  [
    ([b'12'], b'7 123 ', True),
    ([b'3'], b'7 123 12 5 13 ', False),
    ([b'12 5'], b'7 123 ', True),
    ([b'2', b'3 12 5 134'], b'7 123 12 5 13', False),
    ([b'7'], b'', True),
  ],
)
def test_ids_are_kept_whole(stops, text, done):
  row = Row(Ids.of_names({}, 128).of_documents(), stops)
  parts = pushed(row, [[i] for i in (7, 123, 12, 5, 13, 128)])
  assert (b''.join(parts).strip(), row.is_done) == (text.strip(), done)
  assert row.ids().tolist() == [*map(int, text.split())]


@pytest.mark.parametrize('stops', [[], [b'zz']])
def test_what_is_held(stops):
  row = Row(BYTES, stops)
  assert row.push(b'abc') == (b'ab' if stops else b'abc')
  assert row.push(b'z') == (b'c' if stops else b'z')
  assert row.rest() == (b'z' if stops else b'')
  assert row.num_emitted == 4 and not row.is_done


WORDS = Words(('<unk>', '<eos>', 'a'), (), '<eos>', '<unk>')
LINE = dict(stop='line', forbid_unk=True)


@pytest.mark.parametrize(
  'vocabulary, asked, ends, forbidden',
  [
    (BYTES, LINE, (10,), ()),
    (BYTES.of_documents(), LINE, (10, 256), ()),
    (WORDS, {}, (), ()),
    (WORDS, LINE, (1,), (0,)),
  ],
)
def test_options_of_a_model(vocabulary, asked, ends, forbidden, monkeypatch):
  windows, model = [], types.SimpleNamespace(remembers=lambda: False)
  at_test_time = lambda *given: windows.append(given[3]) or model
  monkeypatch.setattr(models, 'at_test_time', at_test_time)
  train = types.SimpleNamespace(context=3, segment_len=5)
  config = types.SimpleNamespace(generate=Generate(**asked), train=train)
  found = text_writer.make(config, 'weights', vocabulary, lambda *given: given)
  assert found.variables == (model, 'weights') and windows == [0, 8]
  assert found.options['ends'] == ends
  assert found.options['sampling'].forbidden == forbidden


def test_what_a_prompt_starts_with():
  def started(vocabulary):
    start = Writer(None, None, vocabulary, 8, {}).with_start
    return [start(np.array(x, np.int32)).tolist() for x in ([5], [])]

  assert started(BYTES) == [[5], [10]]
  assert started(BYTES.of_documents()) == [[256, 5], [256]]


def test_no_token_is_drawn_after_every_row_has_ended(monkeypatch):
  drawn = []

  def decode(*_, **__):
    for column in zip(b'ab.d', b'e.gh'):
      drawn.append(column)
      yield np.array(column)[:, None], None

  monkeypatch.setattr(decoding, 'prefill', lambda *_, **__: None)
  monkeypatch.setattr(decoding, 'repeat_rows', lambda *_: None)
  monkeypatch.setattr(decoding, 'decode', decode)
  writer = Writer(None, None, BYTES, 8, {})
  prompts = [np.array([1]), np.array([2])]
  pieces = zip(*writer.stream(writer.make_rows(prompts, stops=[b'.']), 1))
  assert [b''.join(row) for row in pieces] == [b'ab', b'e']
  assert len(drawn) == 3
