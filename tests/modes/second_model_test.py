"""Every model does all that Transformer-XL does; one is not of the package."""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests import programs
from tests.models.cases import CASES
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.experiment import sections
from txl_jax.experiment.job import Job
from txl_jax.models import base
from txl_jax.modes import evaluate, export, generate, summary, train
from txl_jax.parallel.watchdog import Watch
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file
from txl_jax.runs.terminal import Console

pytestmark = pytest.mark.thorough

STEPS = 20


@pytest.fixture(scope='module', autouse=True)
def known():
  """It has a name, as a line in `models.MODELS` would give it."""
  with pytest.MonkeyPatch.context() as patch:
    place = f'{CausalConvolution.__module__}.CausalConvolution'
    patch.setitem(models.MODELS._PLACES, 'convolution', place)
    yield


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corpus')
  programs.write_corpus(folder)
  return folder


def config(corpus, name='convolution', **mesh):
  c = sections.compose(name)
  c.model.update(CASES[name].run)
  c.update_from_flattened_dict(CASES[name].options)
  c.data.update(
    corpus='text', path=f'{corpus}/corpus.txt', dir=f'{corpus}/data'
  )
  c.train.update(
    steps=STEPS, batch_size=8, segment_len=8, eval_batch_size=3,
    eval_tokens=300, log_every=5, eval_every=10, save_every=10,
  )  # fmt: skip
  # An eps that keeps Adam from making much of a gradient's last digits.
  c.optim.update(lr=1e-2, eps=1e-4, weight_decay=0.01, average='ema')
  c.eval.update(segment_len=8, batch_size=2)
  c.generate.max_new_tokens = 12
  c.mesh.update(mesh)
  return sections.read(c)


def job(config, folder, **changes):
  with Watch() as watch:
    return Job(
      config, pathlib.Path(folder), Console(silent=True), watch,
      **{'export_file': 'unused', **changes},
    )  # fmt: skip


@pytest.fixture(
  scope='module',
  params=[
    # Half a minute each.
    pytest.param(name, marks=[pytest.mark.slow] * case.slow_run)
    for name, case in CASES.items()
    if name != 'transformer_xl'
  ],
)
def run(request, corpus, tmp_path_factory):
  """A finished run on one device's worth of mesh, and its job."""
  folder = tmp_path_factory.mktemp('run')
  made = job(config(corpus, request.param), folder)
  train.run(made)
  return made


