"""Log and console lines of training: losses, throughput, time left."""

import contextlib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from txl_jax.data.prepared import Prepared
from txl_jax.evaluation import units
from txl_jax.parallel import hardware
from txl_jax.runs.metrics_log import Log, Silent
from txl_jax.runs.terminal import Console, Phase, duration
from txl_jax.training import cost, host_state, profiling
from txl_jax.training.state import Sums
from txl_jax.training.train_config import Config


class Lines:
  """Times training steps and writes their log lines."""

  def __init__(self, config: Config, corpus: Prepared, console: Console):
    """Starts without measurements."""
    self._console = console
    self._unit = corpus.vocabulary.unit
    self.clock = profiling.Clock()
    self._flops = 0
    self._peak = hardware.peak(config.model.dtype)
    if self._peak:
      self._flops = cost.flops_per_token(config, len(corpus.vocabulary))

  def begin(self, step: int, phase: Phase) -> None:
    """Restarts the clock at `step`; `phase` displays the progress."""
    self.clock.restart()
    phase.restart(step)
    self._phase, self._timed_from = phase, step

  @contextlib.contextmanager
  def excluded_time(self, state: Any) -> Iterator[None]:
    """Excludes a block, such as an evaluation, from the training time.

    First waits for the arrays of `state`; that wait does count.
    """
    with self.clock('device_wait'):
      jax.block_until_ready(state)
    with self.clock.stopped():
      yield

  def write(
    self,
    log: Log | Silent,
    step: int,
    sums: Sums,
    lr: float,
    epoch: int,
    due: int,
    **more: int,
  ) -> dict[str, Any]:
    """Writes and returns the record of a step; the next evaluation is at `due`.

    `sums`, already on the host, cover the steps since the last line; `more` are
    further fields.
    """
    seconds, shares = self.clock.read()
    # After a resume, some of the summed steps were made by an earlier process.
    timed, self._timed_from = step - self._timed_from, step
    tokens = sums.token_count()
    steps = int(sums.steps)
    rate = tokens * timed / steps / seconds
    record: dict[str, Any] = {'step': step, 'split': 'train'}
    record |= units.to_units(float(sums.nll) / tokens, self._unit)
    norm = float(sums.grad_norm) / steps
    record |= {'lr': lr, 'grad_norm': norm, 'epoch': epoch}
    record |= {'tokens_per_second': round(rate, 1), **shares, **more}
    if self._peak:
      record['mfu'] = round(rate * self._flops / self._peak, 4)
    log.write(record)
    self._show(record, shares, due)
    return record

  def _show(self, record, shares, due):
    """Prints the figures of a record; a terminal shows as many as fit."""
    parts = [units.loss_text(record, self._unit)]
    parts += [f'eval at {due}'] if self._console.live else []
    parts += [f'lr {record["lr"]:.3g}']
    parts += [f'{record["tokens_per_second"]:,.0f} tokens/s']
    parts += [f'mfu {record["mfu"]:.1%}'] if self._peak else []
    parts += [f'{k.removesuffix("_wait")} {x:.2%}' for k, x in shares.items()]
    left = self._phase.left()
    if left is not None and not self._console.live:
      parts += [f'ETA {duration(left)}']
    at = f'step {record["step"]}/{self._phase.total}'
    self._console.figures(self._phase, parts, at)

  def evaluated(
    self, record: Mapping[str, Any], progress: host_state.Progress
  ) -> None:
    """Prints the result of an evaluation; `progress` already includes it."""
    mark = ' (best)' if progress.best_step == record['step'] else ''
    mark = mark if record['step'] else ' before training'
    parts = [f'validation {units.loss_text(record, self._unit)}{mark}']
    bits = units.bits_text(record)
    took = duration(record['seconds'])
    parts += [f'{bits}{record["tokens"]:,} tokens in {took}']
    if averaged := record.get('averaged'):
      parts += [f'weights averaged over {averaged} steps']
    self._console.say(f'step {record["step"]}: {", ".join(parts)}')

  def sampled(self, text: str) -> None:
    """Prints a sample, with control characters replaced."""
    shown = (x if x.isprintable() or x == '\n' else '\ufffd' for x in text)
    self._console.say(textwrap.indent(''.join(shown).rstrip(), '  | '))
