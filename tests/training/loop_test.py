"""The training loop in this process: what it does when things go wrong."""

import contextlib
import dataclasses
import functools
import json
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests import compilations, plain, programs
from tests.ops.kernels import plain_kernel
from txl_jax import models
from txl_jax.configs import common
from txl_jax.data.documents import Documents
from txl_jax.evaluation import scoring
from txl_jax.experiment import sections
from txl_jax.models import transformer_xl
from txl_jax.ops.kernels import dispatch, proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import watchdog
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, metrics_log, wandb_run
from txl_jax.runs import terminal as console_lib
from txl_jax.training import host_state, loop, optim, plan, start

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
  c.model.update(n_layer=1, d_model=16, n_head=2, d_head=8, d_ff=16, mem_len=M)
  c.train.update(
    steps=30,
    batch_size=B,
    segment_len=T,
    log_every=4,
    eval_every=30,
    eval_batch_size=2,
    save_every=5,
    tensorboard=False,
    nonfinite_limit=2,
  )
  c.optim.update(lr=1e-2, average='ema', ema_decay=0.9)
  c.model.mem_len = changes.pop('mem_len', M)
  if epoch := changes.pop('average_start_epoch', 0):
    c.optim.update(average='swa', average_start_epoch=epoch)
    c.optim.schedule = 'constant'
  c.eval.segments_per_call = changes.pop('segments_per_call', 16)
  c.optim.update(changes.pop('optim', {}))
  c.train.update(changes)
  return sections.read(c)


@pytest.fixture(scope='module', autouse=True)
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


@pytest.fixture(autouse=True)
def fragile(monkeypatch):
  place = f'{__name__}.Fragile'
  monkeypatch.setitem(models.MODELS._PLACES, 'transformer_xl', place)


@pytest.fixture
def make(tmp_path):
  """Makes a Trainer; the second one continues the run of the first.

  Its `batches` are those that it reads; `crash` is a function of the Trainer
  that says when reading one ends the run.
  """

  def make(corpus, folder=tmp_path, crash=lambda trainer: False, **changes):
    mesh = mesh_lib.make_mesh(devices=jax.devices()[:1])
    c = config(**changes)
    checkpoints = checkpoint.Checkpoints(
      folder / 'checkpoints', c.train.async_checkpoints
    )
    step = start.newest(checkpoints, folder, c.train.resume)
    read = functools.partial(host_state.HostState.read, checkpoints)
    saved = None if step is None else read(step)
    chosen = saved.attention if saved else ''
    made = plan.make(c, corpus, mesh, step or 0, chosen)
    run = start.Run(c, corpus, folder, mesh, made, checkpoints, Console())
    position = start.restore(run, step, saved) if saved else start.fresh(run)
    trainer = loop.Trainer(run, position, watchdog.Watch())
    read, trainer.batches = trainer.streams.batch, []

    def batch(n, rows):
      if crash(trainer):
        raise KeyboardInterrupt
      trainer.batches.append(n)
      return read(n, rows)

    trainer.streams.batch = batch
    return trainer

  return make


def record(folder):
  """The lines of the log of training without their clock fields."""
  return [
    {k: v for k, v in r.items() if k not in programs.CLOCK}
    for r in metrics_log.read(folder / 'metrics.jsonl')
    if r['split'] == 'train'
  ]


def restore(trainer, step):
  """The state of a checkpoint."""
  saved = host_state.HostState.read(trainer.checkpoints, step)
  return jax.device_get(start.restore(trainer.fixed, step, saved).state)


def test_a_validation_split_that_is_too_short(make):
  corpus = Corpus()
  tokens = corpus.tokens
  corpus.tokens = lambda split: tokens(split)[: None if split == 'train' else 1]
  with pytest.raises(UserError, match='the validation split has 1 tokens'):
    make(corpus)


