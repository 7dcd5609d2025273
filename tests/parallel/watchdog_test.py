"""The watch of several processes: here threads with a made-up store."""

import signal
import threading
import time
from concurrent import futures

import pytest

from tests.parallel.store import Store
from txl_jax.parallel import placement, processes, watchdog
from txl_jax.program import signals
from txl_jax.program.errors import UserError


class Left(BaseException):
  """What a process that ends raises here."""


@pytest.fixture
def left(monkeypatch):
  """Lines of the processes that have ended."""
  lines = []

  def leave(line):
    lines.append(line)
    raise Left

  store = Store()
  monkeypatch.setattr(processes, 'store', lambda: store)
  monkeypatch.setattr(processes, 'leave', leave)
  monkeypatch.setattr(watchdog, '_PAUSE', 0.01)
  monkeypatch.setattr(watchdog, '_MORE', 0.0)
  monkeypatch.setattr(threading, 'excepthook', lambda e: None)
  yield lines
  for made in _made:
    made._done.set()
    if made._listening.ident:
      made._listening.join(2)
  _made.clear()


_made = []  # watches of the test


def watches(monkeypatch, count, lost_seconds=0.2):
  made = []
  for p in range(count):
    monkeypatch.setattr(processes, 'index', lambda p=p: p)
    monkeypatch.setattr(processes, 'count', lambda: count)
    monkeypatch.setattr(
      processes, 'name', lambda p=p: f'process {p} of {count} on h{p}'
    )
    made.append(watchdog.Watch(lost_seconds))
  _made.extend(made)
  return made


def wait_for(condition):
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.fixture
def ended(monkeypatch):
  """Statuses with which this process would have ended at once."""
  statuses = []
  monkeypatch.setattr(signals, 'interrupt', lambda *_: statuses.append(130))
  return statuses


def test_one_process_needs_no_thread(ended):
  with watchdog.Watch() as w:
    assert not w._listening.ident
    with (
      pytest.raises(watchdog.Stopped, match='SIGTERM at step 7'),
      w.signals(),
    ):
      w.step = 7
      assert w.stopping() == 0
      signal.raise_signal(signal.SIGTERM)
      assert w.stopping() == signal.SIGTERM
      for number in signal.SIGTERM, signal.SIGINT:  # the first Ctrl-C asks
        signal.raise_signal(number)
        assert not ended
      signal.raise_signal(signal.SIGINT)
      assert ended == [130]


def test_a_closed_terminal(ended):
  """It asks, but not where it was ignored at the start, as by nohup."""
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with watchdog.Watch() as w, w.signals():
      signal.raise_signal(signal.SIGHUP)
      assert w.stopping() == 0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.raises(watchdog.Stopped, match='P before the'), w.signals():
      for _ in range(2):
        signal.raise_signal(signal.SIGHUP)
    assert not ended
  finally:
    signal.signal(signal.SIGHUP, before)


def test_an_error_is_told_to_all(monkeypatch, left):
  made = watches(monkeypatch, 3)
  with made[0] as w, made[2] as third:
    w.step, third.step = 4, 5
    with pytest.raises(Left), made[1] as other:
      other.step = 5
      raise UserError('data.path: it is gone')
    wait_for(lambda: len(left) == 3)
  line = 'error: process 1 of 3 on h1, step 5: data.path: it is gone'
  assert sorted(left) == [
    line,
    f'{line}; process 0 of 3 on h0 ends at step 4',
    f'{line}; process 2 of 3 on h2 ends at step 5',
  ]


def test_of_two_errors_the_first_is_the_cause(monkeypatch, left):
  first, second = watches(monkeypatch, 2)
  for watch in first, second:
    with pytest.raises(Left):
      watch._fail(UserError(f'of {watch._here}'))
  line = 'error: process 0 of 2 on h0, step 0: of process 0 of 2 on h0'
  assert left == [line, f'{line}; process 1 of 2 on h1 ends at step 0']


@pytest.mark.parametrize(
  'error, cause, waits',
  [
    (ValueError('Gloo: closed by peer'), None, True),
    (UserError('it is gone'), ValueError(), True),
    (UserError('it is gone'), OSError(), False),
    (OSError('no space'), None, False),
  ],
)
def test_an_error_that_a_loss_may_have_caused(
  monkeypatch, left, capsys, error, cause, waits
):
  """The runtime, which names who is lost, has time to end the process."""
  slept, error.__cause__ = [], cause
  monkeypatch.setattr(time, 'sleep', slept.append)
  monkeypatch.setattr(watchdog, '_MORE', 7)
  (watch, _) = watches(monkeypatch, 2, lost_seconds=0.25)
  with pytest.raises(Left), watch:
    raise error
  assert slept == [7.5] * waits
  own = isinstance(error, ValueError)
  assert ('ValueError: Gloo' in capsys.readouterr().err) == own
  assert left == [f'error: process 0 of 2 on h0, step 0: {error}']


def test_a_signal_after_the_last_check(monkeypatch, left):
  monkeypatch.setattr(placement, 'max_over_processes', lambda number: number)
  (watch, _) = watches(monkeypatch, 2)
  with pytest.raises(watchdog.Stopped, match='SIGTERM'), watch.signals():
    signal.raise_signal(signal.SIGTERM)
  assert not left
  watch._highest = 0
  assert [watch.stopping() for _ in range(2)] == [0, signal.SIGTERM]


def test_a_notebook_is_stopped_by_ctrl_c():
  before = signal.getsignal(signal.SIGTERM)
  watch = watchdog.Watch(program=False)
  with pytest.raises(watchdog.Stopped, match='SIGINT'), watch.signals():
    assert signal.getsignal(signal.SIGTERM) == before
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)


def test_a_thread_hears_no_signals():
  with futures.ThreadPoolExecutor(1) as threads:
    threads.submit(watchdog.Watch().signals().__enter__).result()


def test_stopping_is_no_failure(monkeypatch, left):
  made = watches(monkeypatch, 2)
  with pytest.raises(watchdog.Stopped), made[0]:
    raise watchdog.Stopped(signal.SIGTERM, 3)
  assert not left
