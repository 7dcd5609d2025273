"""A memory for agents: the gated Transformer-XL, trained with rewards.

GTrXL (Parisotto et al. 2019, arXiv 1910.06764) normalises the input of each
sublayer and replaces the residual sums by gates. In a layer with input x,

  y = gate(x, relu(Attention(LN(memory), LN(x))))
  out = gate(y, relu(FeedForward(LN(y))))

The task is a T-maze. At its first step the agent sees a cue, then it walks down
a corridor of distractors that is longer than a segment, and at the junction it
is rewarded if its action is the cue. Corridors vary in length, so episodes
begin anywhere in a segment.

  pip install -e .  # in a clone
  python examples/gtrxl.py  # a minute on two CPU cores

An agent with a memory is always right in the end, one without guesses.

Shapes
  B rows, T segment, M memory, S = M + T keys, D model width, A actions,
  O width of an observation.
"""

import argparse
import dataclasses
import time
from typing import Any, ClassVar

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from txl_jax import attention
from txl_jax.models import stack, transformer_xl
from txl_jax.program.settings import key

A, O = 4, 6  # an observation: first step, junction, one-hot signal
CORRIDOR = 10, 30  # shortest and longest
B, T, M = 64, 8, 32


@dataclasses.dataclass(frozen=True)
class Config(transformer_xl.Config):
  """Keys of `GTrXL`; those of dropout have no effect."""

  pre_norm: ClassVar[bool] = True
  gate_bias: float = key(
    2.0, 'Initial b of the gates, which return almost x at first.', above=0
  )


class Gate(nn.Module):
  """A GRU whose state is x and whose input is y: (1 - z) x + z h.

  r = sigmoid(W_r y + U_r x)
  z = sigmoid(W_z y + U_z x - b)
  h = tanh(W_h y + U_h (r x))
  """

  config: Any

  @nn.compact
  def __call__(self, x, y):
    c = self.config

    def W(name, states):
      return stack.product(c, c.d_model, use_bias=False, name=name)(states)

    b = self.param('b', nn.initializers.constant(c.gate_bias), (c.d_model,))
    r = nn.sigmoid(W('w_r', y) + W('u_r', x))
    z = nn.sigmoid(W('w_z', y) + W('u_z', x) - b)
    h = nn.tanh(W('w_h', y) + W('u_h', r * x))
    return (1 - z) * x + z * h


class Attention(transformer_xl.Attention):
  """Attention with any mask, bool [B, T, S], in the place of `filled`."""

  def attend(self, q, k, v, terms, filled, bits):
    return attention.relative_attention(q, k, v, *terms[:3], filled)


class Layer(transformer_xl.Layer):
  """A pre-norm layer with gates, without dropout."""

  ATTENTION = Attention

  def setup(self):
    super().setup()
    self.gate1, self.gate2 = Gate(self.config), Gate(self.config)

  def after_attention(self, x, attended, bits=None):
    y = self.gate1(x, nn.relu(attended))
    return self.gate2(y, nn.relu(self.ff(self.norm2(y))))


class Memory(flax.struct.PyTreeNode):
  """Past inputs of all layers, and their episodes."""

  states: Any  # [N, B, M, D], oldest first
  episodes: Any  # int32 [B, M], numbers from 0; -1 in an empty slot


class GTrXL(transformer_xl.TransformerXL):
  """An agent; `vocab_size` is its number of actions A.

  It reads observations; inherited methods that read tokens do not apply.
  """

  Config = Config
  LAYER = Layer

  def setup(self):
    super().setup()
    c = self.config
    self.see = stack.product(c, c.d_model)
    self.policy, self.value = (
      stack.product(c, n) for n in (self.vocab_size, 1)
    )

  def init_memory(self, batch_size):
    empty = jnp.full([batch_size, self.config.mem_len], -1, jnp.int32)
    return Memory(self._zeros(batch_size), empty)

  def row_axes(self):
    return Memory(1, 0)

  def __call__(self, observations, first, memory):
    """Steps see the last M and themselves, if of the same episode.

    Args:
      observations: float [B, T, O].
      first: bool [B, T], which steps begin an episode.
      memory: a Memory.

    Returns:
      Logits of the policy [B, T, A], values [B, T], and the new memory.
    """
    c, T = self.config, first.shape[1]
    last = jnp.max(memory.episodes, axis=1, keepdims=True, initial=0)
    now = last + jnp.cumsum(first, axis=1, dtype=jnp.int32)  # [B, T]
    keys = jnp.concatenate([memory.episodes, now], axis=1)  # [B, S]
    mask = attention.visibility(T, c.mem_len, None, c.span)
    mask &= now[:, :, None] == keys[:, None]
    shared = self.positions(c.mem_len + T, False), mask, None
    h = self.see(observations)
    h, states, _ = stack.run(self.layers, h, memory.states, shared, None)
    episodes = attention.update_memory(memory.episodes, now)
    return self.policy(h), self.value(h)[..., 0], Memory(states, episodes)


