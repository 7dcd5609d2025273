"""A kernel is used if it computes what plain operations do."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from tests.ops.kernels import plain_kernel
from txl_jax.ops import kernels
from txl_jax.ops.kernels import (
  base,
  dispatch,
  proof,
  tpu_cached,
  tpu_shift,
  xla,
)
from txl_jax.parallel import processes
from txl_jax.program import target_device


class Wrong:
  """`plain_kernel`, or a mistake in it."""

  def __init__(self, mistake):
    self.mistake, self.calls = mistake, 0

  why_not = staticmethod(plain_kernel.why_not)

  def forward(self, *arrays, **options):
    self.calls += 1
    if self.mistake == 'does not compile':
      raise NotImplementedError('no such rotation\non this device')
    out, logsum = plain_kernel.forward(*arrays, **options)
    if self.mistake == 'rows':
      out = jnp.roll(out, 1, axis=0)
    return (out * jnp.nan if self.mistake == 'NaN' else out), logsum

  def backward(self, *arrays, **options):
    dq, dk, dv, dr, *others = plain_kernel.backward(*arrays, **options)
    if isinstance(self.mistake, float):
      dq += self.mistake
    if self.mistake == 'r':
      dr = jnp.roll(dr, 1, axis=0)
    return dq, dk, dv, dr, *others


@pytest.fixture
def kernel(monkeypatch):
  """Makes this device's only kernel one with a mistake."""

  def make(mistake):
    wrong = Wrong(mistake)
    monkeypatch.setattr(dispatch, '_kernel', lambda name: wrong)
    monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
    return wrong

  return make


@pytest.fixture(params=['float32', 'bfloat16'])
def case(request):
  device = target_device.device()
  return kernels.Case(device, request.param, T=6, M=5, K=4, rate=0.2)


@pytest.mark.thorough
def test_a_kernel_that_is_right_is_chosen(kernel, case):
  kernel('')
  choice = proof.proven(case)
  (line,) = choice.lines
  assert choice.name == 'triton'
  assert re.fullmatch('attention: triton, checked: within .*e-.* of .*', line)


MISTAKES = {
  'r': r'it differs in the gradient of r by [\d.e+-]+ \(at most 4e-0{}\)',
  'rows': r'it differs in result by [\d.e+-]+ \(at most 1e-0{}\)',
  'NaN': r'it differs in result by nan \(at most .*',
  'does not compile': 'NotImplementedError: no such rotation',
}


@pytest.mark.default_cases('float32-does not compile')
@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_kernel_that_is_wrong_is_not(mistake, kernel, case):
  """One line says what was found, and what to report."""
  kernel(mistake)
  choice = proof.proven(case)
  (line,) = choice.lines
  assert choice.name == 'xla'
  start = 'warning: the attention kernel triton is not used: '
  end = f'; please report this line ({case.device.kind}, jax {jax.__version__}'
  end += f', {case.dtype}, T 6, M 5, K 4, dropout 0.2)'
  problem = MISTAKES[mistake].format(4 if case.dtype == 'float32' else 2)
  assert re.fullmatch(f'{start}{problem}.*{re.escape(end)}', line)


@pytest.mark.parametrize('by, found', [(3e-5, ''), (5e-5, '5.0e-04')])
def test_a_gradient_that_is_zero_is_so_to_a_part_of_one(by, found, kernel):
  """With one key; beside a tenth of what gradients are, in each number."""
  kernel(by)
  case = kernels.Case(target_device.device(), 'float32', 1, 0, K=4, rate=0.0)
  problem, _ = proof.check('triton', case)
  told = f'it differs in the gradient of q by {found} (at most 4e-04)'
  assert problem == (told if found else '')


def test_what_is_wrong_in_one_process_is_chosen_in_none(
  monkeypatch, kernel, case
):
  kernel('')
  elsewhere = [['', 0.1], ['it differs in the gradient of k', 0.5]]
  monkeypatch.setattr(processes, 'gather', lambda x: [x, x and elsewhere[1]])
  choice = proof.proven(case)
  assert choice.name == 'xla' and 'gradient of k' in choice.lines[0]
  monkeypatch.setattr(processes, 'gather', lambda x: [x, x and elsewhere[0]])
  choice = proof.proven(case)
  assert choice.name == 'triton' and 'within 1.0e-01' in choice.lines[0]


def test_a_program_with_a_mesh_of_its_own(kernel, case, monkeypatch):
  """The check is of one device, whatever mesh the caller has set."""
  kernel('')
  meshes = []

  def check(name, case):
    meshes.append(jax.sharding.get_abstract_mesh())
    return '', 0.0

  monkeypatch.setattr(proof, 'check', check)
  with jax.set_mesh(jax.make_mesh((2,), ('theirs',))):
    assert proof.proven(case).name == 'triton'
  assert [mesh.empty for mesh in meshes] == [True]


@pytest.mark.thorough
def test_an_earlier_choice_is_kept(kernel, case, monkeypatch):
  """Without another check, if it is possible here and of the same case."""
  right = kernel('')
  kept = proof.proven(case).kept
  calls = right.calls
  assert proof.proven(case, kept) == ('triton', [], kept)
  plain = kept.replace('triton', 'xla')
  assert proof.proven(case, plain) == ('xla', [], plain)
  assert right.calls == calls
  # Chosen by name, for another case, or not by all processes.
  assert proof.proven(case, 'triton').lines
  assert proof.proven(case._replace(rate=0.1), kept).lines
  monkeypatch.setattr(
    processes, 'gather', lambda x: [x, '' if isinstance(x, str) else x]
  )
  assert proof.proven(case, kept).lines
  monkeypatch.undo()
  right = kernel('')
  right.why_not = lambda case: 'it needs another device'
  assert proof.proven(case, kept).name == 'xla'


