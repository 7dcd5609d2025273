"""Kernels of programs for CPUs, and of texts as GPUs and TPUs have them."""

import functools

import jax
import jax.numpy as jnp
import pytest

from benchmarks import kernels, products, program
from txl_jax.kernels import tpu, triton
from txl_jax.parallel import capacity


def shape(*dims, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(dims, dtype)


def compiled(function, *shapes):
  return jax.jit(function).lower(*shapes).compile()


def found(function, *shapes):
  return kernels.find(compiled(function, *shapes).as_text()).kernels


def flops(some):
  return sum(k.times * k.products.flops for k in some)


def nbytes(some):
  return sum(k.times * k.nbytes for k in some)


def test_a_product_on_this_machine():
  (one,) = found(jnp.dot, shape(64, 128), shape(128, 256))
  assert one.products == products.Products(2 * 64 * 128 * 256, 'f32')
  assert one.nbytes == 4 * (64 * 128 + 128 * 256 + 64 * 256)
  assert one.times == 1 and one.buffers == ()
  assert one.source.endswith('dot_general')


@pytest.mark.parametrize('n', [1, 3, 7])
def test_a_loop_on_this_machine(n):
  def run(x, w):
    body = lambda x, _: (jnp.tanh(x @ w), None)
    return jax.lax.scan(body, x, length=n)[0]

  some = found(run, shape(64, 32), shape(32, 32))
  assert flops(some) == n * 2 * 64 * 32 * 32
  moved = sum(k.times * k.nbytes for k in some if k.products.flops)
  assert moved == n * 4 * (2 * 64 * 32 + 32 * 32)


def test_loops_in_loops_and_products_with_a_batch():
  def run(x):
    inner = lambda y, _: (jnp.tanh(jnp.einsum('bij,bjk->bik', y, x)), None)
    outer = lambda y, _: (jax.lax.scan(inner, y, length=3)[0], None)
    return jax.lax.scan(outer, x, length=5)[0]

  assert flops(found(run, shape(4, 16, 16))) == 15 * 2 * 4 * 16**3


def test_the_costlier_branch_counts():
  def run(flag, x):
    big = lambda x: x @ x @ x
    return jax.lax.cond(flag, big, jnp.tanh, x)

  some = found(run, shape(dtype=jnp.bool_), shape(64, 64))
  assert flops(some) == 2 * 2 * 64**3


def test_a_loop_of_unknown_length():
  def run(n, x):
    return jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x)

  program = compiled(run, shape(dtype=jnp.int32), shape(64, 64))
  result = kernels.find(program.as_text())
  assert result.endless == 1
  assert flops(result.kernels) == 2 * 64**3


@pytest.mark.parametrize(
  'options',
  [
    dict(window_strides=(1, 1), padding='VALID'),
    dict(window_strides=(2, 1), padding=[(3, 1), (7, 7)]),
    dict(
      window_strides=(1, 2),
      padding=[(3, 1), (0, 2)],
      lhs_dilation=(1, 3),
      rhs_dilation=(2, 1),
    ),
  ],
)
def test_convolutions(options):
  """Against the analysis of XLA, which adds nothing where nothing is fused."""

  def run(x, w):
    names = 'NHWC', 'HWIO', 'NHWC'
    return jax.lax.conv_general_dilated(
      x, w, dimension_numbers=names, feature_group_count=2, **options
    )

  result = compiled(run, shape(2, 9, 8, 4), shape(3, 5, 2, 6))
  some = kernels.find(result.as_text()).kernels
  assert flops(some) == result.cost_analysis()['flops']


