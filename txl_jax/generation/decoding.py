"""Text from a language model: read a prompt, then draw token after token.

Shapes: B rows (samples), V vocabulary, n prompt tokens, T segment length.

`generate` continues a prompt. `prefill` and `decode` are its two halves; a
dialogue calls them in turn and passes the `State` along:

  variables = base.freeze(model, params)
  state = prefill(model, variables, question, segment_len=128)
  for tokens, now in decode(model, variables, state, ...):
    ...
  state = prefill(model, variables, answer, segment_len=128, state=now)

A state holds the logits of the next token, and in its memory every token before
that one, so any state can be continued without feeding a token twice. Prompts
are read in segments of T tokens: once a text is longer than the memory, what a
token sees depends on T.
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
from txl_jax.program import target_device


class State(flax.struct.PyTreeNode):
  """Everything needed to continue decoding."""

  logits: jax.Array  # float32 [B, V], of the next token of each row
  memory: Any  # of the model, after all tokens so far
  seen: jax.Array  # bool [B, V], which tokens have occurred in the row
  position: jax.Array  # int32 [B], how many tokens the row has so far


def _advance(model, variables, state, tokens, lengths, to_rewind=False):
  """The state after tokens[b, :lengths[b]] of int32 [B, T] in each row.

  If the memory is to be rewound later, it is as if all tokens were real.
  """
  real = None if to_rewind else lengths
  options = dict(lengths=real, last=True, method='logits')
  logits, memory = model.apply(variables, tokens, state.memory, **options)
  n = lengths[:, None]
  logits = jnp.where(n > 0, logits.astype(jnp.float32), state.logits)
  # Padding is written to the column V, which does not exist.
  columns = jnp.where(jnp.arange(tokens.shape[1]) < n, tokens, model.vocab_size)
  rows = jnp.arange(len(tokens))[:, None]
  seen = state.seen.at[rows, columns].set(True, mode='drop')
  return State(logits, memory, seen, state.position + lengths)


# The following is compiled once per model (Linen modules with equal fields are
# equal) and shapes, whoever calls. The unused variables place the state on
# their devices, where later states are too: each placement costs one
# compilation.
@functools.partial(jax.jit, static_argnames='model', keep_unused=True)
def _start(model, variables):
  """The state of one row before its first token."""
  del variables
  logits = jnp.zeros([1, model.vocab_size], jnp.float32)
  seen, position = jnp.zeros_like(logits, bool), jnp.zeros([1], jnp.int32)
  return State(logits, model.init_memory(1), seen, position)


def _chunk(model, variables, state, done, key, left, ends, sampling, chunk):
  """The state, done (bool [B]), and tokens int32 [B, chunk], -1 for none.

  The number of steps is fixed, so that an accelerator need not wait for the
  host at each of them; steps past the end feed a segment of length 0, or, if
  the memory can rewind, a token that is taken back at the end.
  """
  rewinds, before = model.rewinds() >= chunk, state.position

  def step(carry, t):
    state, done = carry
    live = (t < left) & ~done  # [B]
    tokens = draw(state, key, sampling)
    given = tokens[:, None], live.astype(jnp.int32), rewinds
    state = _advance(model, variables, state, *given)
    done |= jnp.isin(tokens, ends)
    return (state, done), jnp.where(live, tokens, -1)

  (state, done), tokens = jax.lax.scan(step, (state, done), jnp.arange(chunk))
  if rewinds:
    more = chunk - (state.position - before)
    state = state.replace(memory=model.rewind(state.memory, more))
  return state, done, tokens.T


@functools.cache
def _compiled_chunk(platform):
  # XLA prefers registers of half this width, with which products with one row
  # read memory more slowly (docs/benchmarks.md).
  wide = {'xla_cpu_prefer_vector_width': 512}
  return jax.jit(
    _chunk,
    static_argnames=('model', 'sampling', 'chunk'),
    donate_argnames='state',
    compiler_options=wide if platform == 'cpu' else None,
  )


@functools.partial(jax.jit, static_argnames='model', donate_argnames='state')
def _read_segment(model, variables, state, tokens, lengths):
  return _advance(model, variables, state, tokens, lengths)


@jax.jit
def _copy(state):
  """A copy, for a call that uses up its state by overwriting the memory."""
  return jax.tree.map(jnp.copy, state)


def prefill(
  model: base.LanguageModel,
  variables: Any,
  tokens: Sequence[int] | np.ndarray | Sequence[Sequence[int] | np.ndarray],
  *,
  segment_len: int,
  state: State | None = None,
) -> State:
  """Reads int [n] into every row, or [n_b] into row b; the State after them.

  The last segment of a row is padded: one compiled shape serves every length,
  and a row becomes what it would be alone. The model is at test time, unbound;
  the variables are from `base.freeze`. Without a state a new text starts, with
  one row, or as many as there are texts. ValueError if its first token is
  missing, or a token is not in [0, V).
  """
  several = len(tokens) > 0 and np.ndim(tokens[0]) == 1
  texts = [np.asarray(x, np.int32) for x in (tokens if several else [tokens])]
  V, longest = model.vocab_size, max(map(len, texts))
  if state is None and not min(map(len, texts)):
    raise ValueError('a text starts with at least one token, got none')
  every = np.concatenate(texts)
  outside = every[(every < 0) | (every >= V)]
  if len(outside):
    raise ValueError(f'token {outside[0]}: allowed are 0 to {V - 1}')
  if state is None:
    now = repeat_rows(model, _start(model, variables), len(texts))
  else:
    now = _copy(state)
  B = len(now.position)
  if not several:
    texts *= B
  for start in range(0, longest, segment_len):
    segments = [x[start : start + segment_len] for x in texts]
    lengths = np.array([len(x) for x in segments], np.int32)
    rows = [np.pad(x, (0, segment_len - len(x))) for x in segments]
    now = _read_segment(model, variables, now, np.stack(rows), lengths)
  return now


def repeat_rows(model: base.LanguageModel, state: State, B: int) -> State:
  """A state of B equal rows, made from a state of one row."""
  memory = model.repeat_rows(state.memory, B)
  rows = jax.tree.map(lambda x: jnp.repeat(x, B, 0), state.replace(memory=()))
  return rows.replace(memory=memory)


def decode(
  model: base.LanguageModel,
  variables: Any,
  state: State,
  *,
  sampling: Sampling,
  max_new_tokens: int,
  seed: int,
  chunk: int = 16,
  ends: Sequence[int] = (),
  keep: bool = True,
) -> Iterator[tuple[np.ndarray, State]]:
  """Yields new tokens and the state after exactly these, chunk by chunk.

  The tokens are numpy int32 [B, n], n from 1 to `chunk`; -1 in rows that ended
  before the others. A row ends after max_new_tokens, or after one of the token
  ids `ends`, itself included. Without `keep`, memory is overwritten instead of
  copied: the given state and those yielded are used up, except the last.

  The token at position i of row b is drawn with a key made only from
  (seed, b, i): chunk, B and earlier calls do not change it. (Another B or T may
  change the last digits of the logits.)
  """
  # With rbg keys, a row's bits would depend on the number of rows.
  key = jax.random.key(seed, impl='threefry2x32')
  last = np.array([*ends] or [-1], np.int32)
  compiled = _compiled_chunk(target_device.device().platform)

  def dispatch(state):
    done = state.position < 0  # all False, on the devices of the state
    for start in range(0, max_new_tokens, chunk):
      state, done, tokens = compiled(
        model, variables, _copy(state) if keep else state,
        done, key, max_new_tokens - start, last, sampling, chunk,
      )  # fmt: skip
      yield state, done, tokens

  # The next call is dispatched before the tokens of this one are read, so that
  # the device need not wait for the host.
  calls = dispatch(state)
  call = next(calls, None)
  while call:
    (now, done, tokens), call = call, next(calls, None)
    if np.all(done):
      if call and not keep:
        now, *_ = call  # equal to the state before, which is used up
      call = None
    tokens = np.asarray(tokens)
    yield tokens[:, np.any(tokens >= 0, axis=0)], now


def generate(
  model: base.LanguageModel,
  params: Any,
  prompt: Sequence[int] | np.ndarray | Sequence[Sequence[int] | np.ndarray],
  *,
  segment_len: int,
  samples: int = 1,
  **options: Any,
) -> Iterator[np.ndarray]:
  """What follows a prompt, int [n]: the tokens of `decode`, chunk by chunk.

  The prompt is read once, for all samples. With several prompts, of any
  lengths, the samples of the first come first.
  """
  variables = base.freeze(model, params)
  state = prefill(model, variables, prompt, segment_len=segment_len)
  state = repeat_rows(model, state, samples)
  states = decode(model, variables, state, **options, keep=False)
  return (tokens for tokens, _ in states)
