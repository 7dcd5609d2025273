"""What training logs and prints, by a clock that stands still in between."""

import math
import time
import types

import numpy as np
import pytest

from tests.training.fragile import Console, Corpus, config
from txl_jax.parallel import hardware
from txl_jax.training import cost, host_state, log_lines
from txl_jax.training.state import Sums


class Clock:
  """The time, and arrays that are ready `late` seconds after they are asked."""

  now, late = 100.0, 0.0

  def __call__(self):
    return self.now

  def block_until_ready(self):
    self.now += self.late


def make():
  console = Console()
  return log_lines.Lines(config(), Corpus(), console), console


def sums(steps):
  """Of steps with 400 tokens each and 3 more, at 1 bit a token."""
  tokens = 400 * steps + 3
  nll = np.float32(tokens * math.log(2))
  return Sums(nll, np.int32([0, tokens]), steps / 4, steps, -1)


def test_a_line(monkeypatch):
  clock, records = Clock(), []
  monkeypatch.setattr(time, 'monotonic', clock)
  flops = lambda config, words: 1e8 * words * config.train.batch_size
  monkeypatch.setattr(hardware, 'peak', {'float32': 3e12}.get)
  monkeypatch.setattr(cost, 'flops_per_token', flops)
  (lines, console), log = make(), types.SimpleNamespace(write=records.append)
  with console.phase('training', 30) as phase:
    clock.now += 9
    lines.begin(4, phase)
    with lines.clock('dispatch'):
      clock.now += 0.25
    phase.reach(11)
    clock.late = 0.5
    with lines.excluded_time(clock):
      clock.now += 7
    clock.now += 2.25
    # Eight steps, of which an earlier program has made four.
    record = lines.write(log, 8, sums(8), 0.0125, 2, 20, rollbacks=3)
    phase.reach(15)
    clock.now += 4
    lines.write(log, 12, sums(4), 0.0125, 2, 20)
    clock.now += 1
    monkeypatch.setattr(Console, 'live', True)  # which shows the time left
    lines.write(log, 14, sums(2), 0.0125, 2, 24)
  assert records[0] == record and record.pop('bpc') == pytest.approx(1)
  assert record.pop('nats') == pytest.approx(math.log(2))
  expected: dict = dict(step=8, split='train', lr=0.0125, grad_norm=0.25)
  expected |= dict(epoch=2, tokens_per_second=533.8, mfu=0.8541, rollbacks=3)
  expected |= dict(data_wait=0.0, dispatch=0.08333, device_wait=0.16667)
  assert record == expected
  figures = 'loss 0.6931 nats, 1.0000 bpc  lr 0.0125'
  assert console.said == [
    f'step 8/30  {figures}  534 tokens/s  mfu 85.4%  data 0.00%  '
    'dispatch 8.33%  device 16.67%',
    f'step 12/30  {figures}  401 tokens/s  mfu 64.1%  data 0.00%  '
    'dispatch 0.00%  device 0.00%  ETA 32s',
    f'step 14/30  {figures}  803 tokens/s  mfu 128.5%  data 0.00%  '
    'dispatch 0.00%  device 0.00%'.replace('lr', 'eval at 24  lr'),
  ]


@pytest.mark.parametrize(
  'step, mark', [(0, ' before training'), (6, ''), (7, ' (best)'), (8, '')]
)
def test_an_evaluation(step, mark):
  lines, console = make()
  record = dict(step=step, nats=0.5, bpc=0.75, bpb=2.0, tokens=1234, seconds=61)
  for more in {}, {'averaged': 0}, {'averaged': 1}:
    lines.evaluated(record | more, host_state.Progress(best_step=7))
  line = f'step {step}: validation loss 0.5000 nats, 0.7500 bpc{mark}, '
  line += '2.00000 bits per byte, 1,234 tokens in 1m01s'
  averaged = f'{line}, weights averaged over 1 steps'
  assert console.said == [line, line, averaged]


def test_a_sample_cannot_move_the_cursor():
  lines, console = make()
  lines.sampled('a\x1b[Hb\r\n\tc  \n\n')
  assert console.said == ['  | a\ufffd[Hb\ufffd\n  | \ufffdc']
