"""Lines of the log and the console in training: figures, rates, time left."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import figures
from txl_jax.runs.console import Console, Phase, duration
from txl_jax.runs.metrics_log import Log, Silent
from txl_jax.training import cost, metrics, profiling, resume
from txl_jax.training.options import Config


class Lines:
  """Writes the log lines of training steps, and measures their time."""

  def __init__(self, config: Config, corpus: Prepared, console: Console):
    """Starts without any measurements."""
    self._train, self._console = config.train, console
    self._unit, self._timed_from = corpus.vocabulary.unit, 0
    self.clock = profiling.Clock()
    self.curve: list[float] = []  # the figures of evaluations so far
    self._flops, self._peak = 0, profiling.peak(config.model.dtype)
    if self._peak:
      self._flops = cost.flops_per_token(config, len(corpus.vocabulary))

  def begin(self, step: int, phase: Phase) -> None:
    """Times steps from here on, when `step` of them have been made.

    They are shown as part of a phase.
    """
    self.clock.restart()
    phase.restart(step)
    self._phase, self._timed_from = phase, step

  @contextlib.contextmanager
  def apart(self, state: Any) -> Iterator[None]:
    """A context between two steps that does not count as training.

    It first waits for the arrays of the state: until then it is training.
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
    """Writes the line of a step, with the other given values.

    The sums, on the host, cover the steps since the last line.
    """
    seconds, shares = self.clock.read()
    # This program has made some or all of the steps since the last line.
    timed, self._timed_from = step - self._timed_from, step
    tokens, steps = metrics.tokens_of(sums), int(sums.steps)
    rate = tokens * timed / steps / seconds
    record: Any = {'step': step, 'split': 'train'}
    record |= figures.figures(float(sums.nll) / tokens, self._unit)
    norm = float(sums.grad_norm) / steps
    record |= {'lr': lr, 'grad_norm': norm, 'epoch': epoch}
    record |= {'tokens_per_second': round(rate, 1), **shares, **more}
    if self._peak:
      record['mfu'] = round(rate * self._flops / self._peak, 4)
    log.write(record)
    self._show(step, record, shares)

  def _show(self, step, record, shares):
    """Shows the figures of a record; on a terminal, as many as fit."""
    figure = f'{record[self._unit]:.4f} {self._unit}'
    rate = f'{record["tokens_per_second"]:,.0f} tokens/s'
    lr = f'lr {record["lr"]:.3g}'
    used = [f'mfu {record["mfu"]:.1%}'] if self._peak else []
    data, dispatch, device = (f'{share:.2%}' for share in shares.values())
    waits = f'data {data}', f'dispatch {dispatch}', f'device {device}'
    parts = figure, rate, lr, *used, f'epoch {record["epoch"]}', *waits
    left = self._phase.left()
    eta = [] if left is None else [f'ETA {duration(left)}']
    before = f'step {step}/{self._train.steps}', figure, lr, rate, *used
    plain = '  '.join([*before, *waits, *eta])
    self._console.figures(self._phase, parts, plain)

  def evaluated(
    self, record: Mapping[str, Any], progress: resume.Progress
  ) -> None:
    """Shows the record of an evaluation, and the curve so far.

    The progress is that after it.
    """
    self.curve.append(record[self._unit])
    step, best = record['step'], progress.best_step
    mark = ' (best)' if best == step else ''
    figure = f'validation {record[self._unit]:.4f} {self._unit}{mark}'
    lowest = figures.figures(progress.best, self._unit)[self._unit]
    before = [] if mark else [f'best {lowest:.4f} at step {best}']
    bits = figures.told({x: record[x] for x in (figures.BPB,) if x in record})
    read = f'{bits}{record["tokens"]:,} tokens in {duration(record["seconds"])}'
    averaged = record.get('averaged', 0)
    over = [f'weights averaged over {averaged} steps'] if averaged else []
    plain = f'step {step}: {", ".join([figure, read, *over])}'
    parts = f'step {step}: {figure}', *before, read, *over
    self._console.evaluated(parts, self.curve, plain)
