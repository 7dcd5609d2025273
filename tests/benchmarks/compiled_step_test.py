"""What devices send to each other, read from compiled programs.

Eight CPU devices stand for eight TPUs, so that the rules hold in the programs
of one compiler; `python -m benchmarks hlo` shows it for the other.
"""

import functools
import importlib.util
import itertools
import json
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import txl_jax
from benchmarks import compiled_step, hlo, programs, topologies
from tests.training import plan_test
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data.documents import Documents
from txl_jax.data.vocabularies import Ids
from txl_jax.evaluation import scoring
from txl_jax.experiment import sections, text_score
from txl_jax.generation import decoding, text_writer
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program.errors import UserError
from txl_jax.training import plan

V, B, T, M, D = 84, 16, 8, 12, 32

MESHES = {
  'data': dict(data=8),
  'fsdp': dict(fsdp=8),
  'tensor': dict(tensor=8),
  'all': dict(data=2, fsdp=2, tensor=2),
  'slices': dict(slices=2, data=2, fsdp=2),
}
MODELS = {
  'characters': dict(),
  'words': dict(cutoffs=(24, 40), div_val=2, d_embed=16),
}


def config(model, mesh):
  c = common.get_config()
  c.mesh.update({'data': 1, **MESHES[mesh]})
  c.train.update(batch_size=B, segment_len=T)
  c.model.update(
    n_layer=3,
    d_model=D,
    n_head=8,
    d_head=8,
    d_ff=64,
    mem_len=M,
    dropatt=0.1,
    **MODELS[model],
  )
  return c


def compiled(values, devices=None, program='train'):
  """A program and its `programs.Call`, as `run` compiles them."""
  c = sections.read(values)
  mesh = mesh_lib.make_mesh(c.mesh, devices)
  call = programs.PROGRAMS[program](c, V, mesh)
  return call.lower().compile(), call


@functools.cache
def found(model, mesh):
  program, call = compiled(config(model, mesh))
  module = hlo.parse(program.as_text())
  exchanges = hlo.exchanges(module, call.memory)
  return exchanges, compiled_step.tables(call.params)


CASES = [
  pytest.param(
    *case, marks=[pytest.mark.slow] * (case != ('characters', 'all'))
  )
  for case in itertools.product(MODELS, MESHES)
]


@pytest.mark.thorough
@pytest.mark.parametrize('model, mesh', CASES)
def test_memory_and_tables_stay_where_they_are(model, mesh):
  exchanges, tables = found(model, mesh)
  assert exchanges, 'the gradients at least are summed'
  assert len(tables) == (1 if model == 'characters' else 3)
  assert compiled_step.check(exchanges, tables) == []


@pytest.mark.thorough
def test_gradients_are_summed_over_the_rows():
  """Of what is on every device, over all of them; by layers in the loop."""
  exchanges, _ = found('characters', 'all')
  summed = [c for c in exchanges if c.kind == 'all-reduce']
  assert {c.group for c in summed} >= {2, 4}
  assert max(c.times for c in exchanges) >= 3


@pytest.mark.parametrize(
  'used, how',
  [
    (75, 'fits'),
    (76, 'fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95'),
    (95, 'fits with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95'),
    (96, ''),
  ],
)
def test_what_fits_into_a_device(used, how):
  gpu = topologies.Hardware(
    memory=100, speed=1, bandwidth=1, pools=(0.75, 0.95)
  )
  assert compiled_step.fits(used, gpu) == how
  tpu = topologies.Hardware(memory=used, speed=1, bandwidth=1)
  assert compiled_step.fits(used, tpu) == 'fits'
  assert compiled_step.fits(used + 1, tpu) == ''


