import re
from unittest import mock

import jax
import pytest

from tests.modes import runs
from tests.training.cost_test import V, multiplications, small
from txl_jax.configs import common
from txl_jax.data.corpora import preparation
from txl_jax.modes import summary
from txl_jax.ops import matmul
from txl_jax.program import target_device
from txl_jax.program.errors import UserError
from txl_jax.training import cost, plan


def line(config, start, V=V):
  return next(s for s in summary.table(config, V) if s.startswith(start))


def number(text):
  return float(text.replace(',', ''))


def nbytes(text):
  size, unit = text.split()
  return number(size) * {'MB': 1e6, 'GB': 1e9}[unit]


def held(text):
  """{name: bytes} of the line on what is held between steps."""
  parts = re.findall(r'(\w+) (\S+ [MG]B)', text)
  return {name: nbytes(size) for name, size in parts}


@pytest.mark.parametrize('unroll', [1, 3])
def test_flops_of_a_model(unroll):
  c = small(unroll=unroll)
  tokens = c.train.batch_size * c.train.segment_len
  expected = 2 * multiplications(c) / tokens / 1e6
  c.train.update(batch_size=2 * c.train.batch_size, accumulate=2)
  pattern = r'FLOPs per token: (\S+) M scored, (\S+) M trained'
  scored, trained = re.match(pattern, line(c, 'FLOPs')).groups()
  assert line(c, 'FLOPs').endswith(' trained (matmuls and convolutions, T 16)')
  assert number(scored) == pytest.approx(expected, abs=0.051)
  assert f'{cost.flops_per_token(c, V) / 1e6:,.1f}' == trained
  # Two products backward for each one forward.
  assert number(trained) == pytest.approx(3 * expected, rel=0.2)


def test_flops_are_counted_for_the_rows_of_a_microbatch(monkeypatch):
  """Some products of an adaptive softmax are of so many rows at a time."""
  c, asked = small(), []
  c.train.update(batch_size=12, accumulate=3)
  count = lambda model, *sizes: asked.append(sizes) or cost.Cost(64 * 10**6, 0)
  monkeypatch.setattr(cost, 'of_rows', count)
  assert line(c, 'FLOPs').startswith('FLOPs per token: 1.0 M scored, 1.0 M t')
  assert asked == [(4, 16, 0)]


@pytest.mark.thorough
def test_parameters_and_memory():
  c = small()
  D, HK, F = 32, 16, 48
  layer = 5 * D * HK + 2 * D * F + F + D + 4 * D
  total = V * D + V + 2 * HK + 3 * layer
  lines = summary.table(c, V)
  assert f'parameters: {total}' in lines
  assert lines[-1].startswith('between steps the device holds parameters ')
  rows = [s.split() for s in lines if re.search(r'\(all\)', s)]
  assert sum(number(row[-1]) for row in rows) == total
  kept = re.compile(r'memory state: (.*), (.*) a row')
  c.train.update(batch_size=64)
  c.model.update(mem_len=4096)
  for dtype in 'float32', 'bfloat16':
    c.model.dtype = dtype
    size = matmul.state_dtype(dtype).itemsize
    row = 3 * 4096 * D * size + 4
    all_rows, one = kept.match(line(c, 'memory')).groups()
    assert nbytes(all_rows) == pytest.approx(64 * row, abs=5.1e6)
    assert nbytes(one) == pytest.approx(row, abs=5.1e3)


def test_equal_layers_share_a_row():
  shape = lambda *n: jax.ShapeDtypeStruct(n, 'float32')
  layers = {f'layers_{i}': {'w': shape(20, 30)} for i in (0, 1, 12)}
  params = {'out_3': shape(7), **layers, 'out_4': shape(8), 'out_5': shape(8)}
  _, *found = (' '.join(x.split()) for x in summary._modules(params, None))
  parts = ['layers_*/w 3 x (20, 30) 1,800', 'out_* (7,) 7', 'out_* 2 x (8,) 16']
  assert found == [*parts, 'layers_* (all) 1,800', 'out_* (all) 23']


def test_sizes():
  told = {1e4: '0.01 MB', 1e8 - 1: '100.00 MB', 1e8: '0.10 GB'}
  told[1.234e12] = '1,234.00 GB'
  assert {n: summary._size(n) for n in told} == told


@pytest.mark.thorough
@pytest.mark.parametrize(
  'units, found',
  [
    ('amx_bf16', 'matmuls: bfloat16, summed in float32'),
    ('avx2', 'matmuls: float32, which is faster than bfloat16 here'),
  ],
)
def test_matmuls_in_bfloat16(monkeypatch, units, found):
  monkeypatch.setattr(target_device, 'cpu_units', lambda: units)
  c = small()
  assert not [s for s in summary.table(c, V) if s.startswith('matmuls')]
  c.model.dtype = 'bfloat16'
  assert found in summary.table(c, V)


@pytest.mark.default_cases(
  '512-8000-bfloat16-tpu_shift on v3, v4; tpu on v5e, v5p, v6e'
)
@pytest.mark.parametrize(
  'T, M, dtype, on_tpus',
  [
    (512, 512, 'bfloat16', 'tpu_shift on v3; tpu on v4, v5e, v5p, v6e'),
    (512, 8000, 'bfloat16', 'tpu_shift on v3, v4; tpu on v5e, v5p, v6e'),
    (512, 512, 'float32', 'tpu_shift on v3, v4, v5e, v5p, v6e'),
    (128, 512, 'bfloat16', 'tpu_shift on v3, v4, v5e, v5p, v6e'),
  ],
)
def test_attention_here_and_on_tpus(T, M, dtype, on_tpus):
  c = small()
  c.train.segment_len, c.model.mem_len, c.model.d_head = T, M, 64
  c.model.dtype = dtype
  lines = [s for s in summary.table(c, V) if s.startswith('attention')]
  told = 'attention: xla (no kernel for a cpu)', f'attention of TPUs: {on_tpus}'
  assert lines == [*told]
  # Training chooses for the longest of varying lengths.
  c.train.update(varlen=True, segment_len=T - 9, varlen_limit=9)
  assert told[1] in summary.table(c, V)
  c.model.attention = 'xla'
  found = 'attention: xla (set by model.attention)'
  assert found in summary.table(c, V)


