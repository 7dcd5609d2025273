"""The training loop."""

import functools
import importlib.metadata

import jax
import numpy as np

from txl_jax import (
  averaging,
  distributed,
  metrics,
  models,
  optim,
  profiling,
  progress,
  settings,
  sharding,
  steps,
  summary,
  train_state,
  workdir,
)
from txl_jax import checkpoint as checkpoint_lib
from txl_jax import log as log_lib
from txl_jax.data import streams
from txl_jax.errors import UserError
from txl_jax.evaluation import perplexity
from txl_jax.watch import READING, STEPPING, Stopped


class Trainer:
  """One run, from where its checkpoints left it to its last step."""

  def __init__(self, config, corpus, folder, mesh, watch, console):
    """Builds the model and restores the newest good checkpoint.

    Args:
      config: ConfigDict, validated.
      corpus: a `data.prepared.Prepared`.
      folder: pathlib.Path of the run, described and locked.
      mesh: from `sharding.make_mesh`.
      watch: a `watch.Watch`, open.
      console: a `log.Console`.

    Raises:
      UserError: the folder has checkpoints but none that can be used, or
        train.resume forbids what is found.
    """
    self.config, self.corpus, self.folder = config, corpus, folder
    self.watch, self.console = watch, console
    self.unit = corpus.vocabulary.unit
    self.streams = streams.Streams(
      corpus.tokens('train'),
      config.train.batch_size,
      config.train.segment_len,
      varlen=config.train.varlen,
      seed=config.seed,
      sentences=corpus.sentences('train'),
    )
    self.mesh = mesh
    self.rows = distributed.local_rows(
      sharding.rows(self.mesh), config.train.batch_size
    )
    self.model = models.build(config.model, len(corpus.vocabulary))
    self.schedule = optim.schedule(config.optim, config.train.steps)
    optimiser = optim.optimiser(config.optim)
    averager = averaging.averager(config.optim)
    key = jax.random.key(config.seed)
    create = functools.partial(
      train_state.create,
      self.model,
      optimiser,
      config.train.batch_size,
      jax.random.fold_in(key, 0),
      averager,
    )
    abstract = jax.eval_shape(create)
    shardings = train_state.shardings(abstract, self.mesh)
    self.train_step = steps.jit_train_step(
      self.mesh,
      abstract,
      config.train.steps_per_dispatch,
      model=self.model,
      optimiser=optimiser,
      schedule=self.schedule,
      accumulate=config.train.accumulate,
      key=jax.random.fold_in(key, 1),
      averager=averager,
    )
    self.checkpoints = checkpoint_lib.Checkpoints(
      workdir.checkpoints(folder), config.train.async_checkpoints
    )
    self.progress = progress.Progress()
    self.clock = profiling.Clock()
    self.trace = profiling.Trace(config.profile, folder, console)
    self.peak = profiling.peak(config.model.dtype)
    if self.peak:
      self.flops = summary.flops_per_token(config, len(corpus.vocabulary))
    start = distributed.on_main(self._start)
    if start is None:
      self.state = jax.jit(create, out_shardings=shardings)()
    else:
      with_sharding = lambda x, s: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=s
      )
      abstract = jax.tree.map(with_sharding, abstract, shardings)
      self._restore(start, abstract)
    self.step = start or 0
    self.log = log_lib.Silent()
    if distributed.is_main():
      self.log = log_lib.Log(
        folder, self.step, self.progress.evaluated, config.train.tensorboard
      )

  # Resuming, in this order: the newest good checkpoint is found; the host's
  # part is read; arrays are restored; leftovers are put aside; the log is
  # cut back to the step. Config and corpus were compared before.

  def _start(self):
    """The step to continue from, or None for a new run."""
    self.checkpoints.recover()
    resume, found = self.config.train.resume, self.checkpoints.steps()
    if found and resume == 'never':
      raise UserError(
        f'{self.folder} holds checkpoints (newest: step {found[0]}) and '
        'train.resume is never; allowed: auto, must, or another --workdir'
      )
    good = self.checkpoints.good_steps() if found else []
    if good:
      return good[0]
    if found:
      raise UserError(
        f'{self.checkpoints.folder} holds checkpoints {found}, none of which '
        'can be used; restore one, or choose another --workdir'
      )
    if resume == 'must':
      raise UserError(
        f'{self.folder} holds no checkpoint and train.resume is must; '
        'allowed: auto, never'
      )
    return None

  def _restore(self, step, abstract):
    host = self.checkpoints.host(step)
    items = self.checkpoints.restore(step, **train_state.split(abstract))
    self.state = train_state.join(items)
    distributed.on_main(lambda: self.checkpoints.clean(step))
    self.progress = progress.Progress.from_json(host['progress'])
    self.console.say(f'continuing from step {step}')
    for name, version in _versions().items():
      then = host['versions'].get(name)
      if then != version:
        self.console.say(
          f'warning: {name} was {then} and is {version}: the figures from here '
          'on may differ in their last digits'
        )

  def run(self):
    """Trains to the last step, evaluating and saving on the way.

    Returns:
      The `progress.Progress`.

    Raises:
      Stopped: a signal came; the state is saved.
      UserError: the loss is not finite, or a checkpoint cannot be written.
    """
    train = self.config.train
    pending = marker = None
    compiled = set()
    self.clock.restart()
    try:
      while True:
        if self._due(train.eval_every) and self.progress.evaluated < self.step:
          pending = self._write_line(pending)
          self._evaluate()
          self.clock.restart()
        if self._due(train.save_every) or self.step == self.progress.best_step:
          pending = self._write_line(pending)
          self._save()
          self.clock.restart()
        if self.step == train.steps:
          self.checkpoints.wait()
          return self.progress
        self.checkpoints.check()
        if number := self.watch.stopping():
          self._write_line(pending)
          self._halt(number)
        self.watch.at(self.step, READING)
        with self.trace.step(self.step):
          with self.clock('data_wait'):
            batch = self._next_batch()
          # Without lengths, a batch is of another program than with them.
          new = (batch['lengths'] is None) not in compiled
          compiled.add(batch['lengths'] is None)
          self.watch.at(self.step, 'compiles' if new else STEPPING)
          with self.clock('dispatch'):
            self.state = self.train_step(self.state, batch)
          self.step += train.steps_per_dispatch
          # Not more than one call is under way while the next one is prepared,
          # and figures are read when the one after theirs is running.
          with self.clock('device_wait'):
            jax.block_until_ready(marker)
          marker = self.state.step + 0
        self.trace.end(self.step, self.state)
        pending = self._write_line(pending)
        if self._due(train.log_every):
          pending = self.step, self.state.sums
          sums = jax.tree.map(self._put, metrics.zeros())
          self.state = self.state.replace(sums=sums)
    finally:
      self.trace.close()
      self.log.close()
      self.checkpoints.abandon()

  def weights(self):
    """The parameters to evaluate: averaged where there is an average."""
    return averaging.weights(self.state.params, self.state.average)

  def _due(self, every):
    """Whether this step is a multiple, or the last."""
    step = self.step
    return step > 0 and (step % every == 0 or step == self.config.train.steps)

  def _next_batch(self):
    K = self.config.train.steps_per_dispatch
    batches = [self.streams.batch(self.step + k, self.rows) for k in range(K)]
    axis = 0 if K == 1 else 1
    return distributed.from_rows(
      streams.arrays(batches),
      self.rows,
      self.config.train.batch_size,
      sharding.rows(self.mesh, axis),
      axis,
    )

  def _write_line(self, pending):
    """Writes the figures of a step to the log, if there are any waiting.

    Returns:
      None, what is waiting now.
    """
    if pending is None:
      return
    step, sums = pending
    with self.clock('device_wait'):
      sums = jax.device_get(sums)
    self._check_finite(sums)
    seconds, shares = self.clock.read()
    lr = float(self.schedule(step - 1)) * float(self.state.lr_scale)
    rate = int(sums.tokens) / seconds
    record = {
      'step': step,
      'split': 'train',
      **metrics.figures(float(sums.nll) / int(sums.tokens), self.unit),
      'lr': lr,
      'grad_norm': float(sums.grad_norm) / int(sums.steps),
      'epoch': self.streams.locate(step - 1)[0],
      'tokens_per_second': round(rate, 1),
      **shares,
    }
    used = ''
    if self.peak:
      record['mfu'] = round(rate * self.flops / self.peak, 4)
      used = f'mfu {record["mfu"]:.1%}  '
    self.log.write(record)
    left = (self.config.train.steps - step) * seconds / int(sums.steps)
    self.console.progress(
      f'step {step}/{self.config.train.steps}  '
      f'{record[self.unit]:.4f} {self.unit}  lr {lr:.3g}  '
      f'{rate:,.0f} tokens/s  {used}'
      f'data {shares["data_wait"]:.2%}  dispatch {shares["dispatch"]:.2%}  '
      f'device {shares["device_wait"]:.2%}  '
      f'ETA {log_lib.duration(left)}'
    )
    self.clock.restart()

  def _check_finite(self, sums):
    bad = int(sums.bad_step)
    if bad >= 0:
      self.checkpoints.wait()
      steps_ = self.checkpoints.good_steps()
      kept = (
        f'the last good checkpoint is step {steps_[0]}'
        if steps_
        else ('no checkpoint was saved before')
      )
      raise UserError(
        f'loss or gradient is not finite at step {bad + 1}; {kept} in '
        f'{self.checkpoints.folder}; allowed: a lower optim.lr or optim.clip'
      )

  def _evaluate(self):
    self.watch.at(self.step, 'evaluates')
    train = self.config.train
    number = 0

    def stopped():
      nonlocal number
      number = self.watch.stopping()
      return bool(number)

    tokens = self.corpus.tokens('validation')
    if train.eval_tokens:
      tokens = tokens[: train.eval_tokens]
    score = perplexity.score(
      self.model.clone(cache_projections=True),
      self.weights(),
      tokens,
      batch_size=train.eval_batch_size,
      segment_len=train.segment_len,
      segments_per_call=self.config.eval.segments_per_call,
      mesh=self.mesh,
      stopped=stopped,
    )
    if score is None:
      self._halt(number)
    record = {
      'step': self.step,
      'split': 'validation',
      **metrics.figures(score.nats, self.unit),
      'tokens': score.scored,
      'seconds': round(score.seconds, 3),
      'tokens_per_second': round(score.tokens_per_second, 1),
    }
    averaged = averaging.count(self.state.average)
    if self.config.optim.average != 'off':
      record['averaged'] = averaged
    self.progress = self.progress.after(
      self.step, score.nats, self.config.optim
    )
    self._tell_devices()
    self.log.write(record)
    best = self.progress.best_step == self.step
    self.console.say(
      f'step {self.step}: validation {record[self.unit]:.4f} {self.unit}'
      f'{" (best)" if best else ""}, {score.scored:,} tokens in '
      f'{log_lib.duration(score.seconds)}'
      f'{f", weights averaged over {averaged} steps" if averaged else ""}'
    )
    if self.progress.trigger.start == self.step:
      self.console.say('weights are averaged from here on')

  def _tell_devices(self):
    """Puts into the state what an evaluation has decided."""
    p, average = self.progress, self.state.average
    if self.config.optim.average == 'nt':
      average = average.replace(start=self._put(np.int32(p.trigger.start)))
    scale = self._put(np.float32(p.plateau.scale))
    self.state = self.state.replace(lr_scale=scale, average=average)

  def _put(self, x):
    """A scalar on all devices."""
    return distributed.put(x, sharding.replicated(self.mesh))

  def _save(self):
    self.watch.at(self.step, 'saves')
    self._check_finite(jax.device_get(self.state.sums))
    self.log.sync()
    host = {
      'progress': self.progress.to_json(),
      'config': settings.flatten(self.config.to_dict()),
      'corpus': self.corpus.digest,
      'versions': _versions(),
    }
    self.checkpoints.save(
      self.step,
      host=host,
      keep=(self.progress.best_step,),
      **train_state.split(self.state),
    )

  def _halt(self, number):
    """Saves and stops, for a signal."""
    if self.step > 0:
      self._save()
      self.checkpoints.wait()
    raise Stopped(number, self.step)


def _versions():
  names = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')
  versions = {name: importlib.metadata.version(name) for name in names}
  return versions | {'platform': jax.devices()[0].device_kind}
