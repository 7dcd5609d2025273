"""Decoding from a model."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax import models
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base, ring_model, transformer_xl

V = 13
FIELDS = dict(n_layer=2, d_model=16, n_head=2, d_head=8, d_ff=32, mem_len=24)
# Tied, so small a model repeats one token.
FIELDS |= dict(init_std=0.5, tie_weights=False)
PLAIN = models.build(dict(name='transformer_xl', **FIELDS), V)
PROMPT = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
GREEDY = Sampling(temperature=0)


@jax.jit
def init():
  tokens = jnp.zeros([1, 1], jnp.int32)
  memory = PLAIN.init_memory(1)
  variables = PLAIN.init(jax.random.key(0), tokens, tokens, memory, train=False)
  return variables['params']


# Made by the first test: every worker imports this file.
PARAMS: Any = None
MODEL: Any = None
VARIABLES: Any = None


_SMALL = pytest.param(4, marks=pytest.mark.slow)


@pytest.fixture(autouse=True, params=[0, _SMALL, 16])
def kinds_of_memory(request, monkeypatch):
  """That of training; a ring with room for segments of 4, and for more."""
  model = PLAIN.at_test_time(longest=request.param)
  monkeypatch.setitem(globals(), 'PARAMS', params := init())
  monkeypatch.setitem(globals(), 'MODEL', model)
  monkeypatch.setitem(globals(), 'VARIABLES', base.freeze(model, params))


def run(**changes):
  settings: Any = dict(prompt=PROMPT, sampling=Sampling(), max_new_tokens=21)
  settings |= dict(seed=0, segment_len=4) | changes
  pieces = list(decoding.generate(MODEL, PARAMS, **settings))
  return np.concatenate(pieces, axis=1)


@jax.jit
def apply(tokens, memory):
  return PLAIN.apply({'params': PARAMS}, tokens, memory, method='logits')


def feed(tokens, memory):
  """Logits [n, V] of one segment of one row, and the new memory."""
  logits, memory = apply(jnp.asarray(tokens, jnp.int32)[None], memory)
  return logits[0], memory


def reread(text):
  """Last logits of a whole text as one segment, from an empty memory.

  The zeros after it are not seen from it; they make one shape of all texts.
  """
  assert len(text) <= 25  # the last token sees itself and the memory
  padded = np.zeros(25, np.int32)
  padded[: len(text)] = text
  return feed(padded, PLAIN.init_memory(1))[0][len(text) - 1]


def write(state, **settings):
  """All tokens of a `decode`, and the last state."""
  pieces = list(decoding.decode(MODEL, VARIABLES, state, **settings))
  return np.concatenate([t for t, _ in pieces], axis=1), pieces[-1][1]


def same_memory(a, b):
  if not ring_model.rewindable(MODEL):
    close(a, b)
  assert min(a.filled[0], FIELDS['mem_len']) == b.filled[0]


def close(a, b):
  return jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), a, b
  )


class Markov(nn.Module):
  """log p(next | token) is a row of a table; memory is empty."""

  vocab_size: int

  def init_memory(self, batch_size):
    del batch_size
    return ()

  def row_axes(self):
    return ()

  frozen = base.LanguageModel.frozen

  @nn.compact
  def logits(self, tokens, memory, *, lengths, last):
    assert last
    shape = (self.vocab_size, self.vocab_size)
    table = self.param('table', nn.initializers.zeros, shape)
    newest = jnp.maximum(lengths - 1, 0)
    return table[tokens[jnp.arange(len(tokens)), newest]], memory


@pytest.mark.thorough
def test_sampling_frequencies_are_the_probabilities():
  probs = np.array([0.4, 0.25, 0.2, 0.1, 0.05])
  params = {'table': jnp.tile(jnp.log(probs), (5, 1))}
  settings = dict(max_new_tokens=64, samples=80, seed=1, segment_len=2)

  def draw(sampling):
    more = dict(sampling=sampling, **settings)
    pieces = decoding.generate(Markov(5), params, [0], **more)
    return np.concatenate(list(pieces), axis=1)

  tokens = draw(Sampling())

  def chi2(seen, want):
    return np.sum((seen - want) ** 2 / want)

  counts = np.bincount(tokens.ravel(), minlength=5)
  assert chi2(counts, probs * tokens.size) < 18.5  # 0.999 quantile, 4 degrees
  # Independent along the text and across the samples.
  for a, b in [(tokens[:, 1:], tokens[:, :-1]), (tokens[1:], tokens[:-1])]:
    pairs = np.bincount((5 * a + b).ravel(), minlength=25)
    want = np.outer(probs, probs).ravel() * a.size
    assert chi2(pairs, want) < 51.2  # 0.999 quantile, 24 degrees

  tempered = probs**2 / np.sum(probs**2)
  counts = np.bincount(draw(Sampling(0.5)).ravel(), minlength=5)
  assert chi2(counts, tempered * tokens.size) < 18.5
  assert set(np.unique(draw(Sampling(top_k=2)))) == {0, 1}


def test_repetition_penalty_counts_prompt_and_text():
  # Every token is preferred in the order 0, 1, 2, ... until it is seen.
  table = jnp.tile(10.0 - jnp.arange(6), (6, 1))
  sampling = Sampling(temperature=0, repetition_penalty=100.0)
  settings = dict(max_new_tokens=4, seed=0, segment_len=8, chunk=3)
  model, params = Markov(6), {'table': table}
  pieces = decoding.generate(
    model, params, [1, 3], sampling=sampling, **settings
  )
  # The padding of the prompt (token 0) is not seen.
  np.testing.assert_array_equal(np.concatenate(list(pieces), 1), [[0, 2, 4, 5]])


@pytest.mark.default_cases('0-11')
@pytest.mark.parametrize('n', [1, 4, 11])
def test_greedy_equals_rereading_the_whole_text(n):
  text = PROMPT[:n].tolist()
  for _ in range(12):
    logits = reread(text)
    second, best = np.sort(logits)[-2:]
    assert best - second > 1e-4
    text.append(int(np.argmax(logits)))
  assert len(set(text[n:])) > 1
  tokens = run(prompt=PROMPT[:n], sampling=GREEDY, max_new_tokens=12)
  np.testing.assert_array_equal(tokens, [text[n:]])


@pytest.mark.thorough
def test_the_state_is_that_of_exactly_the_tokens_yielded():
  state = decoding.prefill(MODEL, VARIABLES, PROMPT, segment_len=4)
  memory = PLAIN.init_memory(1)
  for segment in (PROMPT[:4], PROMPT[4:8], PROMPT[8:]):
    logits, memory = feed(segment, memory)
  close(state.logits[0], logits[-1])

  # 22 tokens: more than the memory holds, and 2 in the last chunk of 5.
  settings = dict(sampling=Sampling(), max_new_tokens=22, seed=0, chunk=5)
  lengths, text = [], PROMPT.tolist()
  for tokens, after in decoding.decode(MODEL, VARIABLES, state, **settings):
    assert tokens.dtype == np.int32
    lengths.append(tokens.shape[1])
    text += tokens[0].tolist()
    for token in tokens[0]:
      logits, memory = feed([token], memory)
    close(after.logits[0], logits[-1])
    same_memory(after.memory, memory)
    seen = np.flatnonzero(after.seen[0])
    np.testing.assert_array_equal(seen, np.unique(text))
    assert after.position.tolist() == [len(text)]
  assert lengths == [5, 5, 5, 5, 2]


@pytest.mark.thorough
def test_same_seed_same_text_whatever_the_chunk():
  tokens = run()
  assert tokens.shape == (1, 21)
  for chunk in (1, 5, 16):
    np.testing.assert_array_equal(run(chunk=chunk), tokens)
  assert np.any(run(seed=1) != tokens)
  np.testing.assert_array_equal(run(max_new_tokens=9), tokens[:, :9])
  none: Any = dict(sampling=GREEDY, max_new_tokens=0, seed=0, segment_len=4)
  assert not [*decoding.generate(MODEL, PARAMS, PROMPT, **none)]


@pytest.mark.thorough
def test_a_sample_does_not_depend_on_how_many_there_are():
  tokens = run(samples=3)
  assert tokens.shape == (3, 21)
  np.testing.assert_array_equal(tokens[:1], run())
  np.testing.assert_array_equal(tokens[:2], run(samples=2))
  assert np.any(tokens[0] != tokens[1])
  assert np.any(tokens[1] != tokens[2])


@pytest.mark.thorough
def test_the_default_key_implementation_does_not_matter():
  tokens = run(samples=2)
  with jax.default_prng_impl('rbg'):
    np.testing.assert_array_equal(run(samples=2), tokens)


def test_continuing_equals_one_longer_text():
  state = decoding.prefill(MODEL, VARIABLES, [PROMPT], segment_len=4)
  state = decoding.repeat_rows(MODEL, state, 2)
  sampling = Sampling(repetition_penalty=1.2)
  settings = dict(sampling=sampling, seed=7, chunk=6)
  whole, last = write(state, max_new_tokens=18, **settings)
  first, state = write(state, max_new_tokens=7, **settings)
  # Reading nothing changes nothing.
  state = decoding.prefill(MODEL, VARIABLES, [], segment_len=4, state=state)
  second, state = write(state, max_new_tokens=11, **settings)
  np.testing.assert_array_equal(np.concatenate([first, second], 1), whole)
  close(state.logits, last.logits)
  assert state.position.tolist() == last.position.tolist()
  # What follows from both is the same, too.
  settings |= dict(max_new_tokens=9)
  after, also = (write(x, **settings)[0] for x in (state, last))
  np.testing.assert_array_equal(after, also)


def test_a_dialogue_reads_into_all_rows():
  state = decoding.prefill(MODEL, VARIABLES, PROMPT, segment_len=4)
  state = decoding.repeat_rows(MODEL, state, 2)
  tokens, state = write(state, sampling=Sampling(), max_new_tokens=5, seed=3)
  assert np.any(tokens[0] != tokens[1])
  answer = [7, 8, 7, 0, 2]
  state = decoding.prefill(MODEL, VARIABLES, answer, segment_len=4, state=state)
  assert state.position.tolist() == state.memory.filled.tolist() == [21, 21]
  for b in range(2):
    close(state.logits[b], reread([*PROMPT, *tokens[b], *answer]))


@pytest.mark.thorough
def test_prompts_of_different_lengths():
  """Each is continued as if it were alone, from an empty memory or not."""
  prompts = [PROMPT[:n] for n in (3, 11, 8, 1)]
  read = functools.partial(decoding.prefill, MODEL, VARIABLES, segment_len=4)
  state = read(prompts)
  assert state.position.tolist() == [3, 11, 8, 1]
  greedy = dict(sampling=GREEDY, max_new_tokens=9, seed=0, chunk=4)
  together, state = write(state, **greedy)
  answers = [[7, 8], [], [0] * 6, [5]]
  more, _ = write(read(answers, state=state), **greedy)
  for b, (prompt, answer) in enumerate(zip(prompts, answers)):
    alone, state = write(read(prompt), **greedy)
    np.testing.assert_array_equal(together[b], alone[0])
    alone, _ = write(read(answer, state=state), **greedy)
    np.testing.assert_array_equal(more[b], alone[0])
  both = run(prompt=prompts[:2], sampling=GREEDY, samples=2)
  np.testing.assert_array_equal(both[::2], both[1::2])
  one = run(prompt=prompts[1], sampling=GREEDY)
  np.testing.assert_array_equal(both[2:3], one)
  with pytest.raises(ValueError, match='at least one token, got none'):
    read([[1], []])


@pytest.mark.thorough
def test_eos_ends_its_row_alone():
  settings = dict(sampling=Sampling(2.0), max_new_tokens=21, seed=0, chunk=4)
  state = decoding.prefill(MODEL, VARIABLES, PROMPT, segment_len=4)
  state = decoding.repeat_rows(MODEL, state, 3)
  plain, _ = write(state, **settings)
  # A token that each row first holds at another place, within the memory.
  ends = {t: np.argmax(plain == t, axis=1) + 1 for t in range(V)}

  def holds(t):
    return np.all(np.any(plain[:, :14] == t, axis=1))

  eos = next(t for t in range(V) if holds(t) and len(set(ends[t])) == 3)
  lengths = ends[eos]
  tokens, state = write(state, ends=[eos], **settings)
  assert tokens.shape[1] == max(lengths)  # it stops with the last row
  assert state.position.tolist() == [len(PROMPT) + n for n in lengths]
  for b, n in enumerate(lengths):
    np.testing.assert_array_equal(tokens[b, :n], plain[b, :n])
    assert np.all(tokens[b, n:] == -1)
    close(state.logits[b], reread([*PROMPT, *tokens[b, :n]]))


@pytest.mark.parametrize('keep', [True, False])
@pytest.mark.parametrize('ends', [True, False])
def test_the_next_call_is_dispatched_before_tokens_are_read(
  monkeypatch, keep, ends
):
  calls, plain = [], decoding.compiled_chunk('cpu')

  def counted(*arguments):
    calls.append(len(calls))
    return plain(*arguments)

  monkeypatch.setattr(decoding, 'compiled_chunk', lambda platform: counted)
  read = functools.partial(decoding.prefill, MODEL, VARIABLES, segment_len=4)
  settings: Any = dict(sampling=Sampling(), seed=0, chunk=4)
  whole, _ = write(read(PROMPT), max_new_tokens=20, **settings)
  assert len(calls) == 5
  # In the second call a token ends the text, or its greatest length does.
  n = next(i + 1 for i in range(4, 8) if whole[0, i] not in whole[0, :i])
  eos = dict(max_new_tokens=20, ends=[int(whole[0, n - 1])])
  stop = eos if ends else dict(max_new_tokens=n)
  calls.clear()
  settings |= dict(keep=keep)
  pieces = decoding.decode(MODEL, VARIABLES, read(PROMPT), **stop, **settings)
  first, _ = next(pieces)
  assert len(calls) == 2
  second, state = next(pieces)
  assert next(pieces, None) is None
  assert len(calls) == 2 + ends  # one call in vain, at most
  tokens = np.concatenate([first, second], axis=1)
  np.testing.assert_array_equal(tokens, whole[:, :n])
  # The last state goes on where the text ended, whatever was called in vain.
  more, _ = write(state, max_new_tokens=20 - n, **settings)
  np.testing.assert_array_equal(more, whole[:, n:])


def test_an_empty_prompt():
  with pytest.raises(ValueError, match='at least one token, got none'):
    run(prompt=[])


@pytest.mark.parametrize('token', [-1, V])
def test_a_token_outside_the_vocabulary_is_an_error(token):
  with pytest.raises(ValueError, match=f'token is {token}; allowed: 0 to 12'):
    run(prompt=[1, token])


@pytest.mark.parametrize('kinds_of_memory', [16], indirect=True)
def test_a_ring_is_rewound_if_it_has_room_for_the_chunk(monkeypatch):
  advance, found = decoding._advance, {}
  state = decoding.start_state(MODEL, VARIABLES)
  for chunk in 15, 16, 17:

    def watched(*arguments, chunk=chunk):
      found[chunk] = arguments[-1]
      return advance(*arguments)

    monkeypatch.setattr(decoding, '_advance', watched)
    decode = functools.partial(decoding._chunk, MODEL, VARIABLES)
    more = dict(left=9, ends=np.array([-1]), sampling=GREEDY, chunk=chunk)
    arguments = state, np.zeros(1, bool), jax.random.key(0)
    jax.eval_shape(functools.partial(decode, **more), *arguments)
  assert found == {15: True, 16: True, 17: False}


class Counted(transformer_xl.TransformerXL):
  traces = []

  def inputs(self, tokens, lengths, train):
    self.traces.append(tokens.shape)
    return super().inputs(tokens, lengths, train)


@pytest.mark.thorough
def test_equal_shapes_compile_once():
  # On another device than the default one, as restored parameters may be.
  params = jax.device_put(PARAMS, jax.devices()[1])

  def two_turns(prompt, max_new_tokens, seed):
    model = Counted(V, Counted.Config(**FIELDS))  # anew, but equal
    model = model.at_test_time(longest=ring_model.rewindable(MODEL))
    state, variables = None, base.freeze(model, params)
    settings: Any = dict(sampling=Sampling(top_k=3), seed=seed, chunk=3)
    settings['max_new_tokens'] = max_new_tokens
    read = functools.partial(decoding.prefill, model, variables, segment_len=4)
    for text in (prompt, [1]):
      state = read(text, state=state)
      *_, (_, state) = decoding.decode(model, variables, state, **settings)
    return [x._cache_size() for x in jitted]

  jitted = decoding._read_segment, decoding.compiled_chunk('cpu')
  caches = [x._cache_size() for x in jitted]
  compiled = two_turns(PROMPT, 7, 0)
  assert compiled == [n + 1 for n in caches]
  assert decoding.compiled_chunk('cpu') is jitted[1]
  state = decoding.start_state(MODEL, base.freeze(MODEL, params))
  assert state.position.devices() == {jax.devices()[1]}
  traces = list(Counted.traces)
  assert set(traces) == {(1, 4), (1, 1)}
  assert two_turns(PROMPT[:6], 5, 1) == compiled
  assert Counted.traces == traces
