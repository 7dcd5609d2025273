"""Collectives of programs for CPUs, and of the text of one for TPUs."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import compiled_step, hlo
from benchmarks.hlo import Array
from txl_jax.parallel import mesh as mesh_lib

B, M, D = 16, 12, 32
MESHES = {'data': dict(data=8), 'fsdp': dict(fsdp=8)}


def exchanges(text, watched):
  return hlo.exchanges(hlo.parse(text), watched)


def compiled(function, mesh, spec_in, spec_out, shape):
  mesh = mesh_lib.make_mesh(MESHES[mesh])
  place = functools.partial(NamedSharding, mesh)
  x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place(spec_in))
  out = jax.jit(function, out_shardings=place(spec_out))
  return out.lower(x).compile().as_text()


def test_an_exchange_of_memory_is_found():
  """Through a slice, a loop and a change of dtype."""

  def run(memory):
    def body(total, layer):
      wide = layer[:, 2:].astype(jnp.bfloat16)
      whole = jax.lax.with_sharding_constraint(wide, P())
      return total + jnp.tanh(whole.astype(jnp.float32)), None

    with jax.sharding.use_abstract_mesh(
      mesh_lib.make_mesh(MESHES['data']).abstract_mesh
    ):
      return jax.lax.scan(body, jnp.zeros([B, M - 2, D]), memory)[0]

  text = compiled(run, 'data', P(None, 'data'), P(), [3, B, M, D])
  moved = [c for c in exchanges(text, 'memory') if c.moved]
  assert moved
  assert all(c.kind == 'all-gather' and c.group == 8 for c in moved)
  assert sum(c.times for c in moved) in (1, 3)
  text = compiled(lambda x: x @ x.mT, 'data', P('data'), P(), [B, 4, 4])
  found = exchanges(text, 'x')
  assert [c.moved for c in found] == [False], 'the product is not x'


def test_gathering_a_table_is_found():
  text = compiled(lambda x: x + 1, 'fsdp', P('fsdp'), P(), [64, 16])
  (one,) = exchanges(text, 'x')
  assert (one.kind, one.group, one.times) == ('all-gather', 8, 1)
  assert one.operands == (Array('f32', (8, 16)),)
  assert one.sent == 7 * 8 * 16 * 4
  wrong = compiled_step.check([one], {'table': (64, 16), 'output_1': (64, 8)})
  assert wrong == ['all-gather of f32[8,16] yields the whole table']


def test_what_an_all_reduce_sends():
  text = compiled(lambda x: x.sum(0), 'data', P('data'), P(), [64, 24])
  (one,) = exchanges(text, 'x')
  assert (one.kind, one.group) == ('all-reduce', 8)
  assert one.sent == 2 * 24 * 4 * 7 // 8


TPU = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(256)} parameter(0)
  %b = f32[]{:T(256)} parameter(1)
  ROOT %sum = f32[]{:T(256)} add(%a, %b)
}

%reduce.1 (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %ar.1 = f32[8,128]{1,0:T(8,128)} all-reduce(%x), channel_id=3, \
replica_groups=[2,16]<=[32], to_apply=%add, metadata={op_name="jit(step)/g"}
}

%body (p: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %p = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %m = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%p), index=1
  %f = f32[8,128]{1,0:T(8,128)} fusion(%m), kind=kCustom, calls=%reduce.1
  ROOT %t = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%i, %f)
}

%condition (q: (s32[], f32[8,128])) -> pred[] {
  %q = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) parameter(0)
  %n = s32[]{:T(128)} constant(24)
  %j = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %less = pred[]{:T(1024)} compare(%j, %n), direction=LT
}

ENTRY %main (memory: f32[8,128], w: bf16[4,8]) -> (f32[8,128], bf16[16,8]) {
  %memory = f32[8,128]{1,0:T(8,128)} parameter(0), \
metadata={op_name="state.memory.states"}
  %w = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(1), metadata={op_name="w"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}) tuple(%zero, %memory)
  %loop = (s32[]{:T(128)}, /*index=1*/f32[8,128]{1,0:T(8,128)}) \
while(%start), condition=%condition, body=%body{end}
  %ags = (bf16[4,8]{1,0:T(8,128)(2,1)}, bf16[16,8]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}) all-gather-start(%w), replica_groups={groups}, \
dimensions={0}
  %agd = bf16[16,8]{1,0:T(8,128)(2,1)} all-gather-done(%ags)
  %out = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %result = (f32[8,128]{1,0:T(8,128)}, bf16[16,8]{1,0}) tuple(%out, %agd)
}
"""


@pytest.mark.parametrize(
  'end', ['', ', backend_config={"known_trip_count":{"n":"24"},"flag":"(x)"}']
)
@pytest.mark.parametrize(
  'groups',
  [
    '{{0,1,2,3},{4,5,6,7}}',
    '[8,4]<=[32]',
    "mesh['a'=8,'b'=4] {'b'}",
    "mesh['a'=2,'b'=16], device_ids=([2,16]T(1,0)) {'a','b':(8)2}",
  ],
)
def test_a_program_as_tpus_have_it(end, groups):
  text = TPU.replace('{end}', end).replace('{groups}', groups)
  reduce, gather = exchanges(text, 'state.memory')
  states = (Array('f32', (8, 128)),)
  assert reduce == hlo.Collective(
    kind='all-reduce', operands=states, results=states, group=16, times=24,
    source='jit(step)/g', moved=True,
  )  # fmt: skip
  assert reduce.sent == 2 * 8 * 128 * 4 * 15 // 16
  scattered = text.replace('reduce.1', 'all-reduce-scatter.1')
  scatter, _ = exchanges(scattered, 'state.memory')
  assert scatter.kind == 'reduce-scatter'
  assert scatter.sent == 8 * 128 * 4 * 15 // 16
  assert gather == hlo.Collective(
    kind='all-gather', operands=(Array('bf16', (4, 8)),),
    results=(Array('bf16', (16, 8)),), group=4, times=1, source='', moved=False,
  )  # fmt: skip
  assert gather.sent == 16 * 8 * 2 * 3 // 4