GPU = """\
HloModule jit_step, is_scheduled=true

%read (p: f32[4,64,32], i: s32[]) -> f32[64,32] {
  %p = f32[4,64,32]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %ds = f32[1,64,32]{2,1,0} dynamic-slice(%p, %i, %z, %z), \
dynamic_slice_sizes={1,64,32}
  ROOT %b = f32[64,32]{1,0} bitcast(%ds)
}

%write (p.1: f32[4,64,32], x.1: f32[64,32], i.1: s32[]) -> f32[4,64,32] {
  %p.1 = f32[4,64,32]{2,1,0} parameter(0)
  %x.1 = f32[64,32]{1,0} parameter(1)
  %i.1 = s32[] parameter(2)
  %z.1 = s32[] constant(0)
  %b.1 = f32[1,64,32]{2,1,0} bitcast(%x.1), \
metadata={op_name="jit(step)/layers_0/o"}
  ROOT %dus = f32[4,64,32]{2,1,0} dynamic-update-slice(%p.1, %b.1, %i.1, \
%z.1, %z.1)
}

%body (t: (s32[], f32[4,64,32], f32[4,64,32])) -> (s32[], f32[4,64,32], \
f32[4,64,32]) {
  %t = (s32[], f32[4,64,32]{2,1,0}, f32[4,64,32]{2,1,0}) parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %from = f32[4,64,32]{2,1,0} get-tuple-element(%t), index=1
  %to = f32[4,64,32]{2,1,0} get-tuple-element(%t), index=2
  %s = ((f32[4,64,32]{2,1,0}, s32[]), f32[64,32]{1,0}, u32[]) \
fusion-start(%from, %n), kind=kLoop, calls=%read
  %d = f32[64,32]{1,0} fusion-done(%s)
  %w = f32[4,64,32]{2,1,0} fusion(%to, %d, %n), kind=kLoop, calls=%write
  ROOT %r = (s32[], f32[4,64,32]{2,1,0}, f32[4,64,32]{2,1,0}) tuple(%n, \
%from, %w)
}

%condition (c: (s32[], f32[4,64,32], f32[4,64,32])) -> pred[] {
  %c = (s32[], f32[4,64,32]{2,1,0}, f32[4,64,32]{2,1,0}) parameter(0)
  ROOT %less = pred[] custom-call(%c), custom_call_target="less"
}

ENTRY %main (x: bf16[64,128], w: bf16[128,32], a: f32[4,64,32], \
q: bf16[2,8,3,16], k: bf16[2,24,3,16]) -> (f32[4,64,32], bf16[64,32]) {
  %x = bf16[64,128]{1,0} parameter(0)
  %w.2 = bf16[128,32]{1,0} parameter(1)
  %a = f32[4,64,32]{2,1,0} parameter(2)
  %q = bf16[2,8,3,16]{3,2,1,0} parameter(3)
  %k = bf16[2,24,3,16]{3,2,1,0} parameter(4)
  %zero = s32[] constant(0)
  %copy = f32[4,64,32]{2,1,0} copy(%a)
  %tuple = (s32[], f32[4,64,32]{2,1,0}, f32[4,64,32]{2,1,0}) tuple(%zero, \
%a, %copy)
  %while = (s32[], f32[4,64,32]{2,1,0}, f32[4,64,32]{2,1,0}) \
while(%tuple), condition=%condition, body=%body, \
metadata={op_name="jit(step)/_run/while"}, \
backend_config={"known_trip_count":{"n":"4"}}
  %gemm = (bf16[64,32]{1,0}, s8[4096]{0}) custom-call(%x, %w.2), \
custom_call_target="__cublas$lt$matmul", \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":\
{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %product = bf16[64,32]{1,0} get-tuple-element(%gemm), index=0
  %fma = (bf16[64,32]{1,0}, s8[4096]{0}) custom-call(%x, %w.2, %product), \
custom_call_target="__cublas$lt$matmul", \
output_to_operand_aliasing={{0}: (2, {})}, \
backend_config={"gemm_backend_config":{"dot_dimension_numbers":\
{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %sum = bf16[64,32]{1,0} get-tuple-element(%fma), index=0
  %attend = (bf16[2,8,3,16]{3,2,1,0}, f32[2,3,8]{2,1,0}) custom-call(%q, \
%k, %k), custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(step)/layers_0/txl_forward/pallas_call"}, \
backend_config={ir = "body=x ML"}
  %other = f32[64,32]{1,0} custom-call(%a), \
custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(step)/mine/pallas_call"}
  %out = f32[4,64,32]{2,1,0} get-tuple-element(%while), index=2
  ROOT %result = (f32[4,64,32]{2,1,0}, bf16[64,32]{1,0}) tuple(%out, %sum)
}
"""


