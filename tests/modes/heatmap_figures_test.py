"""The page of a heat map: read as a browser reads it."""

import html.parser
import math

import numpy as np
import pytest

from txl_jax.data.vocabularies.byte_values import Vocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.modes import heatmap


class Reader(html.parser.HTMLParser):
  """Spans of the text as (class, title, text), and every attribute's name."""

  def __init__(self):
    super().__init__()
    self.spans, self.names, self.tags, self._inside = [], set(), set(), False

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.tags.add(tag)
    self.names |= attrs.keys()
    self._inside |= attrs.get('class') == 'text'
    if tag == 'span' and self._inside:
      self.spans.append((attrs['class'], attrs.get('title'), ''))

  def handle_data(self, data):
    if self._inside and self.spans:
      first, title, text = self.spans[-1]
      self.spans[-1] = first, title, text + data


def read(page):
  reader = Reader()
  reader.feed(page)
  return reader


def test_every_token_is_there_escaped_with_its_nll():
  tokens = ['<script>', '&amp;', '"', "'", 'é', '↵\n', ' ', '\\xff']
  nll = np.array([np.nan, 0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0])
  page = heatmap.page('<b>', 'a & b', tokens, nll)
  found = read(page)
  assert ''.join(text for *_, text in found.spans).strip() == ''.join(tokens)
  assert not found.tags & {'script', 'link', 'img', 'iframe', 'b'}
  assert found.names == {'lang', 'charset', 'class', 'title'}
  assert 'http' not in page and 'url(' not in page and '@import' not in page
  assert found.spans[0][:2] == ('none', None)
  levels = [int(name[1:]) for name, *_ in found.spans[1:]]
  assert levels == sorted(levels) and levels[0] == 0 and levels[-1] == 12
  assert all(name[0] == 'u' for name, *_ in found.spans[1:])
  for (_, title, _), x in zip(found.spans[1:], nll[1:]):
    assert f'{x:.3f} nats, p = {math.exp(-x):.3g}' in title


def test_a_difference_goes_both_ways():
  nll, other = np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0])
  spans = read(heatmap.page('', '', 'abc', nll, other)).spans
  assert [name for name, *_ in spans] == ['u12', 'd12', 'u0']
  assert 'other 3.000 nats' in spans[1][1]


def test_bytes():
  """Of é two tokens are one character; 0xff and half an é are none.

  That the é does not go on is known at the next token.
  """
  data = 'aé\n€'.encode() + b'\xff\xc3 \x07'
  found = heatmap.shown(Vocabulary.all_bytes(), list(data))
  thin = '\u2009'
  assert found == [
    'a', thin, 'é', '↵\n', thin, thin, '€', '\\xff', thin, '\\xc3 ', '\\x07',
  ]  # fmt: skip


def test_every_byte_gives_text_that_can_be_written():
  rng = np.random.default_rng(0)
  for _ in range(50):
    data = rng.integers(0, 256, 40).tolist()
    found = heatmap.shown(Vocabulary.all_bytes(), data)
    assert len(found) == 40 and all(found)
    ''.join(found).encode()


def test_words():
  odd = b'caf\xe9'.decode('utf-8', 'surrogateescape')
  words = Words(('<eos>', 'a', odd, '\u202eb'), eos='<eos>')
  assert heatmap.shown(words, [1, 2, 3, 0]) == [
    'a ', 'caf\\xe9 ', '\\xe2\\x80\\xaeb ', '<eos>\n',
  ]  # fmt: skip


@pytest.mark.parametrize('nll', [[np.nan], [0.0, 0.0]])
def test_nothing_to_tell_apart(nll):
  page = heatmap.page('', '', 'ab'[: len(nll)], np.array(nll))
  assert len(read(page).spans) == len(nll)
