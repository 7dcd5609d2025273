"""A run in Python, beside what the modes of the program do with it."""

import dataclasses
import gzip
import itertools
import json
import math
import pathlib
import re
from unittest import mock

import jax
import numpy as np
import pytest

import txl_jax
from tests import compilations, plain, promotions
from tests.modes import runs
from txl_jax import models
from txl_jax.api.text_model import TextModel
from txl_jax.convert import write_weights
from txl_jax.data.corpora import preparation
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words
from txl_jax.evaluation import activations, scoring
from txl_jax.experiment import job
from txl_jax.experiment.texts import UnknownWords
from txl_jax.models import base, inspection
from txl_jax.modes import evaluate, export, generate, score
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file

BYTES = Bytes.all_bytes()
# Words of the texts are <unk>, as tests/modes/word_runs_test.py looks into.
pytestmark = pytest.mark.filterwarnings(
  'ignore::txl_jax.experiment.texts.UnknownWords'
)
WORDS = Words.from_counts(
  {'<eos>': 9, '<unk>': 3, 'the': 8, 'memory': 7, '.': 4, "it's": 2},
  eos='<eos>',
  unk='<unk>',
)
LINES = 'the memory .\nthe old the\n\nmemory\n' * 3
TEXT = 'Of bytes: é, 𝄞\n and more, \tmuch more.\n' * 3


class Corpus(plain.Corpus):
  """A corpus whose every split is one text."""

  def __init__(self, vocabulary, text):
    self.vocabulary, self._text = vocabulary, text

  def tokens(self, split):
    del split
    return self.vocabulary.encode(self._text.encode(), 'it')


@pytest.fixture(
  scope='module',
  params=['bytes', pytest.param('words', marks=pytest.mark.slow)],
)
def made(request, tmp_path_factory):
  """A run that nobody has trained: its folder, text and model in Python."""
  folder = tmp_path_factory.mktemp('run')
  vocabulary, text = {'bytes': (BYTES, TEXT), 'words': (WORDS, LINES)}[
    request.param
  ]
  runs.write(folder, vocabulary=vocabulary, segment_len=6, init_std=0.7)
  return folder, vocabulary, text, txl_jax.load(folder)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
  """The run of bytes of a model without memory."""
  folder = tmp_path_factory.mktemp('plain')
  runs.write(folder, vocabulary=BYTES, segment_len=6, init_std=0.7, mem_len=0)
  return txl_jax.load(folder)


LENGTHS = dict(segment_len=4, mem_len=5)


@pytest.mark.default_cases('bytes-1-none', 'bytes-3-none', 'bytes-3-eos')
@pytest.mark.parametrize('first', ['none', 'eos'])
@pytest.mark.parametrize('batch_size', [1, 3])
def test_score_is_that_of_eval(made, monkeypatch, capsys, first, batch_size):
  folder, vocabulary, text, run = made
  if first == 'eos' and vocabulary is BYTES:
    with pytest.raises(UserError, match=r"^eval.first_token is 'eos'; allow"):
      run.score(text, first_token=first)
    return
  least = 1 if first == 'eos' else 2
  with pytest.raises(UserError, match=f'is 0; allowed: at least {least}$'):
    run.score(text[:0], first_token=first)
  corpus = Corpus(vocabulary, text)
  locate = lambda data: corpus
  monkeypatch.setattr(preparation, 'locate_or_prepare', locate)
  c = runs.config()
  c.eval.update(segment_len=4, first_token=first, batch_size=batch_size)
  c.eval.model.mem_len = 5
  there = evaluate.run(runs.job(c, folder))
  found = run.score(text, **LENGTHS, first_token=first, batch_size=batch_size)
  assert found.total == there.nll and found.nats == there.nats
  assert len(found.nll) == there.scored
  printed = capsys.readouterr().out
  if vocabulary is BYTES:
    assert f'{found.bits_per_byte:.5f} bpc' in printed
    assert found.bits_per_byte == there.nats / math.log(2)
  else:
    assert f'{found.perplexity:.5f} ppl' in printed


