"""The training loop in this process: evaluations, saves, records, epochs."""

import contextlib
import copy
import dataclasses
import functools
import signal
import time
from unittest import mock

import jax
import numpy as np
import pytest

from tests import compilations
from tests.ops.kernels import plain_kernel
from tests.training import fragile
from tests.training.fragile import B, Corpus, M, T, config, record
from txl_jax import models
from txl_jax.data.documents import Documents
from txl_jax.evaluation import scoring
from txl_jax.ops.kernels import dispatch, proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import watchdog
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log, wandb_run
from txl_jax.training import host_state, loop, plan, start
from txl_jax.training.state import Sums


def test_a_validation_split_that_is_too_short(make, monkeypatch):
  corpus = Corpus()
  tokens = corpus.tokens
  for n, why in (1, 'the validation split has 1 tokens'), (2, 'need 3 tokens'):
    corpus.tokens = lambda x, n=n: tokens(x)[: None if x == 'train' else n]
    with pytest.raises(UserError, match=why):
      make(corpus)
  monkeypatch.setattr(fragile.Fragile, 'reach', lambda model: 3)  # and a model
  for own, n in ('', 0), ('eval_', 7):
    with pytest.raises(
      UserError, match=f'^train.{own}segment_len is {n or T};'
    ):
      make(Corpus(), eval_segment_len=n)


@pytest.mark.thorough
def test_the_choice_of_attention_is_kept(make, monkeypatch):
  """Of a kernel that is proven, used, and not proven again."""
  monkeypatch.setitem(dispatch._KERNELS, 'triton', plain_kernel.__name__)
  monkeypatch.setitem(dispatch._BEST, 'cpu', ('triton',))
  trainer = make(Corpus(), crash=lambda trainer: trainer.step == 6)
  assert trainer.run.kernel.startswith('triton for float32, T ')
  assert trainer.model.config.attention == 'triton'
  with pytest.raises(KeyboardInterrupt):
    trainer.train()
  monkeypatch.setattr(proof, 'check', None)
  again = make(Corpus())
  assert again.step > 0 and again.run.kernel == trainer.run.kernel
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
    trainer.train()


@pytest.mark.thorough
def test_the_end_of_an_epoch_compiles_nothing_again(make, tmp_path):
  """Its last segment is short; so is that of the validation split."""
  corpus = Corpus()
  corpus._train = corpus._train[: B * (11 * T + 3) + 1]
  with compilations.counted() as compiled:
    trainer = make(corpus, eval_every=15, log_every=1, segments_per_call=2)
    trainer.train()
  found = [trainer.streams.locate(n) for n in (11, 12, 24)]
  assert found == [(0, 11), (1, 0), (2, 0)]
  assert (trainer.streams.batch(11, [0]).targets[0] >= 0).sum() == 3
  epochs = [r['epoch'] for r in record(tmp_path)]
  assert epochs == [0] * 12 + [1] * 12 + [2] * 6
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
  options |= dict(save_every=25)
  corpus = Corpus(batches=30)
  whole, cut = tmp_path / 'whole', tmp_path / 'cut'
  whole.mkdir()
  cut.mkdir()
  with compilations.counted() as compiled:
    trainer = make(corpus, whole, **options)
    trainer.train()
  text = plan.make_streams(config(**options), corpus)
  ends = [text.first_step(n) for n in (1, 2, 3)]
  assert trainer.step == ends[-1] and trainer.batches == [*range(ends[-1])]
  assert 75 < ends[-1] < 125
  used = {text.batch(n, [0]).inputs.shape[1] for n in range(ends[-1])}
  assert used == {context + width for width in text.widths[:3]}
  assert trainer.train_step._cache_size() == len(used)
  assert compiled.count('jit(step)') == len(text.widths)
  evaluated = record(whole, 'validation')
  found = [(r['step'], r['epochs'], r['averaged']) for r in evaluated]
  assert found == [(n, e, n - ends[0]) for e, n in enumerate(ends, 1)]
  rates = {r['lr'] for r in record(whole)}
  assert rates == {float(np.float32(1e-2))}  # before it is scaled
  assert trainer.state.average.count == ends[-1] - ends[0]
  score = scoring.score(
    trainer.model.at_test_time(3),
    trainer.state.average.params,
    trainer.run.corpus.tokens('validation'),
    batch_size=2,
    segment_len=3,
    segments_per_call=16,
    context=context,
    mesh=trainer.run.mesh,
  )
  assert evaluated[-1]['nats'] == score.nats
  with pytest.raises(KeyboardInterrupt):
    make(corpus, cut, lambda t: t.step == ends[1] + 2, **options).train()
  trainer_2 = make(corpus, cut, **options)
  assert 0 < trainer_2.step < ends[1] + 2
  trainer_2.train()
  same = np.testing.assert_array_equal
  jax.tree.map(same, *map(jax.device_get, (trainer.state, trainer_2.state)))
  # It goes on for an epoch more, but ends no earlier than it is.
  longer = make(corpus, cut, **options | {'epochs': 4})
  longer.train()
  assert longer.step == text.first_step(4)
  end = '^train.epochs is 3; allowed: at least 4, as the run has made '
  with pytest.raises(UserError, match=f'{end}{longer.step} steps'):
    make(corpus, cut, **options)


