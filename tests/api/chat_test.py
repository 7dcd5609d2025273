"""A text in turns, beside one long prompt."""

import jax
import numpy as np
import pytest

import txl_jax
from tests.modes import runs
from txl_jax.data.vocabularies import subwords
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.models import base

pytestmark = pytest.mark.thorough

BYTES = Bytes.all_bytes()
SAID = 'Who are you?\n', 'And é?\n', 'Good.\n'
MORE = dict(max_new_tokens=21, seed=6, segment_len=5)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  runs.write(folder, vocabulary=BYTES, segment_len=6, init_std=0.7)
  return txl_jax.load(folder)


def test_three_turns_are_the_same_segments(run):
  """A memory that forgets, read in the same pieces by hand."""
  chat = run.chat(**MORE, mem_len=7, temperature=0.0)
  model = run.model.at_test_time(5, mem_len=7)
  variables = base.freeze(model, run.params)
  read = jax.jit(
    lambda tokens, memory: model.apply(
      variables, tokens, memory, last=True, method='logits'
    )
  )
  apply = lambda tokens, memory: read(np.array([tokens], np.int32), memory)
  memory = model.init_memory(1)
  for said in SAID:
    tokens, new = [*said.encode()], []
    for at in range(0, len(tokens), 5):
      logits, memory = apply(tokens[at : at + 5], memory)
    for _ in range(21):
      new.append(int(logits[0].argmax()))
      logits, memory = apply(new[-1:], memory)
    assert chat.say(said) == bytes(new).decode(errors='replace')


@pytest.mark.parametrize('at', [3, 40])  # in the first chunk, and later
def test_a_reply_that_is_stopped(run, at):
  """What stops it is neither in the text nor in the memory."""
  more = {**MORE, 'max_new_tokens': 60, 'mem_len': 7}
  free = run.generate(SAID[0].encode(), **more)
  stop = free[at : at + 3]
  cut = free.index(stop)
  chat = run.chat(**more, stop=stop)
  assert chat.say(SAID[0]) == free[:cut].decode(errors='replace')
  assert bytes(chat.ids.tolist()) == SAID[0].encode() + free[:cut]
  # The state after exactly these, token by token.
  model = run.model.at_test_time(5, mem_len=7)
  variables = base.freeze(model, run.params)
  state = decoding.prefill(
    model, variables, [np.frombuffer(SAID[0].encode(), np.uint8)], segment_len=5
  )
  for i in free[:cut]:
    state = decoding.prefill(
      model, variables, [np.array([i])], segment_len=1, state=state
    )
  state = decoding.prefill(
    model, variables, [np.frombuffer(SAID[1].encode(), np.uint8)],
    segment_len=5, state=state,
  )  # fmt: skip
  pieces = decoding.decode(
    model, variables, state, sampling=Sampling(), max_new_tokens=60, seed=6
  )
  new = np.concatenate([tokens[0] for tokens, _ in pieces]).tolist()
  expected = bytes(new).split(stop)[0].decode(errors='replace')
  assert chat.say(SAID[1]) == expected


def test_a_reply_that_is_not_read_was_not_asked_for(run):
  one, other = run.chat(**MORE), run.chat(**MORE)
  assert one.say(SAID[0]) == other.say(SAID[0])
  next(iter(other.stream(SAID[1])))
  assert one.say(SAID[2]) == other.say(SAID[2])
  assert one.text == other.text


def test_the_model_begins(run):
  assert run.chat(**MORE).say('') == run.generate('', **MORE)


def test_bytes_are_replied_to_in_bytes(run):
  one, other = run.chat(**MORE), run.chat(**MORE)
  reply, same = one.say(SAID[1].encode()), other.say(SAID[1])
  assert isinstance(reply, bytes) and reply.decode(errors='replace') == same
  assert all(isinstance(x, bytes) for x in one.stream(b'So.'))
  data = bytes(one.ids.tolist())
  assert data.startswith(SAID[1].encode() + reply + b'So.')
  assert one.text == data.decode(errors='replace')


def test_a_stop_text_within_a_word(tmp_path):
  """Of the word's letters before it, none is in the memory."""
  words = Words.from_list(b'<eos>\n<unk>\nlorem\nipsum', '', unk='<unk>')
  runs.write(tmp_path, vocabulary=words, init_std=0.7)
  run = txl_jax.load(tmp_path)
  chat = run.chat(**MORE, stop='rem')
  assert chat.say('ipsum').endswith('lo')
  assert set(chat.ids.tolist()) <= {*words.encode(b'ipsum <eos>', '')}


def test_a_stop_text_within_a_subword(tmp_path):
  """The part before it was shown, so it belongs to the text."""
  words = subwords.learn([b'lorem ipsum dolor sit amet, ' * 9], 280)
  runs.write(tmp_path, vocabulary=words, segment_len=6, init_std=0.7)
  run, said = txl_jax.load(tmp_path), b'lorem dolor.'
  more = {**MORE, 'max_new_tokens': 90, 'mem_len': 300}
  free = run.generate(said, **more)
  # The last two bytes of the first long subword, where they come first.
  tokens, decoder = run.chat(**more), words.decoder()
  tokens.say(said)
  n = len(words.encode(said, ''))
  pieces = [decoder.push([i]) for i in tokens.ids[n:]]
  assert b''.join(pieces) == free
  long = next(i for i, x in enumerate(pieces) if len(x) > 3)
  shown = b''.join(pieces[: long + 1])[:-2]
  stop = pieces[long][-2:] + b''.join(pieces[long + 1 :])[:2]
  chat = run.chat(**more, stop=stop)
  assert chat.say(said) == shown
  assert words.decode(chat.ids) == said + shown
  # And the model has read it: the next reply is one after all of this.
  then = words.encode(b' sit', '')
  model = run.model.at_test_time(5, mem_len=300)
  variables = base.freeze(model, run.params)
  state = decoding.prefill(
    model, variables, [np.concatenate([chat.ids, then])], segment_len=5
  )
  found = decoding.decode(
    model, variables, state, sampling=Sampling(), max_new_tokens=90, seed=6
  )
  ids = np.concatenate([tokens[0] for tokens, _ in found])
  assert chat.say(b' sit') == words.decode(ids).split(stop)[0]