def test_score_of_each_token(made):
  _, vocabulary, text, run = made
  found = run.score(text, **LENGTHS)
  ids = vocabulary.encode(text.encode(), 'it')
  np.testing.assert_array_equal(found.ids, ids[1:])
  assert found.nll.shape == (len(ids) - 1,) and found.nll.dtype == np.float32
  np.testing.assert_allclose(found.nll.sum(), found.total, rtol=1e-5)
  pattern = r'Score\(\d+ tokens, [\d.]+ bits per token, perplexity [\d.]+\)'
  assert re.fullmatch(pattern, repr(found))
  parts = [text[start:end] for start, end in found.offsets]
  if vocabulary is BYTES:
    assert parts == [c for c in text for _ in c.encode()][1:]
    assert found.bits_per_byte == found.bits_per_token
  else:
    assert parts == re.findall(r'\n|\S+', text)[1:]
    size = len(text) - len('the')
    bits = found.total / math.log(2) / size
    assert found.text_bytes == size
    np.testing.assert_allclose(found.bits_per_byte, bits)
  for other in (text.encode(), ids, ids.tolist()):
    same = run.score(other, **LENGTHS)
    assert same.total == found.total
    np.testing.assert_array_equal(same.nll, found.nll)
    if vocabulary is BYTES or isinstance(other, bytes):
      assert same.text_bytes == found.text_bytes
    else:  # the words of the ids, joined as in generated text
      decoded = vocabulary.decode(ids).removeprefix(b'the')
      assert same.text_bytes == len(decoded)
  data = text.encode()
  parts = [data[a:b] for a, b in run.score(data, **LENGTHS).offsets]
  if vocabulary is BYTES:
    assert b''.join(parts) == data[1:]
    spans = run.score(ids, **LENGTHS).offsets  # of the text of the ids
    assert [data[a:b] for a, b in spans] == parts
  else:
    assert parts == re.findall(rb'\n|\S+', data)[1:]


def read_and_continued(run, text):
  """What each method returns."""
  chat = run.chat(max_new_tokens=5, top_p=0.9, repetition_penalty=1.2)
  replies = [chat.say(text[:9]), ''.join(chat.stream(text[9:12]))]
  options = dict(samples=2, max_new_tokens=7, top_k=5, seed=3)
  continued = run.generate([text[:5], text[:14]], **options)
  score = run.score(text, **LENGTHS, batch_size=3)
  arrays = [score.nll, run.hidden(text).states]
  if run.model.ATTENDS:
    arrays.append(run.attention(text).probabilities)
  return [*replies, *continued], arrays


@pytest.mark.thorough
@pytest.mark.parametrize('size, kind', [(4, 'Explicit'), (1, 'Auto')])
def test_in_a_mesh_of_the_caller(made, size, kind):
  """All is as without it, and a stream leaves it as it is."""
  folder, _, text, run = made
  written, expected = read_and_continued(run, text)
  types = (jax.sharding.AxisType[kind],)
  devices = jax.devices()[:size]
  mesh = jax.make_mesh((size,), ('batch',), types, devices=devices)
  with jax.set_mesh(mesh):
    for model in run, txl_jax.load(folder):
      texts, arrays = read_and_continued(model, text)
      assert texts == written
      for x, y in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(x, y)
      for _ in model.stream(text[:9], max_new_tokens=40):
        assert jax.sharding.get_mesh() == mesh


@pytest.mark.thorough
def test_score_in_a_context_and_at_a_temperature(plain):
  """Segments of one token in a context are a window."""
  text = TEXT[:30]
  window = plain.score(text, window=4)
  found = plain.score(text, segment_len=1, context=3, temperature=1.3)
  np.testing.assert_allclose(found.nll, window.nll, rtol=1e-5, atol=1e-6)
  warm, ids = found.at_temperature, plain.encode(text)
  variables = {'params': plain.params}
  logits_of = jax.jit(
    lambda x: plain.model.apply(variables, x, (), method='logits')
  )
  for i in range(1, len(ids)):
    logits, _ = logits_of(ids[None, max(i - 4, 0) : i])
    logits = np.float64(logits[0, -1]) / 1.3
    nll = np.log(np.sum(np.exp(logits))) - logits[ids[i]]
    np.testing.assert_allclose(warm.nll[i - 1], nll, rtol=1e-4, atol=1e-5)
  assert warm.text_bytes == found.text_bytes and warm.at_temperature is None
  np.testing.assert_allclose(warm.total, warm.nll.sum(), rtol=1e-5)
  assert window.at_temperature is None


