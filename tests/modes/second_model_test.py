"""A model that the package does not know does all that Transformer-XL does."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from tests import programs
from tests.models.convolution import CausalConvolution
from txl_jax import models
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.modes import evaluate, export, generate, sections, summary, train
from txl_jax.modes.job import Job
from txl_jax.parallel.watchdog import Watch
from txl_jax.runs import weights_file
from txl_jax.runs.console import Console

STEPS = 20


@pytest.fixture(scope='module', autouse=True)
def known():
  """It has a name, as a line in `models.MODELS` would give it."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(models.MODELS, 'convolution', CausalConvolution)
    yield


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp('corpus')
  programs.write_corpus(folder)
  return folder


def config(corpus, **mesh):
  c = sections.compose('convolution')
  c.data.update(
    corpus='text', path=f'{corpus}/corpus.txt', dir=f'{corpus}/data'
  )
  c.train.update(
    steps=STEPS, batch_size=8, segment_len=8, eval_batch_size=3,
    eval_tokens=300, log_every=5, eval_every=10, save_every=10,
  )  # fmt: skip
  c.optim.update(lr=1e-2, weight_decay=0.01, average='ema')
  c.eval.update(segment_len=8, batch_size=2)
  c.generate.max_new_tokens = 12
  c.mesh.update(mesh)
  sections.check(c)
  return c


def job(config, folder, **changes):
  with Watch() as watch:
    return Job(
      config, pathlib.Path(folder), Console(silent=True), watch,
      **{'export_file': 'unused', **changes},
    )  # fmt: skip


@pytest.fixture(scope='module')
def run(corpus, tmp_path_factory):
  """A finished run on one device's worth of mesh, and its job."""
  folder = tmp_path_factory.mktemp('run')
  made = job(config(corpus), folder)
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
  assert figures[-1] < figures[0] - 0.5


def test_resumes_bit_for_bit(run, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(run.folder, folder)
  shutil.rmtree(folder / 'checkpoints' / str(STEPS))
  train.run(job(run.config, folder))
  assert record(folder) == record(run.folder)
  params = [exported(run.config, x, tmp_path)[1] for x in (folder, run.folder)]
  jax.tree.map(np.testing.assert_array_equal, *params)


def exported(config, folder, tmp_path):
  """(model, params, vocabulary) by way of a file."""
  path = tmp_path / 'model.npz'
  export.run(job(config, folder, export_file=str(path)))
  return weights_file.load(path)


def test_evaluates_as_token_by_token(run, tmp_path):
  """The split's figure is that of the whole text in one segment."""
  run.config.eval.batch_size = 1
  score = evaluate.run(run)
  tokens = run.corpus().tokens('validation').astype(np.int32)[None]
  model, params, _ = exported(run.config, run.folder, tmp_path)
  out = model.apply(
    {'params': params},
    tokens[:, :-1], tokens[:, 1:], model.init_memory(1), train=False,
  )  # fmt: skip
  np.testing.assert_allclose(score.nll, np.sum(out.nll), rtol=1e-5)


def test_generates_what_rereading_gives(run, capfd, tmp_path):
  run.config.generate.update(temperature=0.0, prompt='the memory', stream=False)
  generate.run(run)
  printed = capfd.readouterr().out
  model, params, vocabulary = exported(run.config, run.folder, tmp_path)
  text = list(vocabulary.encode(b'the memory', 'it'))
  for _ in range(12):
    logits, _ = model.apply(
      {'params': params},
      np.array([text], np.int32), model.init_memory(1), method='logits',
    )  # fmt: skip
    text.append(int(logits[0, -1].argmax()))
  assert printed == vocabulary.decode(text).decode(errors='replace') + '\n'
  pieces = decoding.generate(
    model, params, text, sampling=Sampling(), max_new_tokens=5, seed=0,
    segment_len=4, samples=3,
  )  # fmt: skip
  assert np.concatenate(list(pieces), axis=1).shape == (3, 5)


def test_exports_without_the_head_of_training(run, tmp_path):
  model, params, _ = exported(run.config, run.folder, tmp_path)
  assert isinstance(model, CausalConvolution)
  assert params.keys() == {'vocabulary', 'first', 'second'}


def test_is_summed_up(run):
  lines = summary.table(run.config, 256)
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


def test_is_divided_over_devices(corpus, run, tmp_path):
  """Eight devices, each axis in use: the same figures."""
  c = config(corpus, data=2, fsdp=2, tensor=2)
  train.run(job(c, tmp_path))
  for ours, theirs in zip(record(tmp_path), record(run.folder)):
    assert ours['step'] == theirs['step']
    np.testing.assert_allclose(ours['nats'], theirs['nats'], rtol=1e-4)
  (line,) = (x for x in summary.table(c, 256) if x.startswith('mesh: '))
  assert line.endswith('8 devices')
  parts = [x.split() for x in summary.table(c, 256) if x.startswith('first/')]
  assert parts and all('tensor' in ' '.join(words) for words in parts)


def test_refuses_what_it_has_not(corpus):
  c = sections.compose('convolution')
  assert not c.eval.model.keys()
  with pytest.raises(AttributeError):
    c.model.mem_len = 3