@pytest.mark.thorough
def test_the_choice_of_attention_is_kept(make, monkeypatch):
  """Of a kernel that is proven, used, and not proven again."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
  trainer = make(Corpus(), crash=lambda trainer: trainer.step == 6)
  assert trainer.fixed.attention.startswith('triton for float32, T ')
  assert trainer.model.config.attention == 'triton'
  with pytest.raises(KeyboardInterrupt):
    trainer.run()
  monkeypatch.setattr(proof, 'check', None)
  again = make(Corpus())
  assert again.step > 0 and again.fixed.attention == trainer.fixed.attention
  monkeypatch.setitem(dispatch._BEST, 'cpu', ())
  assert make(Corpus()).model.config.attention == 'triton'


def test_attention_is_told_of_before_the_step_is_compiled(monkeypatch):
  """Plain operations need more memory, so compilation may fail."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
  wrong = lambda name, case: ('it differs in result', 0.0)
  monkeypatch.setattr(proof, 'check', wrong)

  def too_large(*args):
    raise UserError('a training step needs more')

  monkeypatch.setattr(plan, '_compile', too_large)
  mesh, lines = mesh_lib.make_mesh(devices=jax.devices()[:1]), []
  with pytest.raises(UserError, match='needs more'):
    plan.make(config(), Corpus(), mesh, 0, '', lines.append)
  assert len(lines) == 1 and 'triton is not used: it differs' in lines[0]


@pytest.mark.thorough
def test_averages_are_evaluated(make, tmp_path):
  trainer = make(Corpus())
  trainer.run()
  (line,) = (
    r
    for r in metrics_log.read(tmp_path / 'metrics.jsonl')
    if r['split'] != 'train'
  )
  average = trainer.state.average
  nats = [
    scoring.score(
      trainer.model.at_test_time(T),
      params,
      trainer.corpus.tokens('validation'),
      batch_size=2,
      segment_len=T,
      segments_per_call=16,
      mesh=trainer.mesh,
    ).nats
    for params in (average.params, trainer.state.params)
  ]
  assert line['averaged'] == 30 == average.count
  assert line['nats'] == nats[0] != nats[1]


@pytest.mark.thorough
def test_segments_longer_than_the_validation_split_need_no_more(
  make, monkeypatch
):
  def score(model, *args, segment_len, **kwargs):
    # 99 pairs in one row, rounded up to a power of two.
    assert 128 <= segment_len < 256 and model.longest == segment_len
    raise UserError('enough')

  place = 'txl_jax.models.transformer_xl.TransformerXL'  # it has a ring
  monkeypatch.setitem(models.MODELS._PLACES, 'transformer_xl', place)
  monkeypatch.setattr(scoring, 'score', score)
  trainer = make(Corpus(), steps=1, eval_segment_len=1_000_000)
  with pytest.raises(UserError, match='enough'):
    trainer.run()


