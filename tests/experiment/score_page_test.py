"""Pages of scored texts: what they show, of every vocabulary, in a browser."""

import dataclasses
import html.parser
import math
import re
import shutil

import numpy as np
import pytest

import txl_jax
from tests.modes import runs
from txl_jax.data.vocabularies import Bytes, Ids, Subwords, Words
from txl_jax.experiment import results, score_page
from txl_jax.modes import score as score_mode
from txl_jax.program.errors import UserError

BYTES = Bytes.all_bytes()
TEXT = 'a <b>&amp;"\n\t é'


class Page(html.parser.HTMLParser):
  """The parts of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.tokens, self.hovers, self.colours = [], [], [], []
    self.between, self._open = '', []
    self.feed(text)
    self.close()
    assert self._open in ([], ['html'])

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    if tag not in ('meta', 'br'):
      self._open.append(tag)
    if tag == 'span':
      self.tokens.append('')
      self.hovers.append(dict(attrs).get('data-top'))
      self.colours.append((dict(attrs).get('style') or '')[-7:])

  def handle_endtag(self, tag):
    assert self._open.pop() == tag

  def handle_data(self, data):
    if self._open[-1:] == ['span']:
      self.tokens[-1] += data
    elif self._open[-1:] == ['pre']:
      self.between += data


def scored(vocabulary, ids, bits, top=(), unscored=()):
  """A Score with one list of (id, probability) for all tokens."""
  nll = np.array(bits, np.float32) * np.float32(math.log(2))
  n = len(ids)
  return results.Score(
    ids=np.array(ids, np.int32),
    offsets=np.zeros([n, 2], np.int64),
    nll=nll,
    total=float(nll.sum()),
    text_bytes=n,
    at_temperature=None,
    top_ids=np.tile(np.int32([i for i, _ in top]), (n, 1)),
    top_logprobs=np.log(np.tile(np.float32([p for _, p in top]), (n, 1))),
    unscored=np.array(unscored, np.int32),
    vocabulary=vocabulary,
  )


def of_bytes():
  """TEXT, from 0 to 10 bits, with three likely tokens."""
  ids = [*TEXT.encode()]
  bits = np.linspace(0, 10, len(ids) - 1)
  top = (ord('<'), 0.5), (ord(' '), 0.25), (10, 0.001)
  return scored(BYTES, ids[1:], bits, top, ids[:1])


def test_a_page_of_bytes():
  text = score_page.page(of_bytes(), 'x < y')
  assert text.startswith('<!DOCTYPE html>')
  assert '<title>x &lt; y</title>' in text
  assert not re.search(r'<script|<link|src=|url\(|@import|https?:', text)
  page = Page(text)
  assert {*page.tags} == {
    *('meta', 'title', 'style', 'div', 'strong', 'br', 'i', 'pre', 'span')
  }
  assert page.tokens == [*'a <b>&amp;"', '↵\n', r'\t', ' ', r'\xc3', r'\xa9']
  assert page.between == '' and page.hovers[0] is None
  rows = '\n    50%  <\n    25%  ␣\n   0.1%  ↵'
  assert page.hovers[1] == f'0.00 bits, 100%{rows}'
  bits = 10 / (len(page.tokens) - 2)
  assert page.hovers[2] == f'{bits:.2f} bits, {100 * 2**-bits:.3g}%{rows}'


def test_colours_go_from_white_to_red():
  page = Page(score_page.part(scored(BYTES, [65] * 5, [0, 2, 4, 8, 11]), ''))
  assert page.colours == ['#ffffff', '#ffeab2', '#ffd666', *['#e8524a'] * 2]


def test_names_of_words_ids_and_subwords():
  words = Words.from_counts(
    {'<eos>': 3, '<unk>': 2, 'a': 2, '@-@': 1, 'b\udcff': 1},
    eos='<eos>',
    unk='<unk>',
  )
  page = Page(score_page.part(scored(words, [2, 0, 1, 3, 4], [1] * 5), ''))
  assert page.tokens == ['a', '↵\n', '<unk>', '-', r'b\xff']
  assert page.between == ' ' * 4  # none after the newline
  ids = Ids.of_names({0: 'C4', 1: 'rest'}, 3)
  page = Page(score_page.part(scored(ids, [1, 0, 2], [1] * 3), ''))
  assert (page.tokens, page.between) == (['rest', 'C4', '2'], '   ')
  page = Page(score_page.part(scored(ids.of_documents(), [1, 3], [1, 1]), ''))
  assert page.tokens == ['rest', '<eos>']
  parts = Subwords((b' \xc3', b'\n\n', b' the', '\u202e'.encode()))
  page = Page(score_page.part(scored(parts, [0, 1, 2, 3], [1] * 4), ''))
  assert page.tokens == [r' \xc3', '↵\n↵\n', ' the', r'\u202e']
  assert page.between == ''


def test_a_notebook_shows_the_first_tokens():
  score = scored(BYTES, [65] * 10_001, [1] * 10_001)
  shown = score._repr_html_()
  assert '<!DOCTYPE' not in shown and repr(score) in shown
  figures = '1.00000 bits per token, perplexity 2.00000'
  assert repr(score) == f'Score(10,001 tokens, {figures})'
  longer = dataclasses.replace(score, text_bytes=4 * 10_001)
  assert round(longer.bits_per_byte, 5) == 0.25
  assert score in {score, longer} and score != longer
  for kind in results.Hidden, results.Attention:
    x = kind(score.ids, score.offsets, score.nll)
    assert x in {x} and x != dataclasses.replace(x)
  page = Page(shown)
  assert page.tokens == ['A'] * 10_000 and page.between == '…'
  assert page.hovers[0] == '1.00 bits, 50%'
  assert len(Page(score_page.page(score, '')).tokens) == 10_001


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('runs') / 'my_run'
  folder.mkdir()
  runs.write(folder, vocabulary=BYTES, segment_len=6, init_std=0.7)
  return folder


@pytest.mark.thorough
@pytest.mark.parametrize('name', ['a.html', 'b.HTML', 'z.jsonl'])
def test_the_mode_writes_a_page(folder, tmp_path, name, capsys):
  (tmp_path / 'text').write_text(TEXT)
  file = tmp_path / name
  job = runs.job(runs.config(), folder)
  score = score_mode.run(
    dataclasses.replace(job, text=f'{tmp_path}/text', score_file=f'{file}')
  )
  text = file.read_text()
  if name == 'z.jsonl':
    assert text.startswith('{"start"') and score.top_ids.shape[1] == 0
    return
  figures = re.search(r': (\S+ bpc \(\S+ nats\))', capsys.readouterr().out)
  assert figures and f'<title>my_run: {figures[1]}</title>' in text
  page = Page(text)
  assert page.tokens == [*'a <b>&amp;"', '↵\n', r'\t', ' ', r'\xc3', r'\xa9']
  for hover, nll in zip(page.hovers[1:], score.nll, strict=True):
    first, *rows = hover.split('\n')
    assert first.startswith(f'{nll / math.log(2):.2f} bits, ')
    shares = [float(x.split('%')[0]) for x in rows]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)


def test_in_a_browser(tmp_path):
  """The page looks as it should in Chromium, wherever there is one."""
  api = pytest.importorskip('playwright.sync_api')
  chromium = shutil.which('chromium') or shutil.which('google-chrome')
  if not chromium:
    pytest.skip('needs chromium')
  file = tmp_path / 'a.html'
  file.write_text(score_page.page(of_bytes(), 'a run'), encoding='utf-8')
  with api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=chromium, args=['--no-sandbox']
    )
    page = browser.new_page(viewport={'width': 900, 'height': 600})
    requests = []
    page.on('request', lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    assert page.title() == 'a run' and len(requests) == 1
    text = page.locator('pre').inner_text()
    assert text == 'a <b>&amp;"↵\n\\t \\xc3\\xa9'
    tokens = page.locator('span')
    style = 'e => getComputedStyle(e, %s).%s'
    colour = style % ('null', 'backgroundColor')
    assert tokens.nth(1).evaluate(colour) == 'rgb(255, 255, 255)'
    assert tokens.last.evaluate(colour) == 'rgb(232, 82, 74)'
    content = style % ('"::after"', 'content')
    assert tokens.last.evaluate(content) == 'none'
    tokens.last.hover()
    hover = tokens.last.evaluate(content)
    assert 'bits' in hover and '50%' in hover and '␣' in hover
    tops = [tokens.nth(i).bounding_box()['y'] for i in (0, 11, 12, 14)]
    assert tops[0] == tops[1] < tops[2] == tops[3]
    browser.close()


TXL = dict(segment_len=4, mem_len=5)
PLAIN = dict(mem_len=0)
OPTIONS = [
  ({}, {}),
  ({}, dict(**TXL, batch_size=3)),
  (PLAIN, dict(segment_len=4, context=3)),
  (PLAIN, dict(window=4)),
  (dict(cutoffs=(50, 120), div_val=2, d_embed=8), TXL),
]


@pytest.mark.thorough
@pytest.mark.parametrize('model, options', OPTIONS)
def test_the_top_is_that_of_the_scored_distribution(tmp_path, model, options):
  """All V of them are a distribution, with the nll of the target."""
  runs.write(tmp_path, vocabulary=BYTES, segment_len=6, init_std=0.7, **model)
  run, text = txl_jax.load(tmp_path), 'Of bytes: é, 𝄞\n and more.' * 2
  plain = run.score(text, **options)
  assert plain.top_ids.shape == plain.top_logprobs.shape == (len(plain.ids), 0)
  every = run.score(text, top=300, **options)
  np.testing.assert_array_equal(every.nll, plain.nll)
  assert every.total == plain.total
  assert (np.sort(every.top_ids, axis=1) == np.arange(256)).all()
  target = every.top_ids == every.ids[:, None]
  np.testing.assert_allclose(
    -every.top_logprobs[target], every.nll, rtol=1e-5, atol=1e-5
  )
  sums = np.exp(np.float64(every.top_logprobs)).sum(axis=1)
  np.testing.assert_allclose(sums, 1, rtol=1e-5)
  five = run.score(text, top=np.int64(5), **options)
  assert five.top_ids.dtype == np.int32
  assert five.top_logprobs.dtype == np.float32
  np.testing.assert_array_equal(five.top_ids, every.top_ids[:, :5])
  assert (np.diff(five.top_logprobs) <= 0).all()


@pytest.mark.thorough
def test_a_top_that_is_no_number(folder):
  run = txl_jax.load(folder)
  for top in -1, True, 1.0, '5':
    with pytest.raises(UserError, match=f'^top is {top!r}; allowed: a whole n'):
      run.score(TEXT, top=top)
  score = run.score(TEXT, top=2, temperature=1.5)
  assert score.top_ids.shape == (len(score.nll), 2)
  assert score.at_temperature.top_ids.shape == (len(score.nll), 0)
