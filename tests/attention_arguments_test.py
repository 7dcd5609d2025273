"""Arguments of `txl_jax.attention` that do not fit are told by their names."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax import attention
from txl_jax.ops import kernels

B, T, M, H, K = 2, 4, 3, 2, 8
S = M + T
GOOD = dict(q=(B, T, H, K), k=(B, S, H, K), v=(B, S, H, K), r=(S, H, K))
GOOD |= dict(u=(H, K), v_bias=(H, K), b=(S, H))
refused = functools.partial(pytest.raises, ValueError)


def of_ones(**changes):
  """The attention of `kernels`; changes are shapes, and options."""
  arrays = {k: jnp.ones(changes.pop(k, shape)) for k, shape in GOOD.items()}
  return kernels.relative_attention(**arrays, **changes)


def call(**shapes):
  arrays = {k: jnp.zeros(shape) for k, shape in (GOOD | shapes).items()}
  mask = attention.visibility(T, M, jnp.array([3, 0]))
  return attention.relative_attention(**arrays, mask=mask)


@pytest.mark.parametrize(
  'name, shape, allowed',
  [
    ('q', (T, H, K), r'\[B, T, H, K\]'),
    ('k', (B, S, 3, K), r'\[B, S, H, K\] with B = 2, H = 2, K = 8'),
    ('k', (1, S, H, K), r'\[B, S, H, K\] with B = 2, H = 2, K = 8'),
    ('v', (B, S, H, 5), r'\[B, S, H, K\] with B = 2, S = 7, H = 2, K = 8'),
    ('r', (T, H, K), r'\[S, H, K\] with S = 7, H = 2, K = 8'),
    ('u', (H,), r'\[H, K\] with H = 2, K = 8'),
    ('v_bias', (K, H), r'\[H, K\] with H = 2, K = 8'),
    ('b', (S, 1), r'\[S, H\] with S = 7, H = 2'),
  ],
)
def test_wrong_shapes(name, shape, allowed):
  found = ', '.join(map(str, shape))
  message = rf'^{name} is \[{found}\]; allowed: .*{allowed}'
  with refused(match=message):
    call(**{name: shape})
  with refused(match=message):
    of_ones(**{name: shape})


def test_fewer_keys_than_queries():
  few = dict(k=(B, 3, H, K), v=(B, 3, H, K), r=(3, H, K), b=(3, H))
  for function in call, of_ones:
    with refused(match=r'^k is .* S at least T = 4, the mem'):
      function(**few)


@pytest.mark.parametrize(
  'shape, rows', [((B, T, T), 2), ((3, T, S), 2), ((T, S), 2), ((1, T, 9), 1)]
)
def test_a_mask_of_another_shape(shape, rows):
  mask, scores = jnp.ones(shape, bool), jnp.zeros([B, H, T, S])
  *arrays, _ = (jnp.zeros(x) for x in GOOD.values())
  message = (
    rf'^mask is \[.*\]; allowed: \[B, T, S\] with B = {rows}, T = 4, S = 7$'
  )
  with refused(match=message):
    attention.relative_attention(*arrays, mask)
  with refused(match=message):
    attention.attend(scores, arrays[2], mask)


@pytest.mark.parametrize(
  'memory, states, lengths, message',
  [
    ((3,), (B, T, 5), None, r'memory is \[3\]; allowed: \[B, M\]'),
    ((B, M, 5), (B, T, 4), None, r'states is .* with B = 2, D = 5$'),
    ((B, M, 5), (1, T, 5), None, r'states is .* with B = 2, D = 5$'),
    ((B, M, 5), (B, T, 5), (3,), r'lengths is \[3\]; allowed: \[B\] with'),
  ],
)  # fmt: skip
def test_memory_and_states(memory, states, lengths, message):
  lengths = None if lengths is None else jnp.zeros(lengths, int)
  with refused(match=message):
    attention.update_memory(jnp.zeros(memory), jnp.zeros(states), lengths)


def test_other_functions():
  with refused(match=r'^filled is \[2, 1\]; allowed: \[B\]'):
    attention.visibility(T, M, jnp.zeros([2, 1], int))
  for shape in [5, 4], [5]:
    with refused(match=rf'^x is {re.escape(str(shape))}; allowed: .* T <= S'):
      attention.relative_shift(jnp.zeros(shape))


class Tensor:
  """An array of another library, with a dtype that NumPy does not know."""

  shape, dtype = (2,), object()


NO_ARRAYS = {
  'list': lambda x: x.tolist(),
  'float': lambda x: 1.0,
  'str': lambda x: '1',
  'Tensor': lambda x: Tensor(),
}
DTYPES = {
  'complex64': lambda x: x + 0j,
  'float32': lambda x: x,
  'int32': lambda x: x.astype(jnp.int32),
  'bool': lambda x: x > 0,
  'object': lambda x: np.array(x, object),
}


def refuses(function, name, x, allowed, but=()):
  """function(x) is refused if x is no array, or of no allowed kind."""
  for kind, wrong in NO_ARRAYS.items():
    found = rf"^{name} is <class '.*{kind}'>; allowed: an array$"
    with refused(match=found):
      function(wrong(x))
  for kind, wrong in DTYPES.items():
    if kind not in but:
      message = f'^{name} is {kind}; allowed: {allowed}$'
      with refused(match=message):
        function(wrong(x))


floats = functools.partial(refuses, allowed='floating', but=['float32'])
integers = functools.partial(refuses, allowed='integer', but=['int32'])


@pytest.mark.parametrize('name', GOOD)
def test_only_floats_have_attention(name):
  """With complex numbers, results were wrong by more than their size."""
  arrays = {k: jnp.ones(shape) for k, shape in GOOD.items()}
  mask, x = attention.visibility(T, M), arrays[name]
  masked = functools.partial(attention.relative_attention, mask=mask)
  for function in masked, kernels.relative_attention:
    floats(lambda x, f=function: f(**arrays | {name: x}), name, x)
  if name == 'v':
    scores = jnp.ones([B, H, T, S])
    floats(lambda x: attention.attend(scores, x, mask), name, x)
    return
  del arrays['v']
  floats(lambda x: attention.relative_scores(**arrays | {name: x}), name, x)
  if name in 'qk':
    q, k = arrays['q'], arrays['k']
    of = dict(q=lambda x: (x, k), k=lambda x: (q, x))[name]
    floats(lambda x: attention.content_scores(*of(x)), name, x)


@pytest.mark.parametrize(
  'function', ['probabilities', 'exponentials', 'attend']
)
def test_scores_are_floats_and_masks_bool(function):
  v = [jnp.ones(GOOD['v'])] if function == 'attend' else []
  run = lambda scores, mask: getattr(attention, function)(scores, *v, mask)
  scores, mask = jnp.ones([B, H, T, S]), jnp.ones([1, T, S])
  floats(lambda x: run(x, mask > 0), 'scores', scores)
  refuses(lambda x: run(scores, x), 'mask', mask, 'bool', but=['bool'])
  with refused(match=r'^mask is \[2, 7\]; allowed: \[B, T, S'):
    run(scores, mask[0, :2] > 0)
  with refused(match=r'^scores is \[4, 7\]; allowed: \[B, H, '):
    run(scores[0, 0], mask > 0)


def test_filled_slots_and_lengths_are_integers():
  arrays = {k: jnp.ones(shape) for k, shape in GOOD.items()}
  memory, states = jnp.ones([B, M]), jnp.ones([B, T])
  ones = jnp.ones([B])
  kernel = functools.partial(kernels.relative_attention, **arrays)
  update = functools.partial(attention.update_memory, memory, states)
  integers(lambda x: attention.visibility(T, M, x), 'filled', ones)
  integers(lambda x: kernel(filled=x), 'filled', ones)
  integers(lambda x: update(lengths=x), 'lengths', ones)


def test_memory_can_hold_the_states():
  memory, states = jnp.ones([B, M]), jnp.ones([B, T])
  every = ['complex64', 'float32', 'int32', 'bool']
  for n, (kind, allowed) in enumerate(
    zip(every, ['complexfloating', 'inexact', 'number', ''])
  ):
    x = DTYPES[kind](states)
    update = lambda memory, x=x: attention.update_memory(memory, x)
    for held in every[: n + 1]:
      assert update(DTYPES[held](memory)).dtype == held
    if allowed:
      refuses(
        update, 'memory', memory, allowed, but=[*every[: n + 1], 'object']
      )


def test_arrays_of_dropout_and_of_the_shift():
  x, key = jnp.ones([2, 3]), jax.random.key(0)
  for rate in 0.5, 0.0:
    floats(lambda x, rate=rate: attention.dropout(x, rate, key), 'x', x)
  keep = lambda x: attention.keep(x, jnp.ones([2], jnp.uint32), 0.5)
  refuses(keep, 'index', x, 'uint32')
  for wrong in NO_ARRAYS.values():
    with refused(match=r'^x is <class .*; allowed: an array$'):
      attention.relative_shift(wrong(x))
  wrong = [
    -0.1,
    1.0,
    math.inf,
    math.nan,
    '0.5',
    b'0.5',
    [0.5],
    0.5j,
    None,
    True,
  ]
  for rate in wrong:
    found = re.escape(str(rate))
    with refused(match=rf'^dropout rate is {found}; allowed: a float'):
      attention.dropout(x, rate, key)
  for drop in (
    lambda rate: attention.dropout(x, rate, key),
    lambda rate: of_ones(dropout_rate=rate),
  ):
    with refused(match=r'^dropout rate is .*Tracer.*; allowed: a float'):
      jax.jit(drop)(0.5)
  with refused(match=r'^dropout_key is 0; allowed: one'):
    of_ones(dropout_rate=0.5, dropout_key=0)
  for rate in np.float32(0.5), jnp.float32(0.5), np.array(0.5):
    assert attention.dropout(x, rate, key).dtype == jnp.float32


def test_distances_of_sinusoids():
  for x in 1j, True:
    with refused(match=r'^d is \S+; allowed: floating$'):
      attention.sinusoid(np.array([x, x]), 4)
  for x, found in (jnp.ones([3, 1]), r'\[3, 1\]'), (np.float32(1), r'\[\]'):
    with refused(match=rf'^d is {found}; allowed: \[S\]$'):
      attention.sinusoid(x, 4)
  for x in None, '1', Tensor():
    with refused(match=r'^d is .*; allowed: an array$'):
      attention.sinusoid(x, 4)
  expected = attention.sinusoid(jnp.array([2.0, 1.0]), 4)
  for x in [2, 1], (2.0, 1.0), np.array([2, 1], np.uint8), np.array([2.0, 1]):
    np.testing.assert_array_equal(attention.sinusoid(x, 4), expected)


NO_COUNTS = [True, np.True_, jnp.array(True), 2.0, np.float32(2), '2', [2], 2j]


@pytest.mark.parametrize('n', [*NO_COUNTS, 'traced'], ids=repr)
@pytest.mark.parametrize(
  'name, function',
  [
    ('T', lambda n: attention.visibility(n, 4)),
    ('M', lambda n: attention.visibility(2, n)),
    ('span', lambda n: attention.visibility(2, 4, span=n)),
    ('S', lambda n: attention.distances(n)),
    ('clamp_len', lambda n: attention.distances(2, n)),
    ('after', lambda n: attention.distances(2, after=n)),
    ('D', lambda n: attention.sinusoid(jnp.ones([2]), n)),
    ('span', lambda n: of_ones(span=n)),
  ],
  ids=[*'TMv', *'Sca', 'D', 'kernels'],
)
def test_counts_are_integers(name, function, n):
  message = rf'^{name} is .*; allowed: an int, at least'
  if (name, n) == ('span', 'traced'):  # a mask may have a traced one
    function = lambda n: of_ones(span=n)
  with refused(match=message):
    jax.jit(function)(2) if n == 'traced' else function(n)


@pytest.mark.parametrize('n', [2, np.int8(2), jnp.int32(2), np.array(2)])
def test_integers_of_any_type(n):
  np.testing.assert_array_equal(
    attention.visibility(n, n, span=n), attention.visibility(2, 2, span=2)
  )
  assert attention.distances(n, n, after=n).tolist() == [1, 0, -1, -2]
  assert attention.distances(2, -1).tolist() == [1, 0]  # as some write it
  np.testing.assert_array_equal(of_ones(span=n), of_ones(span=2))


@pytest.mark.thorough
@pytest.mark.parametrize('dtype', ['int8', 'uint8', 'int16', 'int32'])
def test_filled_slots_of_any_type(dtype):
  """M - filled is computed in int32: in int8, 200 - 3 is -59."""
  T, M, filled = 3, 200, [3, 100]
  mask = attention.visibility(T, M, jnp.array(filled, dtype))
  for row, n in zip(mask, filled):
    for i, sees in enumerate(row):
      assert np.flatnonzero(sees).tolist() == [*range(M - n, M + i + 1)]
  rng, shapes = np.random.default_rng(0), [(2, T), (2, M + T), (2, M + T)]
  arrays = [rng.normal(size=[*s, 1, 64]) for s in [*shapes, (M + T,), ()]]
  q, k, v, r, u = (jnp.array(x, jnp.float32) for x in arrays)
  given = q, k, v, r, u, u
  found = kernels.relative_attention(*given, filled=jnp.array(filled, dtype))
  expected = kernels.relative_attention(*given, filled=jnp.array(filled))
  np.testing.assert_array_equal(found, expected)


def test_no_such_span_or_implementation():
  with refused(match=r'^span is 0; allowed: an int, at least 1'):
    of_ones(span=0)
  with refused(match=r'^M is -1; allowed: an int, at least 0$'):
    attention.visibility(2, -1)
  with refused(match=r'^clamp_len is -2; allowed: an int, at least -1$'):
    attention.distances(2, -2)
  allowed = 'None, xla, triton, tpu, tpu_shift'
  with refused(match=f"^implementation is 'flash'; allowed: {allowed}"):
    of_ones(implementation='flash')
  for wrong in ['xla'], 1, True:
    with refused(match=r'^implementation is .*; allowed: None'):
      of_ones(implementation=wrong)
