"""What the log and the console say of training: figures, rates, time left."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import figures
from txl_jax.runs.console import Console, duration
from txl_jax.runs.metrics_log import Log, Silent
from txl_jax.training import cost, metrics, profiling
from txl_jax.training.options import Config


class Lines:
  """Writes the log lines of training steps, and measures their time."""

  def __init__(self, config: Config, corpus: Prepared, console: Console):
    """Measures nothing yet."""
    self._train, self._console = config.train, console
    self._unit, self._timed_from = corpus.vocabulary.unit, 0
    self.clock = profiling.Clock()
    self._flops, self._peak = 0, profiling.peak(config.model.dtype)
    if self._peak:
      self._flops = cost.flops_per_token(config, len(corpus.vocabulary))

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
    sums: metrics.Sums,
    lr: float,
    epoch: int,
    **more: int,
  ) -> None:
    """Writes the line of a step, with what else is given.

    The sums are on the host, those of the steps since the last line.
    """
    seconds, shares = self.clock.read()
    # Of the steps since the last line this program has made some, or all.
    timed, self._timed_from = step - self._timed_from, step
    skipped, updates = int(sums.skipped), int(sums.steps - sums.skipped)
    if updates:
      tokens = metrics.tokens_of(sums)
      rate = tokens * timed / int(sums.steps) / seconds
      record: Any = {'step': step, 'split': 'train'}
      record |= figures.figures(float(sums.nll) / tokens, self._unit)
      norm = float(sums.grad_norm) / updates
      record |= {'lr': lr, 'grad_norm': norm, 'epoch': epoch}
      record |= {'tokens_per_second': round(rate, 1), **shares}
      if self._train.nonfinite == 'skip':
        record['skipped'] = skipped
      record |= more
      if self._peak:
        record['mfu'] = round(rate * self._flops / self._peak, 4)
      log.write(record)
      used = f'mfu {record["mfu"]:.1%}  ' if self._peak else ''
      left = duration((self._train.steps - step) * seconds / timed)
      self._console.progress(
        f'step {step}/{self._train.steps}  '
        f'{record[self._unit]:.4f} {self._unit}  lr {record["lr"]:.3g}  '
        f'{record["tokens_per_second"]:,.0f} tokens/s  {used}'
        f'data {shares["data_wait"]:.2%}  dispatch {shares["dispatch"]:.2%}  '
        f'device {shares["device_wait"]:.2%}  ETA {left}'
      )
    if skipped:
      self._console.say(
        f'warning: {skipped} updates left out, the first at step '
        f'{int(sums.bad_step) + 1}: loss or gradient not finite'
      )
