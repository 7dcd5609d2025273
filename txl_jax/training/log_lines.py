"""What the log and the console say of training: figures, rates, time left."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.evaluation import figures
from txl_jax.runs.console import Console, duration
from txl_jax.runs.metrics_log import Log, Silent
from txl_jax.training import cost, metrics, profiling
from txl_jax.training.options import Config


class Lines:
  """Writes the log lines of training steps, and measures their time.

  Attributes:
    clock: a `profiling.Clock`.
  """

  def __init__(
    self, config: Config, vocabulary: Vocabulary | Words, console: Console
  ):
    """Measures nothing yet."""
    self.config, self._console = config, console
    self.clock = profiling.Clock()
    self._unit = vocabulary.unit
    self._flops, self._peak = 0, profiling.peak(config.model.dtype)
    if self._peak:
      self._flops = cost.flops_per_token(config, len(vocabulary))
    self._timed_from = 0

  def begin(self, step: int) -> None:
    """Steps are timed from here on, when `step` of them are made."""
    self.clock.restart()
    self._timed_from = step

  @contextlib.contextmanager
  def apart(self, state: Any) -> Iterator[None]:
    """What is done between two steps and does not count as training.

    Before the arrays of the state are there, it is still training.
    """
    with self.clock('device_wait'):
      jax.block_until_ready(state)
    with self.clock.stopped():
      yield

  def write(
    self,
    log: Log | Silent,
    step: int,
    lr: float,
    sums: metrics.Sums,
    epoch: int,
    rollbacks: int,
  ) -> None:
    """Writes the line of a step: its rate and epoch, and the rollbacks so far.

    The sums are on the host, those of the steps since the last line.
    """
    train = self.config.train
    seconds, shares = self.clock.read()
    # Of the steps since the last line this program has made some, or all.
    timed = step - self._timed_from
    self._timed_from = step
    updates = int(sums.steps - sums.skipped)
    if updates:
      tokens = metrics.tokens_of(sums)
      rate = tokens * timed / int(sums.steps) / seconds
      record = {
        'step': step,
        'split': 'train',
        **figures.figures(float(sums.nll) / tokens, self._unit),
        'lr': float(lr),
        'grad_norm': float(sums.grad_norm) / updates,
        'epoch': epoch,
        'tokens_per_second': round(rate, 1),
        **shares,
      }
      if train.nonfinite == 'skip':
        record['skipped'] = int(sums.skipped)
      if train.nonfinite == 'rollback':
        record['rollbacks'] = rollbacks
      if self._peak:
        record['mfu'] = round(rate * self._flops / self._peak, 4)
      log.write(record)
      self._show(record, (train.steps - step) * seconds / timed)
    if sums.skipped:
      self._console.say(
        f'warning: {int(sums.skipped)} updates left out, the first at step '
        f'{int(sums.bad_step) + 1}: loss or gradient not finite'
      )

  def _show(self, record, left):
    """Shows a record, and the seconds left, on the console."""
    used = f'mfu {record["mfu"]:.1%}  ' if 'mfu' in record else ''
    self._console.progress(
      f'step {record["step"]}/{self.config.train.steps}  '
      f'{record[self._unit]:.4f} {self._unit}  lr {record["lr"]:.3g}  '
      f'{record["tokens_per_second"]:,.0f} tokens/s  {used}'
      f'data {record["data_wait"]:.2%}  dispatch {record["dispatch"]:.2%}  '
      f'device {record["device_wait"]:.2%}  '
      f'ETA {duration(left)}'
    )
