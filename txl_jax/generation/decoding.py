"""Text from a language model: read a prompt, then draw token after token.

Shapes: B rows (samples), V vocabulary, n prompt tokens, T segment length.

`generate` is one prompt and what follows it. `prefill` and `decode` are its
two halves; a dialogue calls them in turns and passes the `State` along:

  state = prefill(model, params, question, segment_len=128)
  for tokens, now in decode(model, params, state, ...):
    ...
  state = prefill(model, params, answer, segment_len=128, state=now)

A state holds the logits of the token that comes next, and its memory holds
every token before that one: all that was read and all that was yielded,
neither more nor fewer. So any state continues without feeding a token twice,
and `decode` from it gives what one longer `decode` would have given.

The model reads the prompt in segments of T tokens and its own text one token
at a time, with the memory of `models.base` in between. Once a text is longer
than the memory, what a token sees depends on T.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from txl_jax.generation.sampling import Sampling, draw
from txl_jax.models import base


class State(flax.struct.PyTreeNode):
  """Everything that decoding continues from.

  Attributes:
    logits: float32 [B, V], of the next token of each row.
    memory: the model's memory, after all tokens so far.
    seen: bool [B, V], the tokens that the row holds so far.
    position: int32 [B], how many tokens those are.
  """

  logits: jax.Array
  memory: Any
  seen: jax.Array
  position: jax.Array


def _advance(model, params, state, tokens, lengths):
  """The state after tokens[b, :lengths[b]] of int32 [B, T] in each row."""
  V, T = model.vocab_size, tokens.shape[1]
  logits, memory = model.apply(
    {'params': params},
    tokens,
    state.memory,
    lengths=lengths,
    last=True,
    method='logits',
  )
  real = jnp.arange(T) < lengths[:, None]  # [B, T]
  rows = jnp.arange(len(tokens))[:, None]
  return State(
    logits=jnp.where(
      lengths[:, None] > 0, logits.astype(jnp.float32), state.logits
    ),
    memory=memory,
    # Padding is written to the column V, which does not exist.
    seen=state.seen.at[rows, jnp.where(real, tokens, V)].set(True, mode='drop'),
    position=state.position + lengths,
  )


# What follows is compiled once per model (Linen modules with equal fields are
# equal) and shapes, whoever calls.


# The unused parameters place the state on their devices, where the states
# that follow are too: one placement is one compilation.
@functools.partial(jax.jit, static_argnames='model', keep_unused=True)
def _start(model, params):
  """The state of one row before its first token."""
  del params
  return State(
    logits=jnp.zeros([1, model.vocab_size], jnp.float32),
    memory=model.init_memory(1),
    seen=jnp.zeros([1, model.vocab_size], bool),
    position=jnp.zeros([1], jnp.int32),
  )


_read_segment = jax.jit(_advance, static_argnames='model')


@functools.partial(jax.jit, static_argnames=('model', 'sampling', 'chunk'))
def _decode_chunk(
  model, params, state, done, key, left, eos, *, sampling, chunk
):
  """Up to `chunk` tokens, no more than `left`, none in rows that are done.

  The number of steps is fixed, which keeps an accelerator from waiting for
  the host at each of them; steps past the end feed a segment of length 0.

  Returns:
    The state, done (bool [B]), and int32 [B, chunk], -1 where no token is.
  """

  def step(carry, t):
    state, done = carry
    live = (t < left) & ~done  # [B]
    tokens = draw(state, key, sampling)
    state = _advance(
      model, params, state, tokens[:, None], live.astype(jnp.int32)
    )
    return (state, done | (tokens == eos)), jnp.where(live, tokens, -1)

  (state, done), tokens = jax.lax.scan(step, (state, done), jnp.arange(chunk))
  return state, done, tokens.T


def prefill(
  model: base.LanguageModel,
  params: Any,
  tokens: Sequence[int] | np.ndarray,
  *,
  segment_len: int,
  state: State | None = None,
) -> State:
  """Reads tokens, the same into every row.

  The last segment is padded: one compiled shape serves every length.

  Args:
    model: at test time, unbound, see `models.base`.
    params: its parameters.
    tokens: int [n].
    segment_len: T.
    state: the State to continue from; None starts a text, with one row.

  Returns:
    The State after the tokens.

  Raises:
    ValueError: no token although none came before, or one outside [0, V).
  """
  tokens = np.asarray(tokens, np.int32)
  V = model.vocab_size
  if state is None and not len(tokens):
    raise ValueError('a text starts with at least one token, got none')
  now: State = _start(model, params) if state is None else state
  outside = tokens[(tokens < 0) | (tokens >= V)]
  if len(outside):
    raise ValueError(f'token {outside[0]}: allowed are 0 to {V - 1}')
  B = len(now.position)
  for start in range(0, len(tokens), segment_len):
    segment = tokens[start : start + segment_len]
    padded = np.zeros([B, segment_len], np.int32)
    padded[:, : len(segment)] = segment
    lengths = np.full([B], len(segment), np.int32)
    now = _read_segment(model, params, now, padded, lengths)
  return now


def repeat_rows(model: base.LanguageModel, state: State, B: int) -> State:
  """A state of one row as one of B equal rows."""
  return State(
    logits=jnp.repeat(state.logits, B, 0),
    memory=base.repeat_rows(model, state.memory, B),
    seen=jnp.repeat(state.seen, B, 0),
    position=jnp.repeat(state.position, B, 0),
  )


def decode(
  model: base.LanguageModel,
  params: Any,
  state: State,
  *,
  sampling: Sampling,
  max_new_tokens: int,
  seed: int,
  chunk: int = 16,
  eos: int | None = None,
) -> Iterator[tuple[np.ndarray, State]]:
  """Yields new tokens and the state after exactly these, chunk by chunk.

  The token at position i of row b is drawn with a key made of (seed, b, i)
  alone: chunk, B and earlier calls do not change it. (Another B or T may
  change the last digits of the logits.)

  Args:
    model: at test time, unbound, see `models.base`.
    params: its parameters.
    state: a State, from `prefill` or from here.
    sampling: a Sampling.
    max_new_tokens: per row.
    seed: int.
    chunk: tokens made per call of the device, at most.
    eos: token id that ends its row, itself included; None for no such id.

  Yields:
    int32 numpy array [B, n] with 1 <= n <= chunk, -1 in rows that ended
    before the others; and the State after it.
  """
  # With rbg keys, a row's bits would depend on the number of rows.
  key = jax.random.key(seed, impl='threefry2x32')
  done = state.position < 0  # none, on the devices of the state
  for start in range(0, max_new_tokens, chunk):
    if np.all(done):
      return
    state, done, tokens = _decode_chunk(
      model,
      params,
      state,
      done,
      key,
      max_new_tokens - start,
      -1 if eos is None else eos,
      sampling=sampling,
      chunk=chunk,
    )
    tokens = np.asarray(tokens)
    yield tokens[:, np.any(tokens >= 0, axis=0)], state


def generate(
  model: base.LanguageModel,
  params: Any,
  prompt: Sequence[int] | np.ndarray,
  *,
  sampling: Sampling,
  max_new_tokens: int,
  seed: int,
  segment_len: int,
  samples: int = 1,
  chunk: int = 16,
  start: int | None = None,
  eos: int | None = None,
) -> Iterator[np.ndarray]:
  """What follows a prompt, chunk by chunk.

  Args:
    model: at test time, unbound, see `models.base`.
    params: its parameters.
    prompt: int [n], read once for all samples.
    sampling: a Sampling.
    max_new_tokens: per sample.
    seed: int; the same seed gives the same text (see `decode`).
    segment_len: T, of the segments that the prompt is read in.
    samples: B.
    chunk: tokens made per call of the device, at most.
    start: token id that an empty prompt is replaced by, one after which a
      text begins: a newline, or <eos>. It is not among the tokens returned.
    eos: token id that ends its sample; None for no such id.

  Returns:
    An iterator over the int32 numpy arrays [samples, <= chunk] of `decode`.

  Raises:
    ValueError: as in `prefill`, or an empty prompt without `start`.
  """
  if not len(prompt) and start is not None:
    prompt = [start]
  state = prefill(model, params, prompt, segment_len=segment_len)
  pieces = decode(
    model,
    params,
    repeat_rows(model, state, samples),
    sampling=sampling,
    max_new_tokens=max_new_tokens,
    seed=seed,
    chunk=chunk,
    eos=eos,
  )
  return (tokens for tokens, _ in pieces)
