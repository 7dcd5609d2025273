"""A model whose loss and memory break at a token, and Trainers of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests import plain, programs
from txl_jax import models
from txl_jax.configs import common
from txl_jax.evaluation import scoring
from txl_jax.experiment import sections
from txl_jax.models import transformer_xl
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import watchdog
from txl_jax.runs import checkpoint, metrics_log
from txl_jax.runs import terminal as console_lib
from txl_jax.training import loop, plan, start

V, T, B, M = 12, 8, 4, 8
BAD = V - 1  # a token that makes the loss infinite


class Fragile(transformer_xl.TransformerXL):
  """Its loss is infinite where a segment holds BAD, its memory nan."""

  def __call__(self, tokens, targets, memory, **kwargs):
    out = super().__call__(tokens, targets, memory, **kwargs)
    bad = jnp.any(tokens == BAD)
    states = jax.tree.map(
      lambda x: jnp.where(bad, jnp.nan, x), out.memory.states
    )
    return out.replace(
      nll=jnp.where(bad, jnp.inf, out.nll),
      memory=out.memory.replace(states=states),
    )


@dataclasses.dataclass
class Vocabulary:
  unit: str = 'bpc'
  kind = 'bytes'
  sizes = None

  def __len__(self):
    return V


class Corpus(plain.Corpus):
  """Random tokens, with BAD in some of the batches."""

  vocabulary = Vocabulary()

  def __init__(self, bad=(), batches=60):
    rng = np.random.default_rng(0)
    streams = rng.integers(0, BAD, [B, batches * T + 1])
    streams[1, [n * T + 3 for n in bad]] = BAD
    self._train = streams.reshape(-1).astype(np.uint8)

  def tokens(self, split):
    if split == 'train':
      return self._train
    return np.arange(100, dtype=np.uint8) % BAD


class Console(console_lib.Console):
  """Keeps what is said."""

  def __init__(self):
    super().__init__(silent=True)
    self.said = []

  def say(self, text):
    self.said.append(text)


def config(**changes):
  c = common.get_config()
  c.model.update(n_layer=1, d_model=16, n_head=2, d_head=8, d_ff=16)
  c.train.update(steps=30, batch_size=B, segment_len=T, save_every=5)
  c.train.update(log_every=4, eval_every=30, eval_batch_size=2)
  c.train.update(tensorboard=False, nonfinite_limit=2)
  c.optim.update(lr=1e-2, average='ema', ema_decay=0.9)
  c.model.mem_len = changes.pop('mem_len', M)
  c.model.dtype = changes.pop('dtype', c.model.dtype)
  if epoch := changes.pop('average_start_epoch', 0):
    c.optim.update(average='swa', average_start_epoch=epoch)
    c.optim.schedule = 'constant'
  c.eval.segments_per_call = changes.pop('segments_per_call', 16)
  c.optim.update(changes.pop('optim', {}))
  c.train.update(changes)
  return sections.read(c)


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
  """The same program is compiled by one Trainer after the other."""
  folder = str(tmp_path_factory.mktemp('cache'))
  changes = {
    'jax_compilation_cache_dir': folder,
    'jax_persistent_cache_min_compile_time_secs': 0.0,
    'jax_persistent_cache_min_entry_size_bytes': -1,
  }
  before = {name: getattr(jax.config, name) for name in changes}
  for values in changes, before:
    for name, value in values.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()
    if values is changes:
      yield


@pytest.fixture
def make(tmp_path, monkeypatch, cache):
  """Makes a Trainer; the second one continues the run of the first.

  Its `batches` are those that it reads; `crash` is a function of the Trainer
  that says when reading one ends the run. `figures` are what its evaluations
  find, by their steps, in place of scores.
  """
  place = f'{__name__}.Fragile'
  monkeypatch.setitem(models.MODELS._PLACES, 'transformer_xl', place)

  def make(
    corpus,
    folder=tmp_path,
    crash=lambda trainer: False,
    figures=None,
    **changes,
  ):
    mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
    c = config(**changes)
    checkpoints = checkpoint.Checkpoints(
      folder / 'checkpoints', c.train.async_checkpoints
    )
    step = start.newest(checkpoints, folder, c.train.resume)
    saved = None if step is None else start.Saved.read(checkpoints, step)
    chosen = saved.host.kernel if saved else ''
    made = plan.make(c, corpus, mesh, step or 0, chosen)
    run = start.Run(c, corpus, folder, mesh, made, checkpoints, Console())
    position = start.restore(run, saved) if saved else start.fresh(run)
    trainer = loop.Trainer(run, position, watchdog.Watch())
    read, trainer.batches = trainer.streams.batch, []

    def batch(n, rows):
      if crash(trainer):
        raise KeyboardInterrupt
      trainer.batches.append(n)
      return read(n, rows)

    def score(*_, **__):
      return scoring.SplitScore(figures[trainer.step], 1, 1.0)

    trainer.streams.batch = batch
    if figures:
      monkeypatch.setattr(scoring, 'score', score)
    return trainer

  return make


def record(folder, split='train'):
  """The lines of the log of a split without their clock fields."""
  return [
    {k: v for k, v in r.items() if k not in programs.CLOCK}
    for r in metrics_log.read(folder / 'metrics.jsonl')
    if r['split'] == split
  ]