def record(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [
    {k: r[k] for k in ('step', 'split', 'nats', 'bpc')}
    for r in map(json.loads, lines)
  ]


def test_trains(run):
  figures = [r['nats'] for r in record(run.folder) if r['split'] == 'train']
  assert len(figures) == STEPS // 5
  assert figures[-1] < figures[0] - 0.3


def test_resumes_bit_for_bit(run, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(run.folder, folder)
  shutil.rmtree(folder / 'checkpoints' / str(STEPS))
  train.run(job(run.config, folder))
  assert record(folder) == record(run.folder)
  params = [exported(run.config, x, tmp_path)[1] for x in (folder, run.folder)]
  jax.tree.map(np.testing.assert_array_equal, *params)


def changed(run, **values):
  """The job of a run with other values of section__key."""
  values = {k.replace('__', '.'): x for k, x in values.items()}
  return dataclasses.replace(run, config=sections.changed(run.config, values))


def exported(config, folder, tmp_path):
  """(model, params, vocabulary) by way of a file."""
  path = tmp_path / 'model.npz'
  export.run(job(config, folder, export_file=str(path)))
  return weights_file.load(path)


def test_evaluates_as_segment_by_segment(run, tmp_path):
  """The figure is that of the text read by hand, the short end included."""
  run = changed(run, eval__batch_size=1, eval__window=0)
  score = evaluate.run(run)
  tokens = run.corpus().tokens('validation').astype(np.int32)[None]
  model, params, _ = exported(run.config, run.folder, tmp_path)
  memory, total = model.init_memory(1), 0.0

  @jax.jit
  def read(x, y, memory):
    return model.apply({'params': params}, x, y, memory, train=False)

  for start in range(0, tokens.shape[1] - 1, 8):
    part = tokens[:, start : start + 9]
    out = read(part[:, :-1], part[:, 1:], memory)
    memory, total = out.memory, total + float(out.nll.sum())
  assert (tokens.shape[1] - 1) % 8  # the end is short
  np.testing.assert_allclose(score.nll, total, rtol=1e-5)


def test_evaluates_behind_a_window(run, tmp_path):
  """Of models without memory: each token after the five before it."""
  run = changed(run, eval__batch_size=2, eval__window=5)
  model, params, _ = exported(run.config, run.folder, tmp_path)
  if model.remembers():
    with pytest.raises(UserError, match=r'eval\.window is 5; allowed: 0'):
      evaluate.run(run)
    return
  score = evaluate.run(run)
  tokens = run.corpus().tokens('validation').astype(np.int32)
  pairs = len(tokens) - 1
  starts = [0, -(-pairs // 2), pairs]  # two streams
  total = 0.0
  for a, b in itertools.pairwise(starts):
    early = [tokens[a : a + n + 1] for n in range(1, 5)]
    for piece in early:
      total += last_nll(model, params, piece[None])
    windows = np.stack([tokens[n : n + 6] for n in range(a, b - 4)])
    total += last_nll(model, params, windows)
  np.testing.assert_allclose(score.nll, total, rtol=1e-5)


def last_nll(model, params, rows):
  """Summed over rows, of the last token of int [rows, n], after the others."""
  none, (inputs, targets) = (), (rows[:, :-1], rows[:, 1:])
  run = jax.jit(functools.partial(model.apply, train=False))
  return float(run({'params': params}, inputs, targets, none).nll[:, -1].sum())


def test_generates_what_rereading_gives(run, capfd, tmp_path):
  greedy = dict(generate__temperature=0.0, generate__prompt='the memory')
  run = changed(run, **greedy)
  generate.run(run)
  printed = capfd.readouterr().out
  model, params, vocabulary = exported(run.config, run.folder, tmp_path)
  text = list(vocabulary.encode(b'the memory', 'it'))
  seen = 24 if model.remembers() else 8  # a window as long as a segment

  @jax.jit
  def after(tokens, lengths):
    more = dict(lengths=lengths, last=True, method='logits')
    memory = model.init_memory(1)
    return model.apply({'params': params}, tokens, memory, **more)[0]

  for _ in range(12):
    window = np.array(text[-seen:], np.int32)
    padded = np.pad(window, (0, seen - len(window)))[None]
    text.append(int(after(padded, np.array([len(window)])).argmax()))
  assert printed == vocabulary.decode(text).decode(errors='replace') + '\n'


def test_exports_without_what_only_training_has(run, tmp_path):
  model, params, _ = exported(run.config, run.folder, tmp_path)
  assert type(model) is models.MODELS[run.config.model.name]
  assert not params.keys() & {'head', 'auxiliary'}
  expected = model.inference_params(base.param_shapes(model))
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, expected)


def test_is_summed_up(run):
  lines = summary.table(run.config, 256)
  model = models.build(run.config.model, 256)
  every = base.param_shapes(model)
  sizes = [
    sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
    for tree in (every, model.inference_params(every))
  ]
  assert f'parameters: {sizes[0]}' in lines
  line = f'parameters at inference: {sizes[1]}'
  assert (line in lines) == (sizes[0] != sizes[1])
  trains_more = CASES[run.config.model.name].trains_more
  assert (sizes[0] != sizes[1]) == trains_more


def test_the_convolution_is_summed_up(corpus):
  lines = summary.table(config(corpus), 256)
  D, C, k, V = 12, 16, 3, 256
  used = V * D + V + k * D * C + C + k * C * D + D
  assert f'parameters: {used + C * V + V}' in lines
  assert f'parameters at inference: {used}' in lines
  # Two convolutions, twice in training for the head, and the softmax.
  layers, words, head = 2 * 2 * k * D * C, 2 * D * V, 2 * C * V
  (flops,) = (x for x in lines if x.startswith('FLOPs per token: '))
  expected = (2 * layers + words + head) / 1e6
  # The segment's first tokens see k - 1 more inputs, which count nothing.
  assert flops.startswith(f'FLOPs per token: {expected:,.1f} M scored')


@pytest.mark.slow
def test_is_divided_over_devices(corpus, run, tmp_path):
  """Eight devices, each axis in use: the same figures."""
  c = config(corpus, run.config.model.name, data=2, fsdp=2, tensor=2)
  train.run(job(c, tmp_path))
  for ours, theirs in zip(record(tmp_path), record(run.folder)):
    assert ours['step'] == theirs['step']
    np.testing.assert_allclose(ours['nats'], theirs['nats'], rtol=1e-4)
  lines = summary.table(c, 256)
  (line,) = (x for x in lines if x.startswith('mesh: '))
  assert line.endswith('8 devices')
  start = CASES[c.model.name].tensor
  parts = [x for x in lines if x.startswith(start)]
  assert parts and all('tensor' in x for x in parts)


def test_refuses_what_it_has_not(corpus):
  c = sections.compose('convolution')
  assert not c.eval.model.keys()
  with pytest.raises(AttributeError):
    c.model.mem_len = 3