@pytest.mark.thorough
def test_marks_and_line_ends(made, tmp_path, capsys):
  """A text is the same in other clothes; places are those of the given one."""
  folder, _, text, run = made
  other = '\ufeff' + text.replace('\n', '\r')
  same = run.score(text, **LENGTHS)
  for given, mark in ((other, 1), (other.encode(), 3)):
    found = run.score(given, **LENGTHS)
    assert (found.total, found.text_bytes) == (same.total, same.text_bytes)
    plain = run.score(text if mark == 1 else text.encode(), **LENGTHS)
    np.testing.assert_array_equal(found.offsets, plain.offsets + mark)
  np.testing.assert_array_equal(run.encode(other), run.encode(text))
  more = dict(seed=2, max_new_tokens=9)
  assert run.generate('\ufeffthe\r', **more) == run.generate('the\n', **more)
  c = runs.config()
  c.generate.update(more)
  c.eval.segment_len = 4
  printed = []
  data, utf_16 = text.encode(), other.encode('utf-16')
  for i, given in enumerate(
    (data, other.encode(), utf_16, gzip.compress(data))
  ):
    path = tmp_path / f'{i}'
    path.write_bytes(given)
    c.generate.prompt_file = str(path)
    asked = runs.job(c, folder)
    generate.run(asked)
    printed.append(capsys.readouterr().out)
    asked = dataclasses.replace(asked, text=str(path))
    assert score.run(asked).total == run.score(text, segment_len=4).total
    capsys.readouterr()
  assert len(set(printed)) == 1
  path.write_bytes(b'PAR1\0')
  with pytest.raises(UserError, match=r'^generate\.prompt_file: .* is a Parqu'):
    generate.run(asked)
  with pytest.raises(UserError, match=r'^--text=.* is a Parquet file, so it'):
    score.run(asked)


@pytest.mark.thorough
def test_raw_bytes_are_read_as_they_are(tmp_path):
  raw = dataclasses.replace(BYTES, raw=True)
  runs.write(tmp_path, vocabulary=raw, segment_len=6)
  run, data = txl_jax.load(tmp_path), b'\xef\xbb\xbfa\r\0b'
  found = run.score(data)
  np.testing.assert_array_equal(found.ids, [*data[1:]])
  np.testing.assert_array_equal(found.offsets[:, 0], range(1, len(data)))
  (tmp_path / 'a').write_bytes(data)
  asked = runs.job(runs.config(), tmp_path)
  asked = dataclasses.replace(asked, text=f'{tmp_path}/a')
  assert score.run(asked).total == found.total


@pytest.mark.thorough
def test_short_texts_of_many_lengths_are_one_program(made):
  _, vocabulary, text, run = made
  data = text.encode()
  run.score(vocabulary.encode(data, 'it')[:10])
  run.hidden(vocabulary.encode(data, 'it')[:10])
  with compilations.counted() as names:
    for n in range(11, 17):
      ids = vocabulary.encode(data, 'it')[:n]
      assert len(run.score(ids).nll) == n - 1
      run.hidden(ids)
  assert not [x for x in names if 'score' in x or 'read' in x]


OPTIONS = dict(max_new_tokens=20, segment_len=4)


@pytest.mark.thorough
@pytest.mark.parametrize('prompt', ['the memory\nthe', ''])
@pytest.mark.parametrize(
  'drawn', [dict(seed=3, top_k=5), dict(temperature=0.0)]
)
def test_generate_is_that_of_the_mode(made, capsys, prompt, drawn):
  folder, vocabulary, _, run = made
  options = {**OPTIONS, **drawn}
  c = runs.config()
  c.generate.update(options, prompt=prompt)
  capsys.readouterr()
  generate.run(runs.job(c, folder))
  text = capsys.readouterr().out
  new = run.generate(prompt, **options)
  pieces = [*run.stream(prompt, **options)]
  assert ''.join(pieces) == new and len(pieces) > 1
  as_bytes = run.generate(prompt.encode(), **options)
  assert isinstance(as_bytes, bytes)
  assert as_bytes.decode(errors='replace') == new
  assert b''.join(run.stream(prompt.encode(), **options)) == as_bytes
  if vocabulary is BYTES:
    assert len(as_bytes) == 20 and prompt + new + '\n' == text


