"""Bytes and buffers of programs for CPUs, and of texts for GPUs and TPUs."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import hlo
from benchmarks.hlo import Array


def shape(*dims, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(dims, dtype)


def traffic(text):
  return hlo.traffic(hlo.parse(text))


def found(function, *shapes):
  return traffic(jax.jit(function).lower(*shapes).compile().as_text())


def test_a_product_on_this_machine():
  one = found(jnp.dot, shape(64, 128), shape(128, 256))
  assert one == (4 * (64 * 128 + 128 * 256 + 64 * 256), {}, 0, 1, 0)


def test_loops_in_loops_on_this_machine():
  def run(x):
    inner = lambda y, _: (jnp.tanh(y @ x), None)
    outer = lambda y, _: (jax.lax.scan(inner, y, length=3)[0], None)
    return jax.lax.scan(outer, x, length=5)[0]

  product, tanh = 3 * 4 * 256 * 256, 2 * 4 * 256 * 256
  some = found(run, shape(256, 256))
  assert (some.endless, some.loops) == (0, 2)
  assert some.launches >= 15 * 2  # product and tanh
  # Besides, numbers of the iterations and what is carried are copied.
  assert some.nbytes == pytest.approx(15 * (product + tanh), rel=0.1)


def test_a_loop_of_unknown_length():
  def run(n, x):
    return jax.lax.fori_loop(0, n, lambda _, x: jnp.tanh(x @ x), x)

  assert found(run, shape(dtype=jnp.int32), shape(64, 64)).endless == 1


GPU = """\
HloModule jit_step, is_scheduled=true

%read (p: f32[4,64,32], i: s32[]) -> f32[64,32] {
  %p = f32[4,64,32]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  %same = f32[4,64,32]{2,1,0} convert(%p)
  %ds = f32[1,64,32]{2,1,0} dynamic-slice(%same, %i, %z, %z), \
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
  """Bytes and buffers of every kind of instruction, by hand."""
  layer, whole = 64 * 32 * 4, 4 * 64 * 32 * 4
  product = 2 * (64 * 128 + 128 * 32 + 64 * 32)
  moved = {
    'copy': 2 * whole,
    'd': 4 * (2 * layer + 4),  # and the index
    'w': 4 * (2 * layer + 4),
    'gemm': product,
    'fma': product + 2 * 64 * 32,
    'attend': 2 * (2 * 8 * 3 * 16 * 2 + 2 * 24 * 3 * 16) + 2 * 3 * 8 * 4,
    'other': whole + layer,
  }
  result = traffic(GPU)
  assert (result.nbytes, result.endless) == (sum(moved.values()), 0)
  assert (result.launches, result.loops) == (8 + 5, 1)
  # The copy becomes what the loop returns; fma writes over its operand.
  attend = 'jit(step)/layers_0/txl_forward/pallas_call'
  assert result.buffers == {
    (Array('f32', (64, 32)), ''): 1,
    (Array('bf16', (64, 32)), ''): 1,
    (Array('bf16', (2, 8, 3, 16)), attend): 1,
    (Array('f32', (2, 3, 8)), attend): 1,
    (Array('f32', (64, 32)), 'jit(step)/mine/pallas_call'): 1,
  }


TPU = """\
HloModule jit_step, is_scheduled=true

%fused (p: pred[12,8,128], x: bf16[8,128], w: bf16[128,128], i: s32[]) -> \
(pred[12,8,128], bf16[8,128]) {
  %p = pred[12,8,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %x = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %w = bf16[128,128]{1,0:T(8,128)(2,1)} parameter(2)
  %i = s32[]{:T(128)S(6)} parameter(3)
  %c = s32[]{:T(128)} constant(0)
  %q = pred[12,8,128]{2,1,0:T(8,128)(4,1)} bitcast(%p)
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
  """Nothing that stays in VMEM is counted."""
  state, weights = 8 * 128 * 2, 128 * 128 * 2
  result = traffic(TPU)
  assert result.nbytes == state + weights + 8 * 128 + 4 + 4  # two numbers
  assert result.buffers == {(Array('f32', (512, 128)), ''): 1}


def test_dtypes():
  arrays = ('bf16', (3, 5)), ('pred', (7,)), ('f8e4m3fn', (2,)), ('s4', (4,))
  assert [Array(*a).nbytes for a in arrays] == [30, 7, 2, 2]
  assert str(Array('bf16', (3, 5))) == 'bf16[3,5]'


def _estimated(name, cycles, source=''):
  metadata = f'metadata={{op_name="{source}"}}, ' if source else ''
  config = f'{{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
  return (
    f'  %{name} = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%inner, '
    f'{metadata}backend_config={config}'
  )


LAYER = 'jit(step)/jvp(TransformerXL)/TransformerXL.forward/while/body/layers_0'
ESTIMATED = f"""\
HloModule jit_step

%inner (p: f32[8]) -> f32[8] {{
  ROOT %p = f32[8]{{0}} parameter(0)
}}

%body (c: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %c = (s32[], f32[8]{{0}}) parameter(0)
  %x = f32[8]{{0}} get-tuple-element(%c), index=1
{_estimated('f', 100, f'{LAYER}.after_attention/ff/w1/w1/dot_general')}
{_estimated('q', 20, f'{LAYER}/attention/q/q/dot_general')}
{_estimated('a', 3, f'{LAYER}/attention/attention.attend/dot_general')}
{_estimated('s', 5, f'{LAYER}/attention/attention.attend/reshape')}
{_estimated('n', 7, f'{LAYER}.after_attention/norm1/norm/mul')}
{_estimated('d', 11, f'{LAYER.rpartition("/")[0]}/dynamic_slice')}
  %relative_attention.1 = f32[8]{{0}} custom-call(%x), \
custom_call_target="tpu_custom_call", \
metadata={{op_name="{LAYER}/relative_attention/pallas_call"}}
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%x, %relative_attention.1)
}}