@pytest.mark.thorough
def test_the_end_of_an_epoch_compiles_nothing_again(make, tmp_path):
  """Its last segment is short; so is that of the validation split."""
  corpus = Corpus()
  corpus._train = corpus._train[: B * (11 * T + 3) + 1]
  with compilations.counted() as compiled:
    trainer = make(corpus, eval_every=15, segments_per_call=2)
    trainer.run()
  assert [trainer.streams.locate(n) for n in (11, 12, 24)] == [
    (0, 11),
    (1, 0),
    (2, 0),
  ]
  assert (trainer.streams.batch(11, [0]).targets[0] >= 0).sum() == 3
  assert record(tmp_path)[-1]['epoch'] == 2
  assert trainer.train_step._cache_size() == 1
  for name in 'step', 'score_segments':
    assert compiled.count(f'jit({name})') == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
  'context', [5, pytest.param(0, marks=pytest.mark.slow)]
)
def test_lengths_vary_and_epochs_end(make, tmp_path, monkeypatch, context):
  """As many programs as widths; a run that was cut off goes on to the bit."""
  if context:  # without a memory, which Fragile looks into
    name = 'transformer_xl'
    place = '.transformer_xl.TransformerXL'
    monkeypatch.setitem(models.MODELS._PLACES, name, place)
  options: dict = dict(varlen=True, varlen_rate=True, rows='apart')
  options |= dict(context=context, eval_segment_len=3, eval_context=context)
  options |= dict(steps=1000, epochs=3, eval_every_epochs=1, log_every=7)
  options |= dict(mem_len=0 if context else M, average_start_epoch=1)
  options['save_every'] = 25
  corpus = Corpus(batches=30)
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  whole.mkdir()
  cut.mkdir()
  with compilations.counted() as compiled:
    trainer = make(corpus, whole, **options)
    trainer.run()
  text = plan.make_streams(config(**options), corpus)
  ends = [text.first_step(n) for n in (1, 2, 3)]
  assert trainer.step == ends[-1] and trainer.batches == [*range(ends[-1])]
  assert 75 < ends[-1] < 125
  used = {text.batch(n, [0]).inputs.shape[1] for n in range(ends[-1])}
  assert used == {context + width for width in text.widths[:3]}
  assert trainer.train_step._cache_size() == len(used)
  assert compiled.count('jit(step)') == len(text.widths)
  log = metrics_log.read(whole / 'metrics.jsonl')
  evaluated = [r for r in log if r['split'] == 'validation']
  assert [(r['step'], r['epochs']) for r in evaluated] == [
    *zip(ends, (1, 2, 3))
  ]
  assert [r['averaged'] for r in evaluated] == [
    0,
    *(n - ends[0] for n in ends[1:]),
  ]
  rates = {r['lr'] for r in log if r['split'] == 'train'}
  assert rates == {float(np.float32(1e-2))}  # before it is scaled
  score = scoring.score(
    trainer.model.at_test_time(3),
    trainer.weights(),
    trainer.corpus.tokens('validation'),
    batch_size=2,
    segment_len=3,
    segments_per_call=16,
    context=context,
    mesh=trainer.mesh,
  )
  assert evaluated[-1]['nats'] == score.nats
  with pytest.raises(KeyboardInterrupt):
    make(corpus, cut, lambda t: t.step == ends[1] + 2, **options).run()
  trainer_2 = make(corpus, cut, **options)
  assert 0 < trainer_2.step < ends[1] + 2
  trainer_2.run()
  same = np.testing.assert_array_equal
  jax.tree.map(same, *map(jax.device_get, (trainer.state, trainer_2.state)))
  # It goes on for an epoch more, but ends no earlier than it is.
  longer = make(corpus, cut, **options | {'epochs': 4})
  longer.run()
  assert longer.step == text.first_step(4)
  end = '^train.epochs is 3; allowed: at least 4, as the run has made '
  with pytest.raises(UserError, match=f'{end}{longer.step} steps'):
    make(corpus, cut, **options)


def test_epochs_in_steps(make):
  c = config(epochs=4, steps=100, average_start_epoch=2)
  text = plan.make_streams(c, Corpus())  # 60 steps an epoch
  assert plan.summary_lines(c, text) == [
    'epoch 1 has 60 steps',
    'training ends after step 100',
    'weights are averaged after step 120',
  ]
  assert plan.summary_lines(config(), text) == []
  c = settings.replace(c, {'optim.warmup': 101})
  line = plan.summary_lines(c, text)[-1]
  assert line.startswith('warning: training has 100 steps and optim.warmup 101')
  assert line.endswith('--config.optim.warmup=10')
  # No more epochs of varying length are drawn than train.steps allow.
  c = config(epochs=1_000_000, steps=100, varlen=True)
  text = plan.make_streams(c, Corpus())
  assert plan.summary_lines(c, text)[1] == 'training ends after step 100'
  assert text.first_step(len(text._first_step) - 2) <= 100