def test_epochs_in_steps():
  c = config(epochs=4, steps=100, average_start_epoch=2)
  text = plan.make_streams(c, Corpus())  # 60 steps an epoch
  assert plan.summary_lines(c, text) == [
    'epoch 1 has 60 steps',
    'training ends after step 100',
    'weights are averaged after step 120',
  ]
  for changes, more in (
    (dict(epochs=1), ['training ends after step 60']),
    (dict(average_start_epoch=3), ['weights are averaged after step 180']),
    (dict(eval_every_epochs=1), []),
  ):
    found = plan.summary_lines(config(steps=100, **changes), text)
    assert found == ['epoch 1 has 60 steps', *more]
  c = settings.replace(c, {'optim.warmup': 100})
  assert plan.summary_lines(config(), text) == []
  assert len(plan.summary_lines(c, text)) == 3
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
def test_the_best_checkpoint_is_kept(make):
  """However many worse ones follow it, in this program or the next."""
  figures = {6: 3.0, 12: 2.0, 18: 2.5, 24: 2.6, 30: 2.7}
  options = dict(figures=figures, eval_every=6)
  with pytest.raises(KeyboardInterrupt):
    make(Corpus(), crash=lambda t: t.step == 22, **options).train()
  trainer = make(Corpus(), **options)
  trainer.train()
  assert trainer.progress.best_step == 12
  found = trainer.checkpoints
  assert [s for s in found.steps() if found.usable(s)] == [30, 25, 12]
  saved = start.Saved.read(found, 12)
  assert start.restore(trainer.run, saved).state.step == 12


def test_a_signal_at_the_end_of_an_evaluation_keeps_it(make, monkeypatch):
  trainer = make(Corpus())
  trainer.watch.stopping = lambda: signal.SIGINT
  scored = len(trainer.run.plan.validation) - 1

  def score(*_, progress, **__):
    for n in before, scored:
      progress(n)
    return scoring.SplitScore(1.0, scored, 1.23456)

  trainer.log = mock.Mock()
  monkeypatch.setattr(scoring, 'score', score)
  before = scored - 1
  with pytest.raises(watchdog.Stopped):
    trainer._evaluate()
  before = scored
  trainer._evaluate()
  found = trainer.log.write.call_args.args[0]
  assert (found['seconds'], found['tokens_per_second']) == (1.235, 80.2)
  assert found['averaged'] == 0


@pytest.mark.thorough
def test_rates_are_those_of_the_steps(make, tmp_path, monkeypatch):
  """Whatever lies between two lines: evaluations, saves, a new start."""
  now = [0.0]
  monkeypatch.setattr(time, 'monotonic', lambda: now[0])

  def later(seconds, function, *arguments):
    now[0] += seconds
    return function(*arguments)

  for crash in lambda t: t.step == 23, lambda t: False:
    options: dict = dict(log_every=8, eval_every=12, save_every=10)
    options['figures'] = dict.fromkeys((12, 24, 30), 1.0)
    trainer = make(Corpus(), crash=crash, **options)
    for name, seconds in ('train_step', 1), ('_evaluate', 9), ('_save', 9):
      slower = functools.partial(later, seconds, getattr(trainer, name))
      setattr(trainer, name, slower)
    with contextlib.suppress(KeyboardInterrupt):
      trainer.train()
  records = metrics_log.read(tmp_path / 'metrics.jsonl')
  lines = [r for r in records if r['split'] == 'train']
  assert [r['dispatch'] for r in lines] == [1.0] * 4
  # The first is written after the ninth step; the second start makes 4 of 8.
  assert B * T == 32
  assert [r['tokens_per_second'] for r in lines] == [28.4, 32.0, 32.0, 32.0]