@pytest.mark.slow
def test_a_config_that_does_not_fit(monkeypatch, capsys, tmp_path):
  """Its bytes and collectives are printed all the same."""
  hardware = topologies.Hardware(memory=1000, speed=1e9, bandwidth=1e9)
  monkeypatch.setattr(
    topologies, 'describe', lambda *_: (jax.devices()[:2], hardware)
  )
  c = config('characters', 'data')
  c.mesh.data = 2
  c.data.corpus = 'enwik8'
  files = tmp_path / 'text', tmp_path / 'json'
  with pytest.raises(UserError, match=r'^v9:2x1: it does not fit'):
    compiled_step.run(c, 'v9:2x1', *map(str, files))
  first, _, _, used, of, *rest = capsys.readouterr().out.splitlines()
  assert first.startswith('v9:2x1: 2 devices of kind cpu; mesh: slices 1, data')
  total, *parts = map(float, re.findall(r'([\d.]+) GiB', used))
  assert total == pytest.approx(sum(parts), abs=0.03)
  assert of == 'of 0.00 GiB: does not fit'
  heads = [re.split(r'  +', line.strip())[0] for line in rest]
  for head in 'MiB each', 'collective', 'all, a call':
    assert head in heads
  assert files[0].read_text().startswith('HloModule jit_step')

  record = json.loads(files[1].read_text())
  assert record['benchmark'] == 'hlo' and record['sizes']['data'] == 2
  measured = {k: x['median'] for k, x in record['results'].items()}
  assert measured['sent'] > 0 and measured['read and written'] > 1e6


@pytest.mark.thorough
def test_the_batch_is_that_of_training(monkeypatch, capsys, tmp_path):
  """With a context and varying lengths, as for Penn Treebank.

  Lengths go up to T + 15. Half of the loss is the same arithmetic as all of it.
  Without a memory, the step does not read the other arrays.
  """
  one = jax.devices()[:1], None
  monkeypatch.setattr(topologies, 'describe', lambda *_: one)
  c = config('characters', 'data')
  c.mesh.data = 1
  c.model.update(n_layer=1, mem_len=0)
  c.train.update(context=6, varlen=True)
  c.data.corpus = 'enwik8'
  arithmetic = []
  for c.train.loss in 'full', 'half':
    files = tmp_path / 'text', tmp_path / c.train.loss
    compiled_step.run(c, 'v9:1x1', *map(str, files))
    program = hlo.parse(files[0].read_text())
    given = {
      x.source.replace('\\', ''): str(x.arrays[0])
      for x in program.computations[program.entry].values()
      if x.opcode == 'parameter' and x.source.startswith('batch')
    }
    assert given == {
      "batch['inputs']": f's32[{B},{6 + T + 15}]',
      "batch['targets']": f's32[{B},{T + 15}]',
      "batch['context']": f's32[{B}]',
    }
    record = json.loads(files[1].read_text())
    assert record['sizes']['tokens'] == B * (T + 15)
    arithmetic.append(record['results']['arithmetic']['median'])
  assert arithmetic[0] == arithmetic[1] > 0
  line = f'train: inputs {B} x {6 + T + 15}, targets {B} x {T + 15}, '
  assert f'\n{line}the longest of varying l' in capsys.readouterr().out


@pytest.mark.parametrize('documents, options', plan_test.CASES)
def test_a_batch_without_a_corpus(documents, options):
  """The widest of those that a run with a corpus compiles for."""
  c = plan_test.config(documents, options)
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
  text = plan.make_streams(c, plan_test.Corpus(documents != 'none'))
  batch = programs.widest_batch(c, mesh)
  assert batch == plan.batch_shapes(c, text, mesh)[-1]


@pytest.mark.thorough
def test_bytes_as_xla_counts_them():
  """Its own analysis has each loop once; that of the layers is unrolled."""
  c = config('characters', 'data')
  c.mesh.data = 1
  c.model.unroll = c.model.n_layer
  program, _ = compiled(c, jax.devices()[:1])
  found = hlo.traffic(hlo.parse(program.as_text())).nbytes
  moved = program.cost_analysis()['bytes accessed']
  assert found == pytest.approx(moved, rel=0.01)