@pytest.mark.thorough
def test_the_best_checkpoint_is_kept(make, monkeypatch):
  """However many worse ones follow it, in this program or the next."""
  figures = {6: 3.0, 12: 2.0, 18: 2.5, 24: 2.6, 30: 2.7}
  options = dict(eval_every=6)

  def run(**more):
    trainer = make(Corpus(), **options, **more)

    def score(*arguments, **_):
      return scoring.SplitScore(figures[trainer.step], 1, 1.0)

    monkeypatch.setattr(scoring, 'score', score)
    trainer.run()
    return trainer

  with pytest.raises(KeyboardInterrupt):
    run(crash=lambda t: t.step == 22)
  trainer = run()
  assert trainer.progress.best_step == 12
  found = trainer.checkpoints
  assert [s for s in found.steps() if found.usable(s)] == [30, 25, 12]
  assert restore(trainer, 12).step == 12


@pytest.mark.thorough
def test_stop_is_the_default(make):
  trainer = make(Corpus(bad=[12]))
  with pytest.raises(loop.NotFinite, match='not finite at step 13; the last'):
    trainer.run()
  assert trainer.checkpoints.newest() == 10
  assert trainer.checkpoints.steps() == [10, 5]


@pytest.mark.thorough
def test_rates_are_those_of_the_steps(make, tmp_path):
  """Whatever lies between two lines: evaluations, saves, a new start."""
  each = 0.1  # seconds that a step takes at least
  options = dict(log_every=8, eval_every=12, save_every=10)

  def slow(trainer):
    step = trainer.train_step

    def slower(*arguments):
      time.sleep(each)
      return step(*arguments)

    trainer.train_step = slower
    return trainer

  trainer = slow(make(Corpus(), crash=lambda t: t.step == 23, **options))
  with pytest.raises(KeyboardInterrupt):
    trainer.run()
  slow(make(Corpus(), **options)).run()
  records = metrics_log.read(tmp_path / 'metrics.jsonl')
  lines = [r for r in records if r['split'] == 'train']
  assert [r['step'] for r in lines] == [8, 16, 24, 30]
  # A line of n steps holds n of these waits, one more or one less; the second
  # start makes 4 of the 8 steps of its first line.
  speed = [line['tokens_per_second'] * each / (B * T) for line in lines]
  assert max(speed) <= 1.4
  assert speed[1] > 1 / 4  # nothing is compiled in it


def test_rollback_passes_over_the_batches(make, tmp_path):
  trainer = make(Corpus(bad=[12]), nonfinite='rollback')
  trainer.run()
  read = trainer.batches
  at = next(i for i in range(1, len(read)) if read[i] != read[i - 1] + 1)
  assert read[:at] == [*range(at)] and 13 <= at <= 17
  assert read[at:] == [*range(13, 13 + 20)]
  lines = record(tmp_path)
  assert [r['step'] for r in lines] == [*range(4, 30, 4), 30]
  assert [r['rollbacks'] for r in lines] == [0, 0] + [1] * 6
  said = '\n'.join(trainer.console.said)
  assert 'not finite at step 13; rollback 1 of at most 2' in said
  assert 'continuing from step 10' in said


@pytest.mark.thorough
def test_a_run_that_a_function_ends_at_a_save_is_evaluated(make):
  trainer = make(Corpus(), log_every=5)
  trainer._on_record = lambda record: record['step'] == 10
  progress = trainer.run()
  assert trainer.step == progress.evaluated == progress.best_step == 10
  assert trainer.checkpoints.steps()[0] == 10
  saved = host_state.HostState.read(trainer.checkpoints, 10)
  assert saved.progress == progress


@pytest.mark.thorough
def test_a_run_that_a_function_ends_at_step_0_has_a_checkpoint(make):
  trainer = make(Corpus())
  trainer._position = dataclasses.replace(trainer._position, converted=True)
  trainer._on_record = lambda record: record['split'] == 'validation'
  trainer.run()
  assert trainer.checkpoints.steps() == [1]
  assert 'training ends at step 1, as asked' in trainer.console.said