@pytest.mark.thorough
def test_a_run_that_a_function_ends_at_a_save_is_evaluated(make):
  trainer = make(Corpus(), log_every=5)
  trainer._on_record = lambda record: record['step'] == 10
  progress = trainer.train()
  assert trainer.step == progress.evaluated == progress.best_step == 10
  assert trainer.checkpoints.steps()[0] == 10
  saved = host_state.HostState.read(trainer.checkpoints, 10)
  assert saved.progress == progress


@pytest.mark.thorough
def test_a_run_that_a_function_ends_at_step_0_has_a_checkpoint(make):
  trainer = make(Corpus())
  trainer._position = dataclasses.replace(trainer._position, converted=True)
  trainer._on_record = lambda record: record['split'] == 'validation'
  trainer.train()
  assert trainer.checkpoints.steps() == [1]
  assert 'training ends at step 1, as asked' in trainer.console.said


def test_bits_of_an_evaluation_of_documents(make, tmp_path):
  """They are of the bytes of all tokens but the first, which is not scored."""
  corpus = Corpus()
  corpus.vocabulary = copy.copy(corpus.vocabulary)
  corpus.vocabulary.sizes = sizes = np.arange(len(corpus.vocabulary)) + 1
  tokens = corpus.tokens('validation').astype(np.int32)
  streams = {
    'train': corpus.tokens('train'),
    'validation': Documents(tokens, np.array([0, 40, 99])),
  }
  corpus.token_stream = lambda split, count=0: streams[split]
  make(corpus, steps=2).train()
  (found,) = record(tmp_path, 'validation')
  expected = found['nats'] * 99 / np.log(2) / sizes[tokens[1:]].sum()
  assert found['tokens'] == 99
  assert found['bpb'] == pytest.approx(expected, rel=1e-6)


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
    trainer.train()
  assert opened.closed


def bare(**fields):
  """A Trainer without a run."""
  trainer = object.__new__(loop.Trainer)
  vars(trainer).update(fields, console=fragile.Console())
  return trainer


def test_what_is_due():
  by_step = bare(config=config(eval_every=10), steps=27)
  due = [by_step._next_evaluation(n, 0) for n in (9, 10, 13, 25)]
  assert due == [10, 20, 20, 27]
  by_epoch = bare(config=config(eval_every_epochs=3), steps=99)
  by_epoch.streams = mock.Mock(first_step=lambda n: 7 * n)
  by_epoch.progress = host_state.Progress(passed_over=2)
  due = [by_epoch._next_evaluation(15, n) for n in (2, 3, 4)]
  assert due == [19, 40, 40]
  for step, regular, due in (0, 1, 0), (1, 1, 1), (1, 0, 0), (3, 0, 1):
    assert bare(step=step, steps=3)._due(regular) == due


def test_what_ends_training():
  """Patience, at its limit, and a callback that asks for it."""
  c, ends = {n: config(patience=n) for n in (0, 1, 3)}, []
  for patience, since in (0, 0), (0, 5), (3, 2), (1, 1), (3, 3), (3, 4):
    progress = host_state.Progress(since_best=since)
    run = bare(config=c[patience], progress=progress, step=7, steps=30)
    run._end_if_patient()
    ends.append(run.steps)
  assert ends == [30, 30, 30, 7, 7, 7]
  assert run.console.said == ['training ends at step 7 (train.patience)']
  for step, ends in (0, 1), (3, 3), (5, 5):
    run = bare(step=step, steps=5, _on_record=dict)
    run._tell({'step': step})
    said = [f'training ends at step {ends}, as asked'] * (step < 5)
    assert (run.steps, run.console.said) == (ends, said)


def test_a_loss_that_is_not_finite():
  run = bare(config=config(), checkpoints=mock.Mock())
  run._check_finite(Sums.zeros())
  with pytest.raises(loop.NotFinite, match='finite at step 1; ') as e:
    run._check_finite(Sums.zeros().replace(bad_step=0))
  assert e.value.step == 0


def test_a_signal_after_the_first_step_saves_it():
  for step, saves in (0, 0), (1, 1):
    run = bare(step=step, checkpoints=mock.Mock(), _save=mock.Mock())
    run.watch = mock.Mock(stopping=lambda: signal.SIGTERM)
    run._write_line = mock.Mock()
    with pytest.raises(watchdog.Stopped):
      run._stop_if_asked()
    assert run._save.call_count == saves