def lowered_by(monkeypatch, module, name, run):
  """The program that `run` lowers when it calls module.name."""
  texts, plain = [], getattr(module, name)

  def lower(*args, **options):
    texts.append(plain.lower(*args, **options).as_text())
    return plain(*args, **options)

  monkeypatch.setattr(module, name, lower)
  run()
  return texts[0]


@pytest.mark.thorough
@pytest.mark.parametrize('documents', ['none', 'line'])
def test_a_call_of_scoring(monkeypatch, documents):
  """The one that evaluation makes on the devices of the mesh."""
  c = config('characters', 'data')
  c.mesh.data = 2
  c.data.update(corpus='text', path='a.txt', documents=documents)
  c.eval.update(batch_size=3, segment_len=4, segments_per_call=2)
  c.eval.model.mem_len = 40
  program, call = compiled(c, jax.devices()[:2], 'eval')
  assert call.tokens == 2 * 4 * 4  # with the row of padding
  read = sections.read(c)
  mesh = mesh_lib.make_mesh({'data': 2}, jax.devices()[:2])
  model = models.build(read.model, V)
  params = base.init_params(model, jax.random.key(0))
  params = jax.device_put(params, placement.replicated(mesh))
  text = np.zeros(3 * 8 + 1, np.int32)
  if documents == 'line':
    text = Documents(text, np.array([0, 8, 16, 24]))
  score = text_score.scorer(read, params, V, mesh, text)
  run = functools.partial(score, 1.0, lambda n: None)
  text = lowered_by(monkeypatch, scoring, 'jit_score', run)
  assert call.lower().as_text() == text
  exchanges = hlo.exchanges(hlo.parse(program.as_text()), call.memory)
  assert compiled_step.check(exchanges, compiled_step.tables(call.params)) == []


@pytest.mark.thorough
def test_a_call_of_generation(monkeypatch):
  c = config('characters', 'data')
  c.mesh.data = 1
  c.generate.update(samples=2, segment_len=4, top_k=3)
  _, call = compiled(c, jax.devices()[:1], 'decode')
  assert call.tokens == 2 * decoding.CHUNK
  read, names = sections.read(c), Ids.of_names({}, V)
  params = base.init_params(models.build(read.model, V), jax.random.key(0))
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
  params = jax.device_put(params, placement.replicated(mesh))
  writer = text_writer.make(read, params, names)
  plain = decoding.compiled_chunk('cpu')
  monkeypatch.setattr(decoding, 'chunk', plain, raising=False)
  monkeypatch.setattr(
    decoding, 'compiled_chunk', lambda _: lambda *args: decoding.chunk(*args)
  )
  rows = writer.make_rows([np.zeros(3, np.int32)], 2)
  run = functools.partial(list, writer.stream(rows, 2))
  assert call.lower().as_text() == lowered_by(
    monkeypatch, decoding, 'chunk', run
  )


COMPILERS = {'h200': 'jax_plugins.xla_cuda13', 'v5p:2x2x1': 'libtpu'}


def installed(module):
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:  # of the package around it
    return False


@pytest.mark.slow
@pytest.mark.parametrize('topology', COMPILERS)
def test_hardware_that_is_not_there(topology):
  if not installed(COMPILERS[topology]):
    pytest.skip(f'{COMPILERS[topology]} is not installed')
  command = 'hlo', f'--topology={topology}', '--config=configs/ptb_tiny.py'
  result = subprocess.run(
    [sys.executable, '-m', 'benchmarks', *command],
    cwd=pathlib.Path(txl_jax.__file__).parents[1],
    capture_output=True,
    text=True,
    timeout=600,
  )
  assert result.returncode == 0, result.stderr
  assert re.search(r'^of [\d.]+ GiB: fits$', result.stdout, re.MULTILINE)