def test_bits_of_an_evaluation_of_documents(make, tmp_path):
  """They are of the bytes of all tokens but the first, which is not scored."""
  corpus, sizes = Corpus(), np.arange(V) + 1
  corpus.vocabulary = Vocabulary()
  corpus.vocabulary.sizes = sizes
  tokens = corpus.tokens('validation').astype(np.int32)
  streams = {
    'train': corpus.tokens('train'),
    'validation': Documents(tokens, np.array([0, 40, 99])),
  }
  corpus.token_stream = lambda split, count=0: streams[split]
  make(corpus, steps=2).run()
  log = metrics_log.read(tmp_path / 'metrics.jsonl')
  (record,) = (r for r in log if r['split'] == 'validation')
  expected = record['nats'] * 99 / np.log(2) / sizes[tokens[1:]].sum()
  assert record['tokens'] == 99
  assert record['bpb'] == pytest.approx(expected, rel=1e-6)


def test_a_log_that_cannot_be_opened_closes_wandb(make, monkeypatch):
  class Wandb:
    url, write, closed = '', None, False

    def close(self):
      self.closed = True

  def refuse(*_):
    raise UserError('no space')

  trainer, opened = make(Corpus(), wandb='mine'), Wandb()
  monkeypatch.setattr(wandb_run, 'Run', lambda *_: opened)
  monkeypatch.setattr(metrics_log, 'Log', refuse)
  with pytest.raises(UserError, match='no space'):
    trainer.run()
  assert opened.closed


class EpochsOfTen:
  """Streams whose epochs end after every ten batches."""

  def __init__(self, streams):
    self._streams = streams

  def __getattr__(self, name):
    return getattr(self._streams, name)

  def locate(self, step):
    return divmod(step, 10)


@pytest.mark.thorough
def test_an_end_of_an_epoch_that_is_passed_over(make, tmp_path, monkeypatch):
  """The step that the rollback returns to is evaluated instead."""
  figures = {10: 2.0, 20: 3.0, 16: 1.0, 23: 3.0, 30: 3.0}
  options = dict(eval_every_epochs=1, save_every=8, nonfinite='rollback')

  def made(**more):
    trainer = make(Corpus(bad=[22]), **options, **more)
    trainer.streams = EpochsOfTen(trainer.streams)
    score = lambda *_, **__: scoring.SplitScore(figures[trainer.step], 1, 1.0)
    monkeypatch.setattr(scoring, 'score', score)
    return trainer

  with pytest.raises(KeyboardInterrupt):
    made(crash=lambda t: t.progress.rollbacks and t.step == 18).run()
  trainer = made()
  assert (trainer.step, trainer.progress.passed_over) == (16, 7)
  assert trainer.state.memory.filled.tolist() == [0] * B
  trainer.run()
  assert trainer.batches == [*range(23, 37)]
  log = metrics_log.read(tmp_path / 'metrics.jsonl')
  ends = [(r['step'], r['epochs']) for r in log if r['split'] == 'validation']
  assert ends == [(10, 1), (16, 2), (23, 3), (30, 3)]


@pytest.mark.thorough
def test_a_rollback_to_an_evaluated_step(make, tmp_path, monkeypatch):
  """The epoch whose end it passes over is evaluated a step later."""
  options = dict(eval_every_epochs=1, save_every=100, nonfinite='rollback')
  trainer = make(Corpus(bad=[22]), **options)
  trainer.streams = EpochsOfTen(trainer.streams)
  figures = {10: 1.0, 11: 2.0, 17: 2.0, 20: 2.0, 27: 2.0, 30: 2.0}
  score = lambda *_, **__: scoring.SplitScore(figures[trainer.step], 1, 1.0)
  monkeypatch.setattr(scoring, 'score', score)
  trainer.run()
  assert trainer.batches[-20:] == [*range(23, 43)]
  log = metrics_log.read(tmp_path / 'metrics.jsonl')
  ends = [(r['step'], r['epochs']) for r in log if r['split'] == 'validation']
  assert ends == [(10, 1), (11, 2), (17, 3), (27, 4), (30, 4)]