%condition (c: (s32[], f32[8])) -> pred[] {{
  ROOT %c = (s32[], f32[8]{{0}}) parameter(0)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %t = (s32[], f32[8]{{0}}) tuple(%x, %x)
  %while = (s32[], f32[8]{{0}}) while(%t), condition=%condition, \
body=%body, backend_config={{"known_trip_count":{{"n":"4"}}}}
{_estimated('copy.1', 13)}
{_estimated('v', 17, 'jit(step)/jvp(M)/vocabulary.nll/dot_general')}
{_estimated('u', 19, 'jit(step)/sub')}
  ROOT %add = f32[8]{{0}} add(%u, %v)
}}
"""


def test_cycles_by_part():
  """Those of a loop's body count as often as it runs."""
  found = hlo.cycles(hlo.parse(ESTIMATED), {})
  assert found.by_part == {
    'feed-forward layers': 400,
    'projections': 80,
    'attention': 12,
    'attention, its shift': 20,
    'norms': 28,
    'stacks of the layer loop': 44,
    'relayouts': 13,
    'softmax and embedding': 17,
    'optimiser and sums': 19,
  }
  assert found.kernels == {'relative_attention': (4, 0)}
  assert found.unknown == {'add': 1}
  assert found.bundles == 0


def test_cycles_of_instructions_without_an_estimate():
  """By the bundles of an equal one: that of equal kernels one is compiled."""
  bundles = {'relative_attention.7': 1000, 'add': 3, 'f': 50}
  text = ESTIMATED.replace(
    'ROOT %add',
    '%relative_attention.7 = f32[8]{0} \
custom-call(%x), custom_call_target="tpu_custom_call"\n  ROOT %add',
  )
  found = hlo.cycles(hlo.parse(text), bundles)
  assert found.kernels == {'relative_attention': (5, 5000)}
  assert found.by_part['feed-forward layers'] == 400
  assert found.by_part['the rest'] == 3
  assert not found.unknown
  assert found.bundles == 4 * 50 + 5000 + 3


# A kernel with a grid of 12, whose copies run a step ahead and one behind.
BUNDLES = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %6 = vsyncpa [#allocation3], 0  } /* entry bundle: %k.1 */
   0x1 LB: > { %s436_s14 = sadd.s32 4294967295, %s678_s13 }
   0x2   : > { %126 = sbr.rel (%p123_p1) target = $region24  /*
iteration_bounds: (4, 3)
strides: (16, 1) */ }
   0x3   :  {}
   0x4   :  {} /* End region 22 */
   0x5 LB: >> { %p1_p3 = scmp.ge.s32.totalorder %s1, 5 /* loop exit test */ }
   0x6   : >> { %13 = sbr.rel (!%p1_p3) target = $region7 }
   0x7 LB: >> { %v1 = vld [vmem:[%s781_s28 + $0x78] sm:$0xff] }
   0x8   : >> { %14 = sbr.rel (!%p2_p3) target = $region8 }
   0x9 PF: > { %s14_s13 = sadd.s32 1, %s678_s13 /* copy for cssa */ }
   0xa   : > { %p11_p3 = scmp.ge.s32.totalorder %s14_s13, 14 /* loop exit test \
*/  ;;  %s917_s7 = smov %s658_s8 }
  0x1b   :  { %371 = vsyncpa [#allocation3], 1 }
"""


def test_bundles_of_a_dump(tmp_path):
  """A loop without a constant in its exit test counts once."""
  for name in 'final_bundles', 'schedule-analysis_final_bundles':
    (tmp_path / f'179587-my-kernel.1-01-{name}.txt').write_text(BUNDLES)
  (tmp_path / '179588-add-01-final_bundles.txt').write_text('  0   : { %1 }')
  grid = 14 * (6 + 5 * 2 + 2)
  assert hlo.bundles(tmp_path) == {'my-kernel.1': 2 + grid, 'add': 1}
