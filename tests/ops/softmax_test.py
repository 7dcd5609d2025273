"""The adaptive softmax against the full vocabulary in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from txl_jax.ops import softmax
from txl_jax.program import target_device

D, SIZES, WIDTHS = 6, (5, 4, 9, 3), (6, 4, 3, 2)
V, N = sum(SIZES), 37
EDGES = np.cumsum([0, *SIZES])


@pytest.fixture(autouse=True)
def x64():
  with jax.enable_x64(True):
    yield


def output(widths=WIDTHS, projected=True, seed=0, empty=0):
  rng = np.random.default_rng(seed)
  draw = lambda *shape: rng.normal(size=shape)
  return softmax.Output(
    [draw(v, d) for v, d in zip(SIZES, widths)],
    [draw(v) for v in SIZES],
    [draw(d, D) if projected else None for d in widths],
    draw(len(SIZES) - 1 + empty, widths[0]),
    draw(len(SIZES) - 1 + empty),
  )


PLAIN = functools.partial(output, widths=(D,) * len(SIZES), projected=False)
EMPTY = functools.partial(output, empty=2)  # two tails without words


def full(h, out, reverse=False):
  """[N, V]: log-probabilities, tail by tail, from the definition."""
  scores = []
  for w, b, p in zip(out.weights, out.biases, out.projections):
    scores.append((h if p is None else h @ p.T) @ w.T + b)
  p = out.projections[0]
  tails = (h if p is None else h @ p.T) @ out.tail_weights.T + out.tail_biases
  if reverse:
    tails = tails[:, ::-1]
  exps = [jnp.exp(s) for s in scores]
  total = exps[0].sum(-1) + jnp.exp(tails).sum(-1)
  parts = [exps[0] / total[:, None]]
  for i, e in enumerate(exps[1:]):
    share = jnp.exp(tails[:, i]) / total / e.sum(-1)
    parts.append(e * share[:, None])
  return jnp.log(jnp.concatenate(parts, axis=1))


def states(n=N, seed=1):
  return np.random.default_rng(seed).normal(size=[n, D])


def some(low, high, n=N):
  return np.random.default_rng(2).integers(low, high, n).astype(np.int32)


def one_in(tail):
  targets = some(0, SIZES[0])
  targets[11] = EDGES[tail] + 1
  return targets


CASES = {
  'random': some(0, V),
  'not_all_scored': np.where(some(0, 3) == 0, -1, some(0, V)),
  'none_scored': np.full(N, -1, np.int32),
  'all_in_the_head': some(0, SIZES[0]),
  **{f'all_in_tail_{i}': some(EDGES[i], EDGES[i + 1]) for i in (1, 2, 3)},
  **{f'one_in_tail_{i}': one_in(i) for i in (1, 2, 3)},
  'one_token': some(EDGES[2], EDGES[3], 1),
}


def direct_nll(h, targets, out, order):
  chosen = full(h, out, order == 'descending')[np.arange(len(h)), targets]
  return jnp.where(targets >= 0, -chosen, 0)


def our_nll(h, targets, out, order):
  return softmax.nll(h, targets, out, tail_order=order)


@functools.cache
def gradients(nll, order):
  """(h, out, targets, weight) -> gradients by h and out, and the nll."""

  def loss(h, out, targets, weight):
    losses = nll(h, targets, out, order)
    return jnp.sum(losses * weight), losses

  return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


@pytest.mark.default_cases('descending-empty-one_in_tail_1')
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize(
  'make', [output, PLAIN, EMPTY], ids=['projected', 'plain', 'empty']
)
@pytest.mark.parametrize('order', softmax.TAIL_ORDERS)
def test_nll_and_gradients(case, make, order):
  targets = CASES[case]
  h, out = states(len(targets)), make()
  # Weights of the tokens, so that each has a cotangent of its own.
  weight = np.random.default_rng(3).normal(size=len(targets))
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
  expected, nll = gradients(direct_nll, order)(h, out, targets, weight)
  grads, found = gradients(our_nll, order)(h, out, targets, weight)
  close(found, nll)
  jax.tree.map(close, grads, expected)


@pytest.mark.thorough
@pytest.mark.parametrize('order', softmax.TAIL_ORDERS)
@pytest.mark.parametrize('make', [output, EMPTY], ids=['all', 'empty'])
def test_logits(order, make):
  h, out = states(), make()
  of = lambda f: jax.jit(functools.partial(f, tail_order=order))
  found = of(softmax.logits)(h, out)
  expected = full(h, out, order == 'descending')
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
  if make is output:  # nothing is left for a tail without words
    np.testing.assert_allclose(jnp.exp(found).sum(-1), 1, rtol=1e-12)
  nll = of(softmax.nll)(h, some(0, V), out)
  np.testing.assert_allclose(-found[np.arange(N), some(0, V)], nll, atol=1e-10)


def embed_directly(tokens, tables, projections):
  rows = []
  for w in tokens:
    i = int(np.searchsorted(EDGES, w, side='right')) - 1
    x = tables[i][w - EDGES[i]]
    if projections:
      x = x @ projections[i if len(projections) > 1 else 0]
    rows.append(x)
  return rows


@jax.jit
def embedded(tokens, tables, projections, weight):
  """Our embeddings, and the gradients of their weighted sum."""

  def loss(tables, projections):
    x = softmax.embed(tokens, tables, projections, jnp.float64)
    return jnp.sum(x * weight), x

  grads, x = jax.grad(loss, argnums=(0, 1), has_aux=True)(tables, projections)
  return x, grads


@pytest.mark.default_cases('own-all_in_the_head')
@pytest.mark.parametrize('case', [c for c in CASES if 'scored' not in c])
@pytest.mark.parametrize('kind', ['own', 'shared', 'none'])
def test_embed_and_gradients(case, kind):
  tokens = CASES[case]
  if kind == 'own':
    tables, projections = output()[0], output(seed=5).projections
  else:
    tables = output(widths=(4,) * len(SIZES))[0]
    projections = [output().projections[1]] if kind == 'shared' else []
  width = D if projections else 4
  weight = np.random.default_rng(4).normal(size=[len(tokens), width])
  found, grads = embedded(tokens, tables, projections, weight)
  expected = np.stack(embed_directly(tokens, tables, projections))
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
  close(found, expected)
  # The output is linear in the tables, and in the projections.
  rng = np.random.default_rng(6)
  move = lambda tree: jax.tree.map(lambda x: rng.normal(size=x.shape), tree)
  inner = lambda a, b: sum(map(np.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))
  for place, tree in enumerate((tables, projections)):
    direction = move(tree)
    arguments = [tables, projections]
    arguments[place] = direction
    change = np.stack(embed_directly(tokens, *arguments))
    if tree:
      close(inner(grads[place], direction), np.sum(change * weight))


@pytest.mark.default_cases('12')
@pytest.mark.parametrize('n', [0, 1, 3, 4, 5, 8, 12])
def test_on_rows_visits_what_it_is_told(n):
  """Counts below, at and above whole chunks; each row once."""
  rows = np.zeros(12, bool)
  rows[np.random.default_rng(0).permutation(12)[:n]] = True
  x, ids = np.arange(24.0).reshape(12, 2), np.arange(12, dtype=np.int32)
  f = lambda w, x, ids: x @ w + ids
  run = jax.jit(functools.partial(softmax.on_rows, f, chunk=4))
  w = np.array([2.0, -1.0])
  np.testing.assert_array_equal(
    run(w, x, ids, rows), np.where(rows, x @ w + ids, 0)
  )
  loss = lambda w, x: jnp.sum(run(w, x, ids, rows) * (ids + 1))
  dw, dx = jax.grad(loss, argnums=(0, 1))(w, x)
  weight = np.where(rows, ids + 1, 0)
  np.testing.assert_array_equal(dw, weight @ x)
  np.testing.assert_array_equal(dx, weight[:, None] * w)


@pytest.mark.default_cases('0')
@pytest.mark.parametrize('n', [0, 1, 4, 5, 12])
def test_on_rows_costs_what_it_visits(n):
  calls = []

  def f(w, x, ids):
    jax.debug.callback(lambda: calls.append(1))
    return x @ w + ids

  rows, x = np.arange(12) < n, np.ones([12, 2])
  ids, w = np.arange(12, dtype=np.int32), np.ones(2)
  run = functools.partial(softmax.on_rows, f, chunk=4)
  jax.block_until_ready(jax.jit(run)(w, x, ids, rows))
  jax.effects_barrier()
  assert len(calls) == -(-n // 4)
  calls.clear()
  loss = lambda w, x: jnp.sum(run(w, x, ids, rows))
  jax.block_until_ready(jax.jit(jax.grad(loss))(w, x))
  jax.effects_barrier()
  # Backward computes the rows again; forward may be found to be unneeded.
  assert len(calls) in (-(-n // 4), 2 * -(-n // 4))


def arrays(jaxpr):
  for eqn in jaxpr.eqns:
    yield from (v.aval for v in eqn.outvars)
    for value in jax.tree.leaves(list(eqn.params.values())):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from arrays(inner)


def draw(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def abstract(sizes):
  tails = len(sizes) - 1
  return softmax.Output(
    [draw(v, 8) for v in sizes],
    [draw(v) for v in sizes],
    [draw(8, D) for _ in sizes],
    draw(tails, 8),
    draw(tails),
  )


def test_no_array_is_as_large_as_tokens_times_vocabulary():
  """Nor as a tail's words times more than a share of the tokens."""
  n, out = 1024, abstract((64, 512, 4096))

  def step(h, out, targets):
    x = softmax.embed(targets, out.weights, out.projections, jnp.float32)
    return softmax.nll(h + x, targets, out).sum()

  jaxpr = jax.make_jaxpr(jax.grad(step, argnums=(0, 1)))(
    draw(n, D), out, jax.ShapeDtypeStruct([n], jnp.int32)
  )
  largest = max(x.size for x in arrays(jaxpr.jaxpr))
  assert 4096 * 8 < largest <= max(n * 66, 4096 * n // 16)


@pytest.mark.parametrize('platform, logits', [('cpu', 2**23), ('gpu', 2**26)])
def test_logits_of_a_tail_at_once(platform, logits, monkeypatch):
  device = target_device.Device(platform)
  monkeypatch.setattr(target_device, 'device', lambda: device)
  n, out = 2**15, abstract((64, 2**16))
  targets = jax.ShapeDtypeStruct([n], jnp.int32)
  jaxpr = jax.make_jaxpr(lambda *x: softmax.nll(*x))(draw(n, D), targets, out)
  assert max(x.size for x in arrays(jaxpr.jaxpr)) == logits


def test_embeddings_of_two_bins():
  given = output()[0][:2], output(seed=5).projections[:2]
  tokens = some(0, EDGES[2])
  found = jax.jit(softmax.embed, static_argnums=3)(tokens, *given, jnp.float64)
  expected = embed_directly(tokens, *given)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_bfloat16(matrix_units):
  """Products in bfloat16; sums, nll and gradients of weights in float32."""
  h, out = states().astype(np.float32), jax.tree.map(np.float32, output())
  targets = some(0, V)
  run = jax.jit(lambda out: softmax.nll(h, targets, out, dtype=jnp.bfloat16))
  nll = run(out)
  assert nll.dtype == jnp.float32
  exact = jax.jit(softmax.nll)(states(), targets, output())
  np.testing.assert_allclose(nll, exact, atol=0.2)
  assert np.abs(nll - exact).max() > 1e-4
  grads = jax.jit(jax.grad(lambda out: run(out).sum()))(out)
  assert {x.dtype for x in jax.tree.leaves(grads)} == {np.dtype('float32')}
