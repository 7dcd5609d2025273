"""Autoregressive decoding: reads a prompt, then samples token by token.

Shapes: B rows (samples), V vocabulary, n prompt tokens, T segment length.

`generate` continues a prompt. It consists of `prefill` and `decode`, which a
dialogue calls in turn, passing the `State` along:

  variables = base.freeze(model, params)
  state = prefill(model, variables, question, segment_len=128)
  for tokens, state in decode(model, variables, state, ...):
    ...
  state = prefill(model, variables, answer, segment_len=128, state=state)

A state holds the logits of the next token and the memory of all tokens so far,
so decoding continues from any state without reading a token again. Prompts are
read in segments of T tokens; once a text is longer than the memory, the context
that a token sees depends on T.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from txl_jax.generation.sampling import Sampling, draw
from txl_jax.models import base, ring_model
from txl_jax.program import target_device

CHUNK = 16  # tokens that a row gets in one call


class State(flax.struct.PyTreeNode):
  """Everything needed to continue decoding."""

  logits: jax.Array  # float32 [B, V], for the next token of each row
  memory: Any  # the model's memory of all tokens so far
  seen: jax.Array  # bool [B, V], tokens that have occurred in the row
  position: jax.Array  # int32 [B], number of tokens in the row so far


def _advance(model, variables, state, tokens, lengths, to_rewind=False):
  """The state after reading tokens[b, :lengths[b]] of int32 [B, T] in row b.

  With `to_rewind`, padding enters the memory too; the caller must rewind it.
  """
  real = None if to_rewind else lengths
  options = dict(lengths=real, last=True, method='logits')
  logits, memory = model.apply(variables, tokens, state.memory, **options)
  n = lengths[:, None]
  logits = jnp.where(n > 0, logits.astype(jnp.float32), state.logits)
  # mode='drop' ignores padding, which has the out-of-bounds column V.
  at = jnp.arange(tokens.shape[1])[None]
  columns = jnp.where(at < n, tokens, model.vocab_size)
  rows = jnp.arange(len(tokens))[:, None]
  seen = state.seen.at[rows, columns].set(True, mode='drop')
  return State(logits, memory, seen, state.position + lengths)


# The functions below compile once per model and shapes (Linen modules with
# equal fields are equal). In `start_state`, unused `variables` place the state
# on their devices; on others, later calls would recompile.
@functools.partial(jax.jit, static_argnames='model', keep_unused=True)
def start_state(model: base.LanguageModel, variables: Any) -> State:
  """The state of one row before its first token."""
  del variables
  logits = jnp.zeros([1, model.vocab_size], jnp.float32)
  seen = jnp.zeros_like(logits, bool)
  position = jnp.zeros([1], jnp.int32)
  return State(logits, model.init_memory(1), seen, position)


def _chunk(model, variables, state, done, key, left, ends, sampling, chunk):
  """Decodes `chunk` steps: state, done (bool [B]), tokens int32 [B, chunk].

  The number of steps is fixed, so the device never waits for the host between
  steps. Steps after the end of a row return token -1 and read a segment of
  length 0, or a token that is rewound at the end if the memory can rewind.
  """
  can_rewind = ring_model.rewindable(model) >= chunk
  before = state.position

  def step(carry, t):
    state, done = carry
    live = (t < left) & ~done  # [B]
    tokens = draw(state, key, sampling)
    segment = tokens[:, None], live.astype(jnp.int32), can_rewind
    state = _advance(model, variables, state, *segment)
    done |= jnp.isin(tokens, ends)
    return (state, done), jnp.where(live, tokens, -1)

  (state, done), tokens = jax.lax.scan(step, (state, done), jnp.arange(chunk))
  if can_rewind:
    excess = chunk - (state.position - before)
    state = state.replace(memory=model.rewind(state.memory, excess))
  return state, done, tokens.T


# Of XLA, by platform. On a CPU, matrix-vector products read memory more slowly
# with the default vector width, half of this (docs/benchmarks.md). For a TPU,
# XLA would turn them into sums, whose weights it cannot fetch beforehand.
_OPTIONS: dict[str, dict[str, Any]] = {
  'cpu': {'xla_cpu_prefer_vector_width': 512},
  'tpu': {'xla_tpu_enable_dot_strength_reduction': False},
}


@functools.cache
def compiled_chunk(platform: str) -> Any:
  """`_chunk`, jitted, with options for a platform such as 'cpu'."""
  return jax.jit(
    _chunk,
    static_argnames=('model', 'sampling', 'chunk'),
    donate_argnames='state',
    compiler_options=_OPTIONS.get(platform),
  )


@functools.partial(jax.jit, static_argnames='model', donate_argnames='state')
def _read_segment(model, variables, state, tokens, lengths):
  return _advance(model, variables, state, tokens, lengths)


@jax.jit
def _copy(state):
  """Copies a state, for a call that donates it."""
  return jax.tree.map(jnp.copy, state)


def prefill(
  model: base.LanguageModel,
  variables: Any,
  tokens: Sequence[int] | np.ndarray | Sequence[Sequence[int] | np.ndarray],
  *,
  segment_len: int,
  state: State | None = None,
) -> State:
  """Reads int [n] in all rows, or one sequence per row; returns the State.

  The last segment of a row is padded, so one compiled shape serves all lengths;
  a row does not depend on the other rows. The model is unbound and in test
  mode; the variables come from `base.freeze`. Without a state, new texts start,
  one for each token sequence. ValueError if a new text has no token, or a token
  is not in [0, V).
  """
  several = len(tokens) > 0 and np.ndim(tokens[0]) == 1
  texts = [np.asarray(x, np.int32) for x in (tokens if several else [tokens])]
  V = model.vocab_size
  longest = max(map(len, texts))
  if state is None and not min(map(len, texts)):
    raise ValueError('a new text needs at least one token, got none')
  ids = np.concatenate(texts)
  outside = ids[(ids < 0) | (ids >= V)]
  if len(outside):
    raise ValueError(f'token is {outside[0]}; allowed: 0 to {V - 1}')
  if state is None:
    now = repeat_rows(model, start_state(model, variables), len(texts))
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


def repeat_memory(model: base.LanguageModel, memory: Any, times: int) -> Any:
  """The memory with each row repeated `times` times in succession."""

  def leaf(axis, x, row):
    if axis == base.SHARED:
      return x
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    rows = x.reshape(*before, -1, row.shape[axis], *after)
    return jnp.repeat(rows, times, axis).reshape(*before, -1, *after)

  one = jax.eval_shape(lambda: model.init_memory(1))
  return jax.tree.map(leaf, model.row_axes(), memory, one)


def repeat_rows(model: base.LanguageModel, state: State, B: int) -> State:
  """Repeats a state of one row to B equal rows."""
  memory = repeat_memory(model, state.memory, B)
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
  chunk: int = CHUNK,
  ends: Sequence[int] = (),
  keep: bool = True,
) -> Iterator[tuple[np.ndarray, State]]:
  """Yields new tokens and the state after them, chunk by chunk.

  Tokens are numpy int32 [B, n] with 1 <= n <= chunk, and -1 in rows that have
  ended. A row ends after max_new_tokens or after a token id in `ends`, which is
  still yielded. With keep=False states are donated instead of copied: only the
  last yielded state remains usable.

  The key for position i of row b depends only on (seed, b, i), not on chunk, B
  or earlier calls. (B and T may affect the last digits of the logits.)
  """
  # With rbg keys, the random bits of a row would depend on B.
  key = jax.random.key(seed, impl='threefry2x32')
  end_ids = np.array([*ends] or [-1], np.int32)
  compiled = compiled_chunk(target_device.device().platform)

  def dispatch(state):
    done = state.position < 0  # all False, on the devices of the state
    for start in range(0, max_new_tokens, chunk):
      state, done, tokens = compiled(
        model, variables, _copy(state) if keep else state,
        done, key, max_new_tokens - start, end_ids, sampling, chunk,
      )  # fmt: skip
      yield state, done, tokens

  # The next call is dispatched before the tokens of this one are read, so the
  # device never waits for the host.
  calls = dispatch(state)
  call = next(calls, None)
  while call:
    (now, done, tokens), call = call, next(calls, None)
    if np.all(done):
      if call and not keep:
        now, *_ = call  # equal to the previous state, which was donated
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
  """Continues a prompt, int [n]; yields the tokens of `decode` in chunks.

  The prompt is read once for all samples. With several prompts, of any lengths,
  the rows are ordered by prompt, then sample.
  """
  variables = base.freeze(model, params)
  state = prefill(model, variables, prompt, segment_len=segment_len)
  state = repeat_rows(model, state, samples)
  states = decode(model, variables, state, **options, keep=False)
  return (tokens for tokens, _ in states)