def test_a_program_as_gpus_have_it():
  """Bytes, products and buffers of every kind of kernel, by hand."""
  result = kernels.find(GPU, visible=0.75)
  by_name = {k.name: k for k in result.kernels}
  layer, whole = 64 * 32 * 4, 4 * 64 * 32 * 4
  assert result.endless == 0
  assert list(by_name) == ['copy', 'd', 'w', 'gemm', 'fma', 'attend', 'other']
  assert {name: k.times for name, k in by_name.items() if k.times != 1} == {
    'd': 4,
    'w': 4,
  }

  gemm = products.Products(2 * 64 * 128 * 32, 'bf16')
  # 3 products of width 16, of 8 queries with 18 of 24 keys on average.
  attention = 3 * 2 * 16 * (2 * 3 * 8 * 18)
  assert {name: k.products for name, k in by_name.items()} == {
    **dict.fromkeys(('copy', 'd', 'w'), products.Products()),
    **dict.fromkeys(('gemm', 'fma'), gemm),
    'attend': products.Products(attention, 'bf16', attention),
    'other': products.Products(unknown=True),
  }

  product = 2 * (64 * 128 + 128 * 32 + 64 * 32)
  assert {name: k.nbytes for name, k in by_name.items()} == {
    'copy': 2 * whole,
    'd': 2 * layer + 4,  # and the index
    'w': 2 * layer + 4,
    'gemm': product,
    'fma': product + 2 * 64 * 32,
    'attend': 2 * (2 * 8 * 3 * 16 * 2 + 2 * 24 * 3 * 16) + 2 * 3 * 8 * 4,
    'other': whole + layer,
  }

  # The copy becomes what the loop returns; fma writes over its operand.
  assert {name: k.buffers for name, k in by_name.items() if k.buffers} == {
    'd': (('f32', (64, 32)),),
    'gemm': (('bf16', (64, 32)),),
    'attend': (('bf16', (2, 8, 3, 16)), ('f32', (2, 3, 8))),
    'other': (('f32', (64, 32)),),
  }

  assert by_name['w'].source == 'jit(step)/layers_0/o'
  assert by_name['d'].source == 'jit(step)/_run/while'


def test_a_group_of_queries():
  """A call for dq has all queries given, and makes 4 of the 8."""
  text = GPU.replace('txl_forward', 'txl_dq')
  text = text.replace('f32[2,3,8]{2,1,0}) custom', 'bf16[3,2,4,24]) custom')
  found = kernels.find(text, visible=0.75).kernels
  (attend,) = (k for k in found if k.name == 'attend')
  assert attend.products.flops == 5 * 2 * 16 * (2 * 3 * 4 * 18)


def test_attention_of_cudnn():
  text = GPU.replace('txl_forward/pallas_call', 'dot_product_attention_fwd')
  for target, n in ('fmhaSoftmax', 2), ('fmhaSoftmaxBackward', 5):
    call = text.replace(
      '__gpu$xla.gpu.triton", metadata={op_name="jit(step)/layers',
      f'__cudnn${target}", metadata={{op_name="jit(step)/layers',
    )
    some = {k.name: k for k in kernels.find(call, 0.75).kernels}
    assert some['attend'].products.flops == n * 2 * 16 * (2 * 3 * 8 * 24)


CONVOLUTIONS = """\
HloModule jit_step, is_scheduled=true

ENTRY %main (x: f32[2,16,10], w: f32[24,16,4], y: f32[2,24,7]) -> \
f32[2,24,7] {
  %x = f32[2,16,10]{2,1,0} parameter(0)
  %w = f32[24,16,4]{2,1,0} parameter(1)
  %y = f32[2,24,7]{2,1,0} parameter(2)
  %dx = (f32[2,16,10]{2,1,0}, u8[64]{0}) custom-call(%y, %w), \
window={size=4}, dim_labels=bf0_oi0->bf0, \
custom_call_target="__cudnn$convBackwardInput"
  %dw = (f32[24,16,4]{2,1,0}, u8[64]{0}) custom-call(%x, %y), \
window={size=4}, dim_labels=bf0_oi0->bf0, \
custom_call_target="__cudnn$convBackwardFilter"
  %c = (f32[2,24,7]{2,1,0}, u8[64]{0}) custom-call(%x, %w), \
window={size=4}, dim_labels=bf0_oi0->bf0, \
custom_call_target="__cudnn$convForward"
  ROOT %out = f32[2,24,7]{2,1,0} get-tuple-element(%c), index=0
}
"""


def test_convolutions_of_cudnn_and_their_gradients():
  some = kernels.find(CONVOLUTIONS).kernels
  made = products.Products(2 * 2 * 24 * 7 * 16 * 4, 'f32')
  assert [k.products for k in some] == [made] * 3
  moved = 4 * (2 * 16 * 10 + 24 * 16 * 4 + 2 * 24 * 7)
  assert [k.nbytes for k in some] == [moved] * 3


