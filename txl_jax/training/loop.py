"""The training loop."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from txl_jax.evaluation import scoring, units
from txl_jax.parallel import placement, processes
from txl_jax.parallel.watchdog import Stopped, Watch
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log, wandb_run
from txl_jax.runs.terminal import TOKENS
from txl_jax.training import averaging, log_lines, profiling, start
from txl_jax.training import plan as plan_lib
from txl_jax.training import state as state_lib
from txl_jax.training.host_state import HostState, Progress


class NotFinite(UserError):
  """A loss or gradient is not finite, after `step` finite steps."""

  def __init__(self, message: str, step: int):
    super().__init__(message)
    self.step = step


class Trainer:
  """Trains one run, from its newest checkpoint to its last step."""

  def __init__(
    self,
    run: start.Run,
    position: start.Position,
    watch: Watch,
    sample: Callable[[Any], str] | None = None,
    on_record: Callable[[dict], Any] | None = None,
  ):
    """Continues a run, from `start.begin`, at its position.

    `watch` is open. `sample(params)` generates a text at each evaluation.
    `on_record` is called with each record of training and evaluation; a true
    result ends training.
    """
    self.run, self.watch = run, watch
    self.config, self.console = run.config, run.console
    self.checkpoints, self.streams = run.checkpoints, run.plan.streams
    self.steps = run.plan.steps  # training may end before, see `_tell`
    built = run.plan.built
    self._placed = placement.by_rows(run.mesh)
    B = run.config.train.batch_size
    self._rows = placement.local_rows(self._placed, B)
    self.model, self.train_step = built.model, built.step
    zeros = state_lib.Sums.zeros
    everywhere = placement.replicated(run.mesh)
    self._zero_sums = jax.jit(zeros, out_shardings=everywhere)
    self._lr = jax.jit(lambda step, scale: built.schedule(step - 1) * scale)
    self._sample, self._on_record = sample, on_record
    self.log = metrics_log.Silent()
    self.wandb = self._unwritten = None
    self.lines = log_lines.Lines(run.config, run.corpus, run.console)
    self.trace = profiling.Trace(run.config.profile, run.folder, run.console)
    self._go_to(position)

  def _go_to(self, position):
    """Continues from a position."""
    self.state, self.step = position.state, position.step
    self.progress = position.progress
    self._position = dataclasses.replace(position, state=None)  # donated soon

  def _open_log(self):
    """Opens the log, truncated to the current step."""
    if processes.is_main():
      also = self.wandb.write if self.wandb else lambda record: None
      events = self.config.train.tensorboard
      at, changes = self._position.log, self._position.changes
      self.log = metrics_log.Log(self.run.folder, at, events, also)
      if changes:
        record = {'step': self.step, 'split': 'changed', 'text': changes}
        self.log.write(record)

  def train(self) -> Progress:
    """Trains to the last step, with evaluations and checkpoints.

    Raises Stopped after a signal, with the state saved; UserError if a
    checkpoint cannot be written; NotFinite.
    """
    train = self.config.train
    flat = settings.flatten(self.config)
    try:
      if train.wandb and processes.is_main():
        self.wandb = wandb_run.Run(self.run.folder, train.wandb, flat)
        self.console.say(f'wandb: {self.wandb.url}')
      self._open_log()
      with self.console.phase('training', self.steps, 'step {}/{}') as phase:
        while True:
          try:
            return self._make_steps(phase)
          except NotFinite as e:
            self._roll_back(e)
    finally:
      self.trace.close()
      self.log.close()
      self.checkpoints.abandon()
      if self.wandb:
        self.wandb.close()

  def _make_steps(self, phase):
    """Trains until the last step or the first non-finite loss."""
    train = self.config.train
    clock = self.lines.clock
    self._unwritten = marker = None
    self._end_if_patient()
    self.lines.begin(self.step, phase)
    if self.step == 0 and self._position.converted:
      with self.lines.excluded_time(self.state):
        self._evaluate()
    while True:
      self.watch.step = self.step
      self._evaluate_and_save()
      if self.step == self.steps:
        with self.console.phase('saving'):
          self.checkpoints.wait()
        return self.progress
      self.checkpoints.check()
      self._stop_if_asked()
      with self.trace.step(self.step):
        with clock('data_wait'):
          number = self.step + self.progress.passed_over
          rows = vars(self.streams.batch(number, self._rows))
          batch = jax.make_array_from_process_local_data(self._placed, rows)
        with clock('dispatch'):
          self.state = self.train_step(self.state, batch)
        self.step += 1
        # At most one step runs while the host prepares the next one. The marker
        # is a copy, as the next step donates the state.
        with clock('device_wait'):
          jax.block_until_ready(marker)
        marker = jax.numpy.copy(self.state.step)
      phase.reach(self.step)
      if self.trace.ends(self.step):
        with self.lines.excluded_time(self.state):
          self.trace.close()
      # The sums of a log line are read while the step after it runs. Their copy
      # is dispatched before that step; else reading it would wait for it.
      self._write_line()
      if self._due(self.step % train.log_every == 0):
        lr = self._lr(self.state.step, self.state.lr_scale)
        self._unwritten = self.step, lr, self.state.sums
        self.state = self.state.replace(sums=self._zero_sums())

  def _evaluate_and_save(self):
    """Does what is due between two steps."""
    save_every = self.config.train.save_every
    if self._due(self._eval_due() or self.step % save_every == 0):
      self._write_line()  # training may end here, so that all is due
    if self._due(self._eval_due()) and self.progress.evaluated < self.step:
      with self.lines.excluded_time(self.state):
        self._evaluate()
    is_best = self.step == self.progress.best_step
    if is_best or self._due(self.step % save_every == 0):
      with self.lines.excluded_time(self.state):
        self._save()

  def _end_if_patient(self):
    """Training ends here after train.patience evaluations without a best."""
    if 0 < self.config.train.patience <= self.progress.since_best:
      self.console.say(f'training ends at step {self.step} (train.patience)')
      self.steps = self.step

  def weights(self) -> Any:
    """Parameters for evaluation: the average if there is one."""
    params = averaging.weights(self.state.params, self.state.average)
    return self.model.inference_params(params)

  def _due(self, regular):
    """Whether an action is due: at its scheduled steps and at the last step."""
    return self.step > 0 and (regular or self.step == self.steps)

  def _eval_due(self):
    """Whether an evaluation has been scheduled since the last one."""
    train = self.config.train
    then = self.progress
    if every := train.eval_every_epochs:
      # A rollback since then may have passed over the end of an epoch.
      # Checkpoints of earlier versions do not have the batch.
      batch = max(then.evaluated, then.evaluated_batch)
      before, _ = self.streams.locate(batch)
      return self._epoch(self.step) // every > before // every
    return self.step // train.eval_every > then.evaluated // train.eval_every

  def _next_evaluation(self, step, epoch):
    """The first scheduled evaluation after a step, which is in an epoch."""
    every = self.config.train.eval_every
    due = step - step % every + every
    if every := self.config.train.eval_every_epochs:
      end = self.streams.first_step(epoch - epoch % every + every)
      due = end - self.progress.passed_over
    return min(due, self.steps)

  def _epoch(self, step):
    """The epoch of the batch after a step."""
    return self.streams.locate(step + self.progress.passed_over)[0]

  def _write_line(self):
    """Writes the pending log line, if there is one."""
    if self._unwritten is None:
      return
    (step, lr, sums), self._unwritten = self._unwritten, None
    with self.lines.clock('device_wait'):
      lr, sums = jax.device_get((lr, sums))
    self._check_finite(sums)
    epoch = self._epoch(step - 1)
    extra = {}
    if self.config.train.nonfinite == 'rollback':
      extra['rollbacks'] = self.progress.rollbacks
    due = self._next_evaluation(step, epoch)
    record = self.lines.write(
      self.log, step, sums, float(lr), epoch, due, **extra
    )
    self._tell(record)

  def _tell(self, record):
    """Calls the user's function with a record; training may end here."""
    function = self._on_record
    ends = function and processes.on_main(lambda: bool(function({**record})))
    if ends and self.step < self.steps:
      self.steps = max(self.step, 1)  # at step 0, nothing is saved
      self.console.say(f'training ends at step {self.steps}, as asked')

  def _check_finite(self, sums):
    bad = int(sums.bad_step)
    if bad < 0:
      return
    self.checkpoints.wait()
    newest = self.checkpoints.newest()
    kept = 'no checkpoint was saved'
    if newest is not None:
      kept = f'the last good checkpoint is step {newest}'
    other = 'train.nonfinite=rollback'
    if self.config.train.nonfinite == 'rollback':
      other = 'a higher train.nonfinite_limit, a lower train.save_every'
    raise NotFinite(
      f'loss or gradient is not finite at step {bad + 1}; {kept} in '
      f'{self.checkpoints.folder}; allowed: {other}, '
      'or a lower optim.lr or optim.clip',
      bad,
    )

  def _roll_back(self, error):
    """Restores the newest checkpoint and skips all batches up to the bad one.

    A run that is killed before its next save repeats the rollback. Without
    train.nonfinite=rollback, or at its limit, the error is raised.
    """
    train = self.config.train
    before = self.progress
    newest = self.checkpoints.newest()
    spent = before.rollbacks >= train.nonfinite_limit  # it may be lowered
    if train.nonfinite != 'rollback' or spent or newest is None:
      raise error
    self.console.say(
      f'warning: loss or gradient is not finite at step {error.step + 1}; '
      f'rollback {before.rollbacks + 1} of at most {train.nonfinite_limit}'
    )
    self.log.close()
    self.log = metrics_log.Silent()
    del self.state  # two states may not fit
    saved = start.Saved.read(self.checkpoints, newest)
    position = start.restore(self.run, saved, keep_memory=False)
    # The batches of its memory are passed over: no run needs it again.
    self._go_to(dataclasses.replace(position, emptied=False))
    over = error.step + 1 + before.passed_over - self.step
    self.progress = dataclasses.replace(
      self.progress, rollbacks=before.rollbacks + 1, passed_over=over
    )
    self._open_log()

  def _evaluate(self):
    """Scores the validation split, and acts on the result."""
    self._check_finite(jax.device_get(self.state.sums))  # nothing scores NaN
    score = self._score()
    record = self._evaluated(score)
    if self.step > 0:  # an evaluation before training changes nothing
      self.progress = self.progress.after(
        self.step, score.nats, self.config.optim, self._eval_due()
      )
      self.state = start.decided(self.run, self.state, self.progress)
    self.log.write(record)
    self.lines.evaluated(record, self.progress)
    self._tell(record)
    self._end_if_patient()
    if self._sample:
      text = self._sample(self.weights())
      self.log.write({'step': self.step, 'split': 'sample', 'text': text})
      self.lines.sampled(text)
    if 0 < self.progress.trigger.start == self.step:
      self.console.say('weights are averaged from here on')

  def _score(self):
    """The SplitScore of the validation split; a signal ends it."""
    run, validation = self.run, self.run.plan.validation
    cut = plan_lib.eval_batching(self.config)
    total = len(validation) - 1
    # Scoring rounds a short split up to less than twice its length.
    T = min(cut['segment_len'], 2 * total)
    model = self.model.at_test_time(T)
    plain = f'step {self.step}: evaluating'
    with self.console.phase('evaluating', total, TOKENS, plain=plain) as phase:

      def scored_so_far(scored):
        phase.reach(scored)
        if scored < total:  # a finished evaluation is kept
          self._stop_if_asked()

      cut |= dict(segment_len=T, mesh=run.mesh, progress=scored_so_far)
      return scoring.score(model, self.weights(), validation, **cut)

  def _evaluated(self, score):
    """The record of an evaluation."""
    train, run = self.config.train, self.run
    validation, vocabulary = run.plan.validation, run.corpus.vocabulary
    record: dict[str, Any] = {'step': self.step, 'split': 'validation'}
    if train.epochs or train.eval_every_epochs:
      record['epochs'] = self._epoch(self.step)  # complete epochs
    record |= units.to_units(score.nats, vocabulary.unit)
    record['tokens'] = score.scored
    scored = validation[len(validation) - score.scored :]
    record |= units.bits(score.nll, scored, vocabulary)
    record['seconds'] = round(score.seconds, 3)
    record['tokens_per_second'] = round(score.tokens_per_second, 1)
    if self.config.optim.average != 'off':
      record['averaged'] = averaging.count(self.state.average)
    return record

  def _save(self):
    """Saves a checkpoint, unless one with the same content was restored.

    Nor is a restored step saved whose memory was emptied: a later run may need
    it, and an evaluation can be repeated.
    """
    then = self._position
    same = then.progress.evaluated == self.progress.evaluated
    if then.step == self.step and (then.emptied or same):
      return
    self._check_finite(jax.device_get(self.state.sums))
    host = HostState.of(
      self.progress,
      self.log.sync(),
      self.config,
      self.run.corpus.digest,
      self.run.kernel,
    )
    keep = (self.progress.best_step,)
    items = state_lib.split(self.state)
    with self.console.phase('saving'):
      self.checkpoints.save(self.step, dataclasses.asdict(host), keep, **items)

  def _stop_if_asked(self):
    """After a signal, saves and raises Stopped."""
    if number := self.watch.stopping():
      self._write_line()
      if self.step > 0:
        self._save()
        with self.console.phase('saving'):
          self.checkpoints.wait()
      raise Stopped(number, self.step)