@pytest.mark.thorough
def test_a_context(monkeypatch):
  """It is read, so it counts for the choice of attention."""
  monkeypatch.setattr(summary, '_attention', lambda _, T: [f'attention of {T}'])
  c = small()
  c.model.mem_len = 0
  c.train.update(context=3, varlen=True, varlen_limit=9)
  c.mesh.data = 2
  lines = summary.table(c, V)
  assert 'mesh: slices 1, data 2, fsdp 1, tensor 1: 2 devices' in lines
  assert f'attention of {3 + 16 + 9}' in lines
  assert not [x for x in lines if x.startswith('parameters at')]
  assert any(x.endswith('convolutions, T 16, context 3)') for x in lines)


@pytest.mark.thorough
def test_a_mesh_of_devices_that_are_not_there():
  c = small(tie_weights=False)
  c.train.batch_size = 4096
  assert not any('sharded' in row for row in summary.table(c, V))
  c.mesh.update(slices=2, data=64, fsdp=4, tensor=2)
  rows = summary.table(c, 4096)
  assert rows[0].endswith('parameters  sharded over')
  divided = {row.split()[0]: row.rsplit('  ', 1)[-1] for row in rows[1:]}
  assert divided['layers_*/attention/q/kernel'] == '(fsdp, tensor)'
  assert divided['layers_*/ff/w2/kernel'] == '(tensor, fsdp)'
  assert divided['vocabulary/table'] == '(fsdp x tensor)'
  assert divided['layers_*/norm1/norm/scale'] == '-'
  assert 'mesh: slices 2, data 64, fsdp 4, tensor 2: 1024 devices' in rows
  # By hand: D 32, H K 16, F 48, 3 layers; float32.
  matrices = 3 * (5 * 32 * 16 + 2 * 32 * 48)
  words = 2 * 4096 * 32 + 4096  # whose moments 64 replicas share
  halves = 2 * 16 + 3 * 48  # u, v, bias of w1
  whole = 3 * (32 + 4 * 32)
  bytes_ = 4 * (matrices / 8 + words / 8 + halves / 2 + whole)
  moments = 8 * (matrices / 8 + words / 512 + halves / 2 + whole)
  assert rows[-1].startswith('between steps each device holds parameters ')
  found = held(rows[-1])
  memory = 4 * (3 * 4096 * 24 * 32 + 4096) / 512
  expected = [bytes_, moments, memory]
  sizes = [found[x] for x in ('parameters', 'optimiser', 'memory')]
  assert sizes == pytest.approx(expected, abs=5.1e3)


@pytest.mark.thorough
def test_an_average_is_counted():
  c = small()
  found = []
  for c.optim.average in 'off', 'ema', 'nt':
    found.append(held(line(c, 'between steps', 40_000)))
  off, ema, nt = found
  assert 'average' not in off and ema == nt
  assert ema['average'] == off['parameters'] > 1e6


@pytest.mark.thorough
def test_a_first_moment_in_bfloat16_takes_half():
  c = small()
  sizes = []
  for c.optim.state_dtype in 'float32', 'bfloat16':
    found = held(line(c, 'between steps', 40_000))
    sizes.append([found['parameters'], found['optimiser']])
  (params, wide), (_, narrow) = sizes
  assert wide == pytest.approx(2 * params, abs=1.1e4)
  assert narrow == pytest.approx(1.5 * params, abs=1.1e4) and params > 1e6


@pytest.mark.thorough
def test_nothing_is_allocated():
  """A model of some 2 TB with its optimiser: no machine here holds it."""
  c = common.get_config()
  c.model.update(
    n_layer=12, d_model=32768, n_head=128, d_head=256, d_ff=131072, mem_len=8192
  )
  c.train.update(batch_size=4096, segment_len=8192)
  found = held(line(c, 'between steps', 205))
  assert found['parameters'] + found['optimiser'] > 1e12


def test_the_batch_is_divided_over_the_mesh():
  c = small()
  c.train.update(batch_size=24, accumulate=3)
  for parts in 1, 2, 4, 8:
    plan.check_rows(c, parts)
  c.mesh.data = 5
  with pytest.raises(UserError, match=r'batch_size is 24; .* multiples of 15 '):
    summary.table(c, V)


def test_steps_of_an_epoch(tmp_path, corpus, monkeypatch, capsys):
  """Where a key is in epochs, and the text is there."""
  monkeypatch.setattr(summary, 'table', lambda *_: ['the table'])

  def printed(epochs, averaged):
    c = runs.config()
    c.train.update(batch_size=8, segment_len=3, epochs=epochs)
    c.optim.average_start_epoch = averaged
    c.optim.average = 'swa' if averaged else 'off'
    summary.run(runs.job(c, tmp_path))
    return capsys.readouterr().out.splitlines()[:2]

  assert printed(0, 0) == ['the table']
  for keys in (2, 0), (0, 2):
    assert printed(*keys) == ['the table', 'epoch 1 has 3 steps']
  refuse = mock.Mock(side_effect=UserError('no such text'))
  monkeypatch.setattr(preparation, 'locate_or_prepare', refuse)
  unknown = 'the number of steps per epoch is unknown: no such text'
  assert printed(2, 0) == ['the table', unknown]