TPU = """\
HloModule jit_step, is_scheduled=true

%same (s: pred[12,8,128]) -> pred[12,8,128] {
  %s = pred[12,8,128]{2,1,0:T(8,128)(4,1)} parameter(0)
  ROOT %s.1 = pred[12,8,128]{2,1,0:T(32,128)(4,1)} copy(%s)
}

%fused (p: pred[12,8,128], x: bf16[8,128], w: bf16[128,128], i: s32[]) -> \
(pred[12,8,128], bf16[8,128]) {
  %p = pred[12,8,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %x = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %w = bf16[128,128]{1,0:T(8,128)(2,1)} parameter(2)
  %i = s32[]{:T(128)S(6)} parameter(3)
  %c = s32[]{:T(128)} constant(0)
  %q = pred[12,8,128]{2,1,0:T(8,128)(4,1)} fusion(%p), kind=kLoop, \
output_to_operand_aliasing={{}: (0, {})}, calls=%same
  %y = bf16[8,128]{1,0:T(8,128)(2,1)} convolution(%x, %w), \
dim_labels=bf_io->bf
  %b = pred[1,8,128]{2,1,0:T(8,128)(4,1)} compare(%y, %y), direction=GT
  %u = pred[12,8,128]{2,1,0:T(8,128)(4,1)} dynamic-update-slice(%q, %b, %i, \
%c, %c)
  ROOT %t = (pred[12,8,128]{2,1,0:T(8,128)(4,1)}, \
bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) tuple(%u, %y)
}

ENTRY %main (stack: pred[12,8,128], h: bf16[8,128], n: s32[], \
w.1: bf16[128,128]) -> pred[12,8,128] {
  %stack = pred[12,8,128]{2,1,0:T(8,128)(4,1)} parameter(0)
  %h = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(1)
  %n = s32[]{:T(128)} parameter(2)
  %w.1 = bf16[128,128]{1,0:T(8,128)(2,1)} parameter(3)
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)S(6)} add(%n, %one)
  %cs = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,128]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}) copy-start(%h)
  %cd = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%cs)
  %room = f32[512,128]{1,0:T(8,128)} custom-call(), \
custom_call_target="AllocateBuffer"
  %f = (pred[12,8,128]{2,1,0:T(8,128)(4,1)}, \
bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) fusion(%stack, %cd, %w.1, %next), \
kind=kOutput, calls=%fused
  ROOT %o = pred[12,8,128]{2,1,0:T(8,128)(4,1)} get-tuple-element(%f), index=0
}
"""


def test_a_program_as_tpus_have_it():
  """Nothing that stays in VMEM is counted, nor sums of single numbers."""
  copy, room, fusion = kernels.find(TPU).kernels
  state, weights = 8 * 128 * 2, 128 * 128 * 2
  assert (copy.name, copy.nbytes, copy.buffers) == ('cd', state, ())
  assert (room.times, room.buffers) == (0, (('f32', (512, 128)),))
  assert not room.products.unknown
  assert fusion.products == products.Products(2 * 8 * 128 * 128, 'bf16')
  assert fusion.nbytes == weights + 8 * 128
  assert fusion.buffers == ()


def calls_of_pallas(jaxpr):
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'pallas_call':
      yield eqn
    else:
      for inside in capacity.inside(eqn):
        yield from calls_of_pallas(inside)


def dots(jaxpr):
  own = sum(eqn.primitive.name == 'dot_general' for eqn in jaxpr.eqns)
  return own + sum(dots(x) for eqn in jaxpr.eqns for x in capacity.inside(eqn))


@pytest.mark.parametrize('module', [triton, tpu])
def test_products_of_our_kernels(module):
  """Those of a tile: the most in one of a kernel's loops or conditions."""
  B, T, S, H, K = 2, 128, 256, 2, 64
  q, k = shape(B, T, H, K), shape(B, S, H, K)
  r, c, p = shape(S, H, K), shape(B, H, S), shape(H, S)
  filled, words = shape(B, dtype=jnp.int32), shape(4, dtype=jnp.uint32)
  given = q, k, k, r, c, p, filled, words
  options = dict(span=S, rate=0.0, interpret=False)
  made = {}
  for function, more in [
    (module.forward, ()),
    (module.backward, (q, shape(B, H, T), q)),
  ]:
    run = functools.partial(function, **options)
    for call in calls_of_pallas(jax.make_jaxpr(run)(*given, *more).jaxpr):
      (kernel,) = capacity.inside(call)
      tiles = [dots(x) for e in kernel.eqns for x in capacity.inside(e)]
      made[call.params['name']] = max(tiles)
  assert made and made.items() <= products.ATTENTION.items()


def test_dtypes():
  shapes = ('bf16', (3, 5)), ('pred', (7,)), ('f8e4m3fn', (2,)), ('s4', (4,))
  assert [program.nbytes((s,)) for s in shapes] == [30, 7, 2, 2]
  assert program.nbytes(shapes) == 41