def build(mem_len=M):
  """The agent; with mem_len = 0, it sees the current segment only."""
  return GTrXL(
    A,
    Config(
      n_layer=2,
      d_model=32,
      n_head=2,
      d_head=16,
      d_ff=64,
      mem_len=mem_len,
      # So that an agent that acts with T = 1 does as in training.
      same_length='M+1' if mem_len else 'off',
      init_std=0.2,
    ),
  )


def maze(seed):
  """Yields steps of B endless rows of episodes.

  Each is (observation [B, O], first [B], answer [B]); the answer is the right
  action at the junction, elsewhere -1.
  """
  rng = np.random.default_rng(seed)
  left, cue, rows = np.zeros(B, int), np.zeros(B, int), np.arange(B)
  while True:
    first = left == 0
    shortest, longest = CORRIDOR
    lengths = rng.integers(shortest + 2, longest + 3, B)  # with both ends
    signal = rng.integers(0, A, B)
    left, cue = np.where(first, (lengths, signal), (left, cue))
    left -= 1
    end = left == 0
    observation = np.zeros([B, O], np.float32)
    observation[:, 0], observation[:, 1] = first, end
    observation[rows, 2 + signal] = ~end
    yield observation, first, np.where(end, cue, -1)


def segments(seed, length=T):
  """Yields segments of `maze`: arrays [B, length, ...]."""
  steps = maze(seed)
  while True:
    yield tuple(
      np.stack(x, axis=1) for x in zip(*(next(steps) for _ in range(length)))
    )


def train(agent, updates, seed=0, every=100):
  """Policy gradients; prints the rate of success. Returns the parameters."""
  memory, tx = agent.init_memory(B), optax.adam(1e-3)
  stream, rng = segments(seed), jax.random.key(seed)
  params = agent.init(rng, *next(stream)[:2], memory)
  opt_state = tx.init(params)

  @jax.jit
  def update(params, opt_state, memory, segment, rng):
    observations, first, answer = segment
    asked = answer >= 0

    def loss(params):
      logits, value, new = agent.apply(params, observations, first, memory)
      log_p = jax.nn.log_softmax(logits)
      action = jax.random.categorical(rng, logits)
      chosen = jnp.take_along_axis(log_p, action[..., None], axis=-1)[..., 0]
      reward = jnp.where(action == answer, 1.0, 0.0)
      advantage = reward - value
      entropy = -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
      each = -jax.lax.stop_gradient(advantage) * chosen
      each += 0.5 * advantage**2 - 0.01 * entropy
      count = jnp.maximum(jnp.sum(asked), 1)
      return jnp.sum(each * asked) / count, (new, jnp.sum(reward * asked))

    grads, (memory, rewards) = jax.grad(loss, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state)
    params = optax.apply_updates(params, updates)
    return params, opt_state, memory, jnp.stack([rewards, jnp.sum(asked)])

  total = 0
  for n in range(1, updates + 1):
    params, opt_state, memory, counts = update(
      params, opt_state, memory, next(stream), jax.random.fold_in(rng, n)
    )
    total += counts
    if n % every == 0:
      print(f'  update {n}: {total[0] / total[1]:.0%}', flush=True)
      total = 0
  return params


def success(agent, params, steps=400, length=T, seed=1):
  """Rate of right answers of the likeliest actions, in other episodes.

  The agent reads `length` steps at a time, 1 as when it acts.
  """
  memory, apply, right, asked = agent.init_memory(B), jax.jit(agent.apply), 0, 0
  stream = segments(seed, length)
  for _ in range(steps // length):
    observations, first, answer = next(stream)
    logits, _, memory = apply(params, observations, first, memory)
    right += np.sum(np.argmax(logits, axis=-1) == answer)
    asked += np.sum(answer >= 0)
  return right / asked


def main():
  """Trains both agents; chance is 25%."""
  parser = argparse.ArgumentParser(description='A T-maze with a memory.')
  parser.add_argument('--updates', type=int, default=600)
  parser.add_argument('--seed', type=int, default=0)
  flags = parser.parse_args()
  # Without a memory, the agent reads whole segments also when it is tested.
  for name, mem_len, length in (('with', M, 1), ('without', 0, T)):
    print(f'{name} memory', flush=True)
    agent, start = build(mem_len), time.perf_counter()
    params = train(agent, flags.updates, flags.seed)
    seconds = time.perf_counter() - start
    rate = success(agent, params, length=length)
    print(f'{name} memory: {rate:.1%} right, trained for {seconds:.0f} s')


if __name__ == '__main__':
  main()