@pytest.mark.slow
def test_a_rollback_is_made_again_after_a_crash(make, tmp_path):
  corpus = Corpus(bad=[12, 20])
  whole = tmp_path / 'whole'
  whole.mkdir()
  make(corpus, whole, nonfinite='rollback').run()
  assert record(whole)[-1]['rollbacks'] == 2
  for crash in 13, 21:
    trainer = make(
      corpus,
      crash=lambda t, at=crash: t.progress.rollbacks and t.step == at,
      nonfinite='rollback',
    )
    with pytest.raises(KeyboardInterrupt):
      trainer.run()
  make(corpus, nonfinite='rollback').run()
  assert record(tmp_path) == record(whole)


def test_rollback_has_a_limit_and_needs_a_checkpoint(make, tmp_path):
  trainer = make(Corpus(bad=[12, 14, 16]), nonfinite='rollback')
  with pytest.raises(loop.NotFinite, match='not finite at step'):
    trainer.run()
  assert trainer.progress.rollbacks == 2
  lowered = make(Corpus(bad=[12]), nonfinite='rollback', nonfinite_limit=1)
  lowered.progress = dataclasses.replace(lowered.progress, rollbacks=2)
  with pytest.raises(loop.NotFinite, match='not finite at step'):
    lowered.run()
  other = tmp_path / 'other'
  other.mkdir()
  trainer = make(Corpus(bad=[2]), other, nonfinite='rollback')
  message = 'step 3; no checkpoint was .*a higher train.nonfinite_limit'
  with pytest.raises(loop.NotFinite, match=message):
    trainer.run()


@pytest.mark.thorough
def test_weights_that_are_not_finite_are_not_evaluated(make, tmp_path):
  """Also where no line of the log came before the evaluation."""
  cadence = dict(log_every=20, eval_every=14, save_every=10)
  trainer = make(Corpus(bad=[12]), **cadence)
  with pytest.raises(loop.NotFinite, match='not finite at step 13'):
    trainer.run()
  assert not (tmp_path / 'metrics.jsonl').read_text()


@pytest.mark.slow
def test_another_batch_size_empties_the_memory(make, tmp_path):
  corpus = Corpus(batches=40)
  with pytest.raises(KeyboardInterrupt):
    make(corpus, crash=lambda t: t.step == 10).run()
  same = make(corpus)
  assert same.state.memory.filled.tolist() == [M] * B
  assert same.console.said == ['continuing from step 10']
  trainer = make(corpus, batch_size=2 * B)
  assert trainer.console.said == [
    'continuing from step 10; the memory starts empty',
    f'changed: train.batch_size {2 * B}, was {B}',
  ]
  assert trainer.state.memory.filled.tolist() == [0] * 2 * B
  jax.tree.map(
    np.testing.assert_array_equal, trainer.state.params, same.state.params
  )
  trainer.run()
  lines = record(tmp_path)
  assert [r['step'] for r in lines] == [*range(4, 30, 4), 30]
  assert lines[-1]['epoch'] == 1, 'the streams are half as long'


@pytest.mark.thorough
def test_a_rate_that_changes_on_resume(make, tmp_path):
  """As if the schedule had lowered it; the log has the old and new value."""
  corpus, folders = Corpus(), [tmp_path / 'one', tmp_path / 'two']
  for folder in folders:
    folder.mkdir()
  drop = dict(schedule='drop', drop_at=10, drop_factor=0.5, lr=2.0**-6)
  whole = make(corpus, folders[0], steps=20, optim=drop)
  whole.run()
  first, then = ({'schedule': 'constant', 'lr': 2.0**-k} for k in (6, 7))
  make(corpus, folders[1], steps=10, optim=first).run()
  cut = make(corpus, folders[1], steps=20, optim=then)
  text = 'optim.lr 0.0078125, was 0.015625; train.steps 20, was 10'
  assert cut.console.said[1] == f'changed: {text}'
  cut.run()
  same = np.testing.assert_array_equal
  jax.tree.map(same, *map(jax.device_get, (whole.state, cut.state)))
  lines = (folders[1] / 'metrics.jsonl').read_text().splitlines()
  (line,) = (r for r in map(json.loads, lines) if r['split'] == 'changed')
  assert (line['step'], line['text']) == (10, text)