@pytest.mark.parametrize('M, n', [(4096, 2), (4097, 1), (2**15, 1)])
def test_long_cases_need_no_gigabytes(M, n, monkeypatch):
  """The check of 4,096 queries and more than 8,192 keys."""
  device, sizes = target_device.device(), []
  case = kernels.Case(device, 'bfloat16', 4096, M, 1, 0.0)

  def attend(inputs, **options):
    sizes.append(inputs.q.shape)
    assert inputs.filled.tolist() == [M // 3, M][:n]
    raise base.Unable('enough')

  monkeypatch.setattr(
    dispatch, 'implementation_of', lambda name, case: (name, attend)
  )
  assert proof.check('triton', case) == ('Unable: enough', 0.0)
  assert sizes == [(n, 4096, n, 1)]


@pytest.mark.thorough
def test_both_sides_have_the_precision_of_the_kernels(monkeypatch, case):
  """TPUs round operands in float32 by default, but not those in kernels."""
  found = []

  def attend(*args, **options):
    found.append(jax.config.jax_default_matmul_precision)
    return xla.attend(*args, **options)

  monkeypatch.setattr(
    dispatch, 'implementation_of', lambda name, case: (name, attend)
  )
  assert proof.check('triton', case)[0] == ''
  assert found == [None if case.dtype == 'bfloat16' else 'highest']


@pytest.mark.parametrize('by', [0, 1])
def test_scores_in_other_slots_are_found(monkeypatch, by):
  real = tpu_shift.to_slots
  monkeypatch.setattr(
    tpu_shift, 'to_slots', lambda x, at, C: real(x, at + by, C)
  )
  problem = 'it moves scores to other slots' if by else ''
  assert proof.check_slots() == problem


@pytest.mark.parametrize('here', ['tpu', 'cpu'])
@pytest.mark.parametrize(
  'works, elsewhere', [(True, ''), (False, ''), (True, 'it differs')]
)
def test_at_test_time(here, works, elsewhere, monkeypatch):
  """On a TPU the shift is a kernel, if that works in all processes."""
  assert proof.at_test_time('auto') == 'xla'
  monkeypatch.setattr(
    target_device, 'device', lambda: target_device.Device('tpu', 'TPU v5p')
  )
  monkeypatch.setattr(jax, 'default_backend', lambda: here)
  problem = '' if works else 'it differs'
  monkeypatch.setattr(proof, 'check_slots', lambda: problem)
  proof._tried.cache_clear()
  if elsewhere and here == 'tpu':
    monkeypatch.setattr(processes, 'gather', lambda x: [x, elsewhere])
  works &= not elsewhere
  used = works or here == 'cpu'
  told = f'jax {jax.__version__}, float32, T 130, M 130, K 64, dropout 0.0)'
  told = f'is not used: it differs; .*TPU v5p, {re.escape(told)}$'
  with contextlib.nullcontext() if used else pytest.warns(match=told):
    name = proof.at_test_time('auto')
  assert name == ('tpu_shift' if used else 'xla')
  assert proof.at_test_time('xla') == 'xla'
  if here == 'tpu':  # nothing can be tried in a trace
    proof._tried.cache_clear()
    names = []
    jax.jit(lambda: names.append(proof.at_test_time('auto')))()
    assert names == ['xla']
  proof._tried.cache_clear()


CACHED = base.Case(
  target_device.Device('tpu', 'TPU v5p'), 'bfloat16', 100, 512, 16, 0.0
)


@pytest.mark.parametrize(
  'mistake, problem',
  [
    ('none', ''),
    ('rows', 'it differs in result by '),
    ('keys', 'it differs in keys by '),
    ('NaN', 'it differs in values by nan'),
    ('memory', 'it differs in result by '),
    ('does not compile', 'NotImplementedError: no such rotation'),
  ],
)
def test_wrong_kernels_for_segments_are_found(mistake, problem, monkeypatch):
  real = tpu_cached.attend

  def attend(*arrays, **sizes):
    if mistake == 'does not compile':
      raise NotImplementedError('no such rotation\non this device')
    if mistake == 'memory':
      sizes['M'] -= 30
    out, k, v = real(*arrays, **sizes)
    if mistake == 'rows':
      out = jnp.roll(out, 1, axis=1)
    return out, k + (mistake == 'keys'), v * jnp.nan if mistake == 'NaN' else v

  monkeypatch.setattr(tpu_cached, 'attend', attend)
  found = proof.check_cached(CACHED, 412, None, 300)
  assert found.startswith(problem) and bool(found) == bool(problem)


def test_segments_are_read_where_the_kernel_works(monkeypatch):
  """Not in float32, with too many keys, or if a check finds something."""
  monkeypatch.setattr(proof, 'check_cached', lambda *given: 'it differs')
  reads = functools.partial(proof.reads_segments, M=300, span=None, N=512)
  assert reads(CACHED)  # nothing to try it on
  for other in ('cpu', 'cpu'), ('tpu', 'TPU v3'):
    device = target_device.Device(*other)
    assert not reads(CACHED._replace(device=device))
  assert not reads(CACHED._replace(dtype='float32'))
  assert not reads(CACHED._replace(M=100 * 512))
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  proof._tried.cache_clear()
  told = r'kernel tpu_cached is not used: it differs; .*T 100, M 512, K 16'
  with pytest.warns(match=told):
    assert not reads(CACHED)
  assert not reads(CACHED)  # warns once
  proof._tried.cache_clear()