@pytest.mark.thorough
def test_several_prompts_of_different_lengths(made):
  _, _, _, run = made
  prompts = ['the', 'the memory the the .', '', 'memory .']
  greedy = dict(**OPTIONS, temperature=0.0)
  alone = [run.generate(x, **greedy) for x in prompts]
  assert run.generate(prompts, **greedy) == alone
  data = [x.encode() for x in prompts]
  found = run.generate(data, **greedy, samples=2)
  found = [x.decode(errors='replace') for x in found]
  assert found == [x for x in alone for _ in range(2)]
  assert run.generate('the', **greedy, samples=1) == alone[:1]


@pytest.mark.thorough
def test_a_sample_ends(made):
  _, _, _, run = made
  whole = run.generate('the', max_new_tokens=80, seed=1)
  assert run.generate('the', max_new_tokens=80, seed=1, stop=None) == whole
  for stop in whole[30:33], whole[7], [whole[50:53], whole[9:12]]:
    stops = [stop] if isinstance(stop, str) else stop
    if any('\ufffd' in s for s in stops):
      continue
    ends = [(whole.find(s) + len(s), whole.find(s)) for s in stops]
    found = run.generate('the', max_new_tokens=80, seed=1, stop=stop)
    assert found == whole[: min(ends)[1]]
    streamed = run.stream('the', max_new_tokens=80, seed=1, stop=stop)
    assert ''.join(streamed) == found
  for seed in range(30):
    more = dict(max_new_tokens=300, seed=seed)
    whole = run.generate('the', **more)
    if '\n' in whole:
      break
  line = whole[: whole.index('\n')]
  assert run.generate('the', **more, stop='\n') == line


def test_what_is_streamed_are_whole_characters(made):
  _, vocabulary, _, run = made
  if vocabulary is WORDS:
    return
  more = dict(max_new_tokens=200, seed=5)
  pieces = [*run.stream('é', **more)]
  whole = run.generate(b'\xc3\xa9', **more)
  assert ''.join(pieces) == whole.decode(errors='replace')
  with pytest.raises(UnicodeDecodeError):  # untrained
    whole.decode()


def test_a_model_without_memory(plain):
  """It sees a window that moves with the text."""
  prompt, W = 'one two three', 6
  found = plain.generate(prompt.encode(), max_new_tokens=9, temperature=0.0)
  model = models.build(plain.config.model, 256)
  read = jax.jit(
    lambda x: model.apply({'params': plain.params}, x, (), method='logits')
  )
  tokens = [*prompt.encode()]
  for _ in range(9):
    logits, _ = read(np.array([tokens[-W:]], np.int32))
    tokens.append(int(logits[0, -1].argmax()))
  assert bytes(tokens) == prompt.encode() + found
  states = lambda **x: plain.hidden(prompt, **x).states
  found = states(segment_len=6, context=2)
  np.testing.assert_array_equal(found, states(segment_len=8))
  near = plain.score(prompt, window=3).nll
  np.testing.assert_allclose(near[4], plain.score(prompt[2:6]).nll[-1], 1e-4)