@pytest.mark.thorough
def test_a_cut_of_a_plateau_ends_with_it(make):
  corpus, plateau = Corpus(), dict(schedule='plateau', plateau_factor=0.5)
  trainer = make(corpus, steps=10, optim=plateau)
  progress = dataclasses.replace(
    trainer.progress, plateau=optim.Plateau(scale=0.25)
  )
  trainer.progress = progress
  trainer.state = start.decided(trainer.fixed, trainer.state, progress)
  trainer.run()
  for schedule, scale in ('plateau', 0.25), ('constant', 1.0):
    again = make(corpus, steps=20, optim={'schedule': schedule})
    assert float(again.state.lr_scale) == scale


@pytest.mark.thorough
@pytest.mark.parametrize(
  'values', [dict(clip=0.0), dict(l2=0.1, weight_decay=0.1, clip=1.0)]
)
def test_steps_of_the_optimiser_may_come_and_go(make, values):
  corpus = Corpus()
  trainer = make(corpus, steps=10)
  trainer.run()
  before = jax.tree.leaves(jax.device_get(trainer.state.opt_state))
  other = make(corpus, steps=20, optim=values)
  after = jax.tree.leaves(jax.device_get(other.state.opt_state))
  jax.tree.map(np.testing.assert_array_equal, before, after)
  other.run()
  assert other.progress.evaluated == 20
  back = make(corpus, steps=21)
  assert back.step == 20


def contents(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.mark.thorough
def test_a_checkpoint_that_nothing_was_added_to(make, tmp_path):
  """With another batch the memory is empty, and must not replace the saved."""
  corpus, folder = Corpus(bad=[12]), tmp_path / 'checkpoints'
  make(corpus, steps=10).run()
  before = contents(folder)
  make(corpus, steps=10, batch_size=2 * B).run()
  assert contents(folder) == before
  for steps in 10, 30:
    trainer = make(corpus, steps=steps, batch_size=2 * B, save_every=2)
    trainer.watch.stopping = lambda: signal.SIGINT
    with contextlib.suppress(watchdog.Stopped):
      trainer.run()
    assert trainer.step == 10 and contents(folder) == before

  # Nor after going back to it, which empties the memory as well.
  trainer = make(corpus, save_every=10, nonfinite='rollback')
  go_to = trainer._go_to

  def then_stop(position):
    go_to(position)
    trainer.watch.stopping = lambda: signal.SIGINT

  trainer._go_to = then_stop
  with pytest.raises(watchdog.Stopped):
    trainer.run()
  assert trainer.console.said[-2] == (
    'continuing from step 10; the memory starts empty'
  )
  assert trainer.progress.rollbacks == 1 and contents(folder) == before


@pytest.mark.thorough
def test_an_evaluation_that_was_missing_leaves_the_memory(make):
  """The step is evaluated with another batch, so with an empty memory."""
  corpus = Corpus()
  trainer = make(corpus)

  def stop():
    trainer._save()
    raise watchdog.Stopped(signal.SIGTERM, 30)

  trainer._evaluate = stop
  with pytest.raises(watchdog.Stopped):
    trainer.run()
  state = jax.device_get(trainer.state)
  assert make(corpus, batch_size=2 * B).run().best_step == 30
  again = make(corpus)
  assert again.console.said == ['continuing from step 30']
  assert again.run().best_step == 30
  assert again.state.memory.filled.tolist() == [M] * B
  jax.tree.map(np.testing.assert_array_equal, again.state.memory, state.memory)
  jax.tree.map(np.testing.assert_array_equal, again.state.params, state.params)