@pytest.mark.thorough
def test_hidden_states(made):
  """Those of one long segment, where the memory holds all of the text."""
  _, vocabulary, text, run = made
  ids = vocabulary.encode(text.encode(), 'it').astype(np.int32)
  n = len(ids)
  model = run.model.at_test_time(longest=0, mem_len=0)

  @jax.jit
  def whole(params):
    arguments = {'params': params}, ids[None], ()
    shown = inspection.read(model, *arguments, 'states')
    return shown, model.apply(*arguments, method='states')

  ((first, *_, last), _), (states, _) = whole(run.params)
  close = dict(rtol=1e-4, atol=1e-4)
  for layer in -1, 1:
    found = run.hidden(text, layer, segment_len=4, mem_len=200)
    assert found.states.shape == (n, 8)
    np.testing.assert_allclose(found.states, last[0], **close)
  found = run.hidden(text, 0, segment_len=4)
  np.testing.assert_allclose(found.states, first[0], **close)
  np.testing.assert_array_equal(found.ids, ids)
  starts = [text[a:b] for a, b in found.offsets]
  assert len(starts) == n
  np.testing.assert_array_equal(last, states)


@pytest.mark.thorough
def test_attention_of_a_text(made):
  _, vocabulary, text, run = made
  ids = vocabulary.encode(text.encode(), 'it').astype(np.int32)
  n = len(ids)
  found = run.attention(text, segment_len=4, mem_len=n).probabilities
  model = run.model.at_test_time(longest=0, mem_len=0)
  expected, _ = jax.jit(
    lambda params: inspection.read(
      model, {'params': params}, ids[None], (), 'maps'
    )
  )(run.params)
  assert found.shape == (1, 2, n, n)
  np.testing.assert_allclose(found, expected[:, 0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
  short = run.attention(text, segment_len=4, mem_len=3).probabilities
  i, j = np.indices((n, n))
  there = (j <= i) & (j >= i // 4 * 4 - 3)
  assert not short[..., ~there].any()
  np.testing.assert_allclose(short.sum(-1), 1, rtol=1e-5)
  # The oldest one that is seen is, if little.
  assert (short[..., there].mean((0, 1)) > 0).mean() > 0.9


@pytest.mark.thorough
def test_an_exported_file(made, tmp_path):
  folder, vocabulary, text, run = made
  path = tmp_path / 'model.npz'
  export.run(runs.job(runs.config(), folder, export_file=str(path)))
  other = txl_jax.load(str(path))
  assert other.vocabulary == vocabulary and other.model == run.model
  assert (run.step, other.step) == (runs.STEP, None)
  assert other.score(text).total == run.score(text).total
  drawn = dict(seed=4, max_new_tokens=20)
  assert other.generate('the', **drawn) == run.generate('the', **drawn)


def test_a_checkpoint_is_chosen(made):
  folder = made[0]
  for which in 'best', 'latest', runs.STEP:
    assert txl_jax.load(folder, checkpoint=which).step == runs.STEP
  with pytest.raises(UserError, match=r"checkpoint is '6'; allowed: best"):
    txl_jax.load(folder, checkpoint=6)
  with pytest.raises(UserError, match=r'/none does not exist; allowed: a run'):
    txl_jax.load(folder / 'none')
  with pytest.raises(UserError, match=r'has an unknown format'):
    txl_jax.load(folder / 'config.json')


def test_what_is_refused(made):
  _, vocabulary, _, run = made
  V = len(vocabulary)
  number, allowed = 'the number of tokens of text', f'allowed: 0 to {V - 1}'
  for call, message in (
    (lambda: run.score([0, 99_999_999, -1]), f'text is 99999999; {allowed}'),
    (lambda: run.hidden(np.array([0, -1])), f'id of text is -1; {allowed}'),
    (lambda: run.attention([0, V]), f'^a token id of text is {V}; {allowed}'),
    (lambda: run.decode([2**40]), f'^a token id of ids is {2**40}; {allowed}'),
    (lambda: run.score([0.5, 1.0]), r'^text is float64 \[2\]; allowed'),
    (lambda: run.score([[1, 2]]), r'^text is int64 \[1, 2\]; allowed: a text'),
    (lambda: run.score(None), r'^text is object \[\]; allowed: a text, or int'),
    (lambda: run.decode('abc'), r'^ids is <U3 \[\]; allowed: a text, or integ'),
    (lambda: run.score([0]), f'^{number} is 1; allowed: at least 2'),
    (lambda: run.hidden(''), f'^{number} is 0; allowed: at least 1'),
    (lambda: run.generate([]), r'^prompt is \[\]; allowed: one text or more'),
    (lambda: run.generate('a', samples=0), '^samples is 0; allowed: '),
    (lambda: run.generate('a', samples=True), '^samples is True; allowed: a '),
    (lambda: run.score('the the', top=True), '^top is True; allowed: a whole'),
    (lambda: run.score('the the', top=-1), '^top is -1; allowed: a whole nu'),
    (lambda: run.score('the the', top=0.5), '^top is 0.5; allowed: a whole '),
    (lambda: run.generate('a', samples=1.5), '^samples is 1.5; allowed: a wh'),
    (lambda: run.generate('a', samples=2**40), '^samples is 1.* most 1000000$'),
    (lambda: run.generate('a', stop=''), "^stop is ''; allowed: texts of one"),
    (lambda: run.score('\ud800ab'), "^text is '.ud800ab'; allowed: text in U"),
    (lambda: run.score('the the', segment_len=10**9), 'at most 1000000$'),
    (lambda: run.generate('a', top_k=-1), '^top_k is -1; allowed: at least 0'),
    (lambda: run.generate('a', seed=True), '^seed is True; allowed: a whole n'),
    (lambda: run.generate('a', window=3), r'^generate.window is 3; allowed: 0'),
    (lambda: run.score('the the', segment_len=0), '^segment_len is 0; all'),
    (lambda: run.score('the the', mem_len=-1), '^mem_len is -1; allow'),
    (lambda: run.score('the the', batch_size=9), '^eval.batch_size is 9: that'),
    (lambda: run.generate('a', segment_len='4'), "^segment_len is '4'; "),
  ):  # fmt: skip
    with pytest.raises(UserError, match=message):
      call()


def test_arguments_of_another_type(made):
  run = made[3]
  one = 'allowed: str or bytes'
  for call, message in (
    (lambda: run.generate('a', stop=[5]), f'^stop is of type int; {one}$'),
    (lambda: run.generate('a', stop=5), f'^stop is of type int; {one}$'),
    (lambda: run.stream(3), f'^prompt is of type int; {one}$'),
    (lambda: run.chat().say(None), f'^text is of type NoneType; {one}$'),
    (lambda: run.generate(5), '^prompt is of type int; allowed: texts or toke'),
    (
      lambda: run.generate('a', top=3),
      "no option 'top'; allowed: max_new_tokens, .*, samples, stop$",
    ),
    (lambda: run.generate('a', prompt_file='b'), "no option 'prompt_file'"),
  ):
    with pytest.raises(TypeError, match=message):
      call()


@pytest.mark.thorough
def test_numbers_of_numpy(made):
  run = made[3]
  number = np.int64
  found = run.generate(
    'the', samples=number(2), seed=number(3), segment_len=np.int32(4),
    max_new_tokens=number(9), temperature=np.float32(0.5),
  )  # fmt: skip
  more = dict(seed=3, segment_len=4, max_new_tokens=9, temperature=0.5)
  assert found == run.generate('the', samples=2, **more)
  states = run.hidden('the the', layer=number(1)).states
  np.testing.assert_array_equal(states, run.hidden('the the', 1).states)


@pytest.mark.thorough
def test_what_the_vocabulary_has_not(tmp_path):
  vocabulary = Bytes((97, 98))
  runs.write(tmp_path, vocabulary=vocabulary)
  run = txl_jax.load(tmp_path)
  for call, name in (
    (lambda: run.score('abx'), 'text'),
    (lambda: run.generate('abx'), 'prompt'),
    (lambda: run.generate(['a', 'abx']), 'prompt 1'),
    (lambda: run.chat().say('abx'), 'text'),
  ):
    with pytest.raises(UserError, match=f'^{name}: byte 0x78 at position 2'):
      call()


@pytest.mark.thorough
def test_a_recurrent_model(tmp_path):
  """It has neither lengths of its own nor attention."""
  fields = dict(name='lstm', d_model=8, d_hidden=6, init_std=0.5)
  model = models.build(fields, 256)
  params = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  path = tmp_path / 'lstm.npz'
  weights_file.save(path, params, fields, BYTES.to_json())
  run = txl_jax.load(path)
  assert run.generate('the ', max_new_tokens=5)
  found = run.hidden('the memory', 1)
  assert found.states.shape == (10, 6)
  layers = [dict(layer=i) for i in (0, -3, 2, -1)] + [{}]
  states = [run.hidden('the memo.', **x).states for x in layers]
  assert [x.shape for x in states] == [(9, 8)] * 5
  np.testing.assert_array_equal(states[0], states[1])
  for x in states[3:]:
    np.testing.assert_array_equal(states[2], x)
  for layer in 3, -4:
    with pytest.raises(UserError, match=r': 0 to 2, or -3 to -1$'):
      run.hidden('the memo.', layer)
  pieces = run.hidden('the memory', 1, segment_len=3).states
  np.testing.assert_allclose(pieces, found.states, rtol=1e-5, atol=1e-6)
  with pytest.raises(UserError, match=r'^LSTM has no attention;'):
    run.attention('the')
  with pytest.raises(TypeError, match="'mem_len'; allowed: batch"):
    run.score('the', mem_len=3)


def test_the_mode_scores_a_file(made, tmp_path, capsys, monkeypatch):
  folder, vocabulary, text, run = made
  (tmp_path / 'text').write_text(text)
  c = runs.config()
  c.eval.segment_len = 4
  asked = runs.job(c, folder)
  asked = job.Job(
    asked.config, folder, asked.console, asked.watch, '',
    str(tmp_path / 'text'),
    str(tmp_path / 'nll.jsonl'),
  )  # fmt: skip
  clock = mock.Mock(monotonic=iter([3.0, 8.5]).__next__)
  monkeypatch.setattr(score, 'time', clock)
  found, same = score.run(asked), run.score(text, segment_len=4)
  assert found.total == same.total and not found.top_ids.size
  out = capsys.readouterr().out
  assert f', 5.5 s, {len(same.nll) / 5.5:,.0f} tokens/s (T 4, ' in out
  unit = 'bpc' if vocabulary is BYTES else 'ppl'
  figure = same.bits_per_token if unit == 'bpc' else same.perplexity
  assert f'{tmp_path}/text: {figure:.5f} {unit} ({same.nats:.5f} nats), ' in out
  assert f'{same.bits_per_byte:.5f} bits per byte' in out
  lines = (tmp_path / 'nll.jsonl').read_text().splitlines()
  lines = [*map(json.loads, lines)]
  np.testing.assert_array_equal([x['nll'] for x in lines], same.nll)
  data = text.encode()
  for line, (start, end) in zip(lines, itertools.pairwise([0, 1])):
    assert line['end'] > line['start'] >= end > start
  assert [data[x['start'] : x['end']].decode(errors='backslashreplace')
          for x in lines] == [x['text'] for x in lines]  # fmt: skip
  for text, message in (
    ('', '--text=FILE is missing: the text to score, - for stdin'),
    (f'{tmp_path}/none', 'none cannot be read: No such file or directory'),
  ):
    with pytest.raises(UserError, match=message):
      score.run(
        job.Job(asked.config, folder, asked.console, asked.watch, '', text)
      )


@pytest.mark.filterwarnings('default::txl_jax.experiment.texts.UnknownWords')
def test_unknown_words_are_told_of_the_line_of_the_user(tmp_path, monkeypatch):
  runs.write(tmp_path, vocabulary=WORDS, segment_len=6)
  run, text = txl_jax.load(tmp_path), 'the old memory'
  for module, name in (
    (activations, 'attention'),
    (scoring, 'score'),
    (TextModel, '_writer'),
  ):
    monkeypatch.setattr(module, name, mock.MagicMock())
  with pytest.warns(UnknownWords) as seen:
    run.encode(text)
    run.score(text)
    run.attention(text)
    run.stream(text)
    run.chat().say(text)
    after = run.score(text, first_token='eos')
    assert after.text_bytes - run.score(text).text_bytes == len('the')
  assert [x.filename for x in seen] == [__file__] * 7


@pytest.mark.thorough
@pytest.mark.parametrize('memory', [True, False])
def test_promotion_is_explicit(made, plain, memory):
  """In programs that forbid it otherwise, the results are the same."""
  _, _, text, run = made
  run, text = (run, text) if memory else (plain, TEXT)
  texts, arrays = read_and_continued(run, text)
  with promotions.forbidden():
    texts_there, arrays_there = read_and_continued(run, text)
  assert texts_there == texts
  for x, y in zip(arrays, arrays_there, strict=True):
    np.testing.assert_array_equal(x, y)


CALLS = {
  'score': lambda run, text: run.score(text),
  'hidden': lambda run, text: run.hidden(text),
  'attention': lambda run, text: run.attention(text),
  'generate': lambda run, text: run.generate(text),
  'several': lambda run, text: run.generate([text, text]),
  'stream': lambda run, text: run.stream(text),
  'chat': lambda run, text: run.chat(),
  'load': lambda run, text: txl_jax.load(run.source),
  'train': lambda run, text: txl_jax.train('pystdlib_tiny'),
}


@pytest.mark.parametrize('call', CALLS)
def test_calls_inside_a_program(made, call):
  """The error says what to do, whether the argument is traced or not."""
  run, ids = made[3], np.arange(9, dtype=np.int32)
  programs = jax.jit, jax.vmap, jax.jacfwd, jax.checkpoint, jax.make_jaxpr
  message = (
    r'^this call runs programs of its own, so it cannot be inside jax\.jit, '
    r"grad or vmap; there, use run\.model\.apply\({'params': run\.params}, "
  )
  for text in ids, None:
    for program in programs:

      def inside(x, text=text):
        CALLS[call](run, (x * 2).astype(int) if text is None else text)
        return x

      with pytest.raises(UserError, match=message):
        program(inside)(ids.astype(np.float32))
  speaking = run.chat()
  with pytest.raises(UserError, match=message):
    jax.jit(lambda x: speaking.say('a') and x)(1)


@pytest.mark.thorough
def test_the_module_inside_a_program(made):
  """As the error recommends; encoding and decoding work there, too."""
  _, _, text, run = made
  ids, model = run.encode(text)[:5], run.model

  @jax.jit
  def logits(ids):
    assert isinstance(run.decode([1, 2]), str)
    with pytest.raises(UserError, match=r'^ids is neither text nor a list'):
      run.decode(ids)
    memory = model.init_memory(1)
    variables = {'params': run.params}
    return model.apply(variables, ids[None], memory, method='logits')[0]

  scores = jax.nn.log_softmax(logits(ids)[0])
  expected = run.score(ids, segment_len=5, batch_size=1).nll
  found = -np.asarray(scores)[range(len(ids) - 1), ids[1:]]
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_only_a_run_on_this_machine_has_figures(made, monkeypatch):
  run, push = made[3], mock.Mock()
  monkeypatch.setattr(write_weights, 'push', push)
  given = run.config, run.params, run.vocabulary, run.mesh
  for step, source in (7, '/a'), (7, 'gs://a/b'), (None, '/a.npz'):
    TextModel(*given, step, source).push('hf://me/mine')
    expected = pathlib.Path(source) if source == '/a' else None
    assert push.call_args.kwargs['run'] == expected


def test_weights_of_equal_models_are_frozen_once(made):
  with mock.patch.object(base, 'freeze', wraps=base.freeze) as freeze:
    for n in 3, 3, 2:
      made[3].chat(segment_len=n)
  assert freeze.call_count == 2


def test_layers_are_counted_in_integers(made):
  *_, text, run = made
  for layer in 2, -3, True, np.True_, 1.0, 'x':
    with pytest.raises(UserError, match=r': 0 to 1, or -2 to -1$'):
      run.hidden(text, layer)
  found = run.hidden(text, np.int64(1)).states
  np.testing.assert_array_equal(found, run.hidden(text).states)
  found = run.hidden(text, -2).states
  np.testing.assert_array_equal(found, run.hidden(text, 0).states)


def test_a_name_that_is_too_long():
  # From Python 3.14 on, there is none of that name.
  why = '(…|xxx) (cannot be read: File name too long|does not exist; allowed: )'
  with pytest.raises(UserError, match=why) as e:
    txl_jax.load('x' * 5000)
  assert len(str(e.value)) < 400
