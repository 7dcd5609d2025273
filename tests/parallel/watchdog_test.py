"""The watch of several processes: here threads with a made-up store."""

import contextlib
import signal
import threading
import time

import pytest

from tests.parallel.store import Store
from txl_jax import terminal
from txl_jax.errors import UserError
from txl_jax.parallel import processes, watchdog
from txl_jax.parallel.watchdog import READING, STEPPING


class Left(BaseException):
  """What a process that ends raises here."""


@pytest.fixture
def left(monkeypatch):
  """Lines and statuses of the processes that have ended."""
  lines = []

  def leave(line, status):
    lines.append((line, status))
    raise Left

  store = Store()
  monkeypatch.setattr(processes, 'store', lambda: store)
  monkeypatch.setattr(processes, 'leave', leave)
  nothing = contextlib.nullcontext()
  monkeypatch.setattr(processes, 'on_abort', lambda function: nothing)
  monkeypatch.setattr(watchdog, '_BEAT', 0.01)
  monkeypatch.setattr(watchdog, '_LEAVE', 0.1)
  monkeypatch.setattr(threading, 'excepthook', lambda e: None)
  yield lines
  store.fails = False
  for made in _made:
    made._done = True
    made._wake.set()
    if made._ending.locked():  # for ever: the process has left
      made._ending.release()
    for thread in (made._beating, made._judging):
      if thread.ident:
        thread.join(2)
  _made.clear()


_made = []  # watches of the test


def watches(monkeypatch, count, lost_seconds=0.5, **options):
  made = []
  for p in range(count):
    monkeypatch.setattr(processes, 'index', lambda p=p: p)
    monkeypatch.setattr(processes, 'count', lambda: count)
    monkeypatch.setattr(
      processes, 'name', lambda p=p: f'process {p} of {count} on h{p}'
    )
    made.append(watchdog.Watch(lost_seconds, **options))
  _made.extend(made)
  return made


def beat_once(watch):
  """And never again."""
  with contextlib.suppress(RuntimeError):  # it hears nobody yet
    watch._exchange()


def wait_for(condition):
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.fixture
def ended(monkeypatch):
  """Statuses with which this process would have ended at once."""
  statuses = []
  monkeypatch.setattr(terminal, 'interrupt', lambda *_: statuses.append(130))
  return statuses


def test_one_process_needs_no_thread(ended):
  with watchdog.Watch() as w:
    assert not w._beating.ident and not w._judging.ident
    with (
      pytest.raises(watchdog.Stopped, match='SIGTERM at step 7'),
      w.signals(),
    ):
      w.at(7, STEPPING)
      assert w.stopping() == 0
      signal.raise_signal(signal.SIGTERM)
      assert w.stopping() == signal.SIGTERM
      signal.raise_signal(signal.SIGINT)  # the first Ctrl-C asks as well
      assert not ended
      signal.raise_signal(signal.SIGINT)
      assert ended == [130]


def test_a_closed_terminal():
  """It asks, but not where it was ignored at the start, as by nohup."""
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with watchdog.Watch() as w, w.signals():
      signal.raise_signal(signal.SIGHUP)
      assert w.stopping() == 0
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with pytest.raises(watchdog.Stopped, match='SIGHUP'), w.signals():
      signal.raise_signal(signal.SIGHUP)
  finally:
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize('count', [2, 5, 9])
def test_messages_are_two_for_each_process(monkeypatch, left, count):
  made, store = watches(monkeypatch, count), processes.store()
  for _ in range(3):
    store.calls = 0
    for w in made:
      w._exchange()
    assert store.calls == 2 * count
  values = [v for k, v in store.values.items()]
  assert len(values) == count
  assert max(map(len, values)) < 300  # that of process 0 as well
  assert not left


def test_a_store_that_fails(monkeypatch, left):
  """Up to the limit it is nothing; beyond it process 0, which has it, is."""
  with watches(monkeypatch, 2, lost_seconds=2.0)[1] as w:
    store = processes.store()
    made = _made[0]
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
      made._exchange()
      time.sleep(0.01)
    store.fails = True
    time.sleep(1)
    store.fails = False
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
      made._exchange()
      time.sleep(0.01)
    assert not left
    made.at(3, STEPPING)
    made._exchange()
    wait_for(lambda: w._seen[0][1]['step'] == 3)
    store.fails = True
    begin = time.monotonic()
    wait_for(lambda: left)
    assert time.monotonic() - begin > 1.9
  assert left == [
    (
      'error: process 0 of 2 on h0 is lost, last seen at step 3; '
      'process 1 of 2 on h1 ends at step 0',
      1,
    )
  ]


def test_a_process_without_a_sign_ends_the_others(monkeypatch, left):
  made = watches(monkeypatch, 2)
  made[1].at(7, STEPPING)
  beat_once(made[1])
  with made[0] as w:
    w.at(8, STEPPING)
    wait_for(lambda: left)
  assert left == [
    (
      'error: process 1 of 2 on h1 is lost, last seen at step 7; '
      'process 0 of 2 on h0 ends at step 8',
      1,
    )
  ]


def test_one_that_is_done_is_not_lost(monkeypatch, left):
  made = watches(monkeypatch, 2)
  with made[0] as w:
    with made[1]:
      pass
    time.sleep(0.8)
    assert w._seen[1][1]['done']
  assert not left


def test_an_error_is_told_to_all(monkeypatch, left):
  made = watches(monkeypatch, 3)
  with made[0] as w, made[2] as third:
    w.at(4, READING)
    third.at(5, STEPPING)
    with pytest.raises(Left), made[1] as other:
      other.at(5, READING)
      raise UserError('data.path: it is gone')
    wait_for(lambda: len(left) == 3)
  line = 'error: process 1 of 3 on h1, step 5: data.path: it is gone'
  assert sorted(left) == [
    (line, 1),
    (f'{line}; process 0 of 3 on h0 ends at step 4', 1),
    (f'{line}; process 2 of 3 on h2 ends at step 5', 1),
  ]


def test_an_error_in_the_midst_of_a_beat_is_told(monkeypatch, left):
  """The next beat tells it, before the process waits for the others."""
  main, failing = watches(monkeypatch, 2)
  beat_once(main)
  write = failing._write

  def write_and_fail(name, beat):
    write(name, beat)
    failing._failed = 'process 1 of 2 on h1, step 0: broken'

  monkeypatch.setattr(failing, '_write', write_and_fail)
  failing._beating.start()
  told = processes.store().values
  wait_for(lambda: any('broken' in beat for beat in told.values()))


@pytest.mark.parametrize('failed', [0, 1])
def test_an_error_that_another_process_causes(
  monkeypatch, left, failed, capsys
):
  made = watches(monkeypatch, 3, lost_seconds=20.0)
  beat_once(made[2])
  with made[1 - failed], pytest.raises(Left), made[failed]:
    time.sleep(0.05)
    raise ValueError('Gloo: connection closed by peer')
  assert left[0][0].startswith('error: process 2 of 3 on h2 is lost, last seen')
  assert 'ValueError: Gloo' in capsys.readouterr().err


def test_an_abort_of_the_runtime(monkeypatch, left):
  made = watches(monkeypatch, 2, lost_seconds=3.0)
  made[1].at(6, STEPPING)
  made[1].__enter__()
  with made[0], pytest.raises(Left):
    made[1]._aborted()
  # The other one, which is told before, may be first.
  line = 'error: process 1 of 2 on h1, step 6: the lines above say what failed'
  assert (line, 1) in left


def test_an_abort_for_the_loss_of_process_0(monkeypatch, left):
  made = watches(monkeypatch, 2, lost_seconds=3.0)
  made[0].at(5, STEPPING)
  beat_once(made[0])
  made[1].at(6, STEPPING)
  made[1].__enter__()
  with pytest.raises(Left):
    made[1]._aborted()
  assert left == [
    (
      'error: process 0 of 2 on h0 is lost, last seen at step 5; '
      'process 1 of 2 on h1 ends at step 6',
      1,
    )
  ]


def test_ctrl_c_is_told_to_all(monkeypatch, left):
  """Where it is no training, which stops by asking."""

  def interrupt():
    terminal._before_end.pop()()
    left.append(('interrupted', 130))
    raise Left

  monkeypatch.setattr(terminal, 'interrupt', interrupt)
  made = watches(monkeypatch, 2)
  with made[0] as w:
    w.at(4, READING)
    with pytest.raises(Left), made[1] as other:
      other.at(5, READING)
      raise KeyboardInterrupt
    wait_for(lambda: len(left) == 2)
  assert sorted(left) == [
    (
      'error: process 1 of 2 on h1, step 5: interrupted; '
      'process 0 of 2 on h0 ends at step 4',
      130,
    ),
    ('interrupted', 130),
  ]


def test_a_pause_that_is_over_is_told_once(monkeypatch, left, capsys):
  made = watches(monkeypatch, 3, lost_seconds=5.0)

  def beat(*watches, seconds=1.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
      for watch in watches:
        watch._exchange()
      time.sleep(0.01)

  with made[0]:
    beat(made[2])  # the other begins late
    beat(*made[1:])
    beat(made[2])
    beat(*made[1:])
  assert not left
  assert capsys.readouterr().err == (
    'process 1 of 3 on h1 gave no sign for 1 s and is back\n'
  )


def test_who_was_paused_blames_nobody(monkeypatch, left, capsys):
  """For more than the limit: so it is the one that was lost."""
  now, (main, other) = watchdog._now, watches(monkeypatch, 2, lost_seconds=5.0)
  beat_once(other)
  with pytest.raises(Left), main:
    time.sleep(0.1)
    monkeypatch.setattr(watchdog, '_now', lambda: now() + 60)
    raise ValueError('Gloo: connection closed by peer')
  assert left[0] == (
    'error: process 0 of 2 on h0, step 0: it was paused for 60 s, and the '
    'others have ended since',
    1,
  )
  assert not capsys.readouterr().err


def test_all_were_paused(monkeypatch, left):
  """As on a machine that sleeps: that is no reason for what comes later."""
  now, made = watchdog._now, watches(monkeypatch, 2, lost_seconds=2.0)
  with made[0] as w, made[1]:
    time.sleep(0.1)
    monkeypatch.setattr(watchdog, '_now', lambda: now() + 60)
    time.sleep(0.5)
    assert not left
    monkeypatch.setattr(made[1], '_write', lambda *_: None)  # now it is lost
    wait_for(lambda: left)
    line = 'process 1 of 2 on h1 is lost, last seen at step 0'
    assert w._lost(1.0).startswith(line)


def test_stopping_is_no_failure(monkeypatch, left):
  made = watches(monkeypatch, 2)
  with pytest.raises(watchdog.Stopped), made[0]:
    raise watchdog.Stopped(signal.SIGTERM, 3)
  assert not left


def stalls(capsys):
  text = capsys.readouterr().err
  return [line for line in text.splitlines() if 'no step for' in line]


def test_stalls(monkeypatch, capsys):
  monkeypatch.setattr(watchdog, '_BEAT', 0.01)
  with watchdog.Watch(stall_seconds=0.1) as w:
    with_beats = lambda: time.sleep(0.01)
    for phase in ('compiles', 'evaluates', 'saves'):
      w.at(3, phase)
      for _ in range(30):
        with_beats()
    assert not stalls(capsys)
    for step in range(3, 30):  # slow, but it moves
      w.at(step, STEPPING)
      with_beats()
    assert not stalls(capsys)
    w.at(30, READING)
    for _ in range(30):
      with_beats()
    (line,) = stalls(capsys)
    assert 'process 0 of 1 on ' in line
    assert line.endswith('it reads the batch of step 31')


def test_a_stall_names_who_is_behind(monkeypatch, left, capsys):
  made = watches(monkeypatch, 3, stall_seconds=0.1)
  with made[0] as a, made[1] as b, made[2] as c:
    a.at(12, STEPPING)
    b.at(12, READING)
    c.at(12, 'saves')  # late; no stall as long as it does
    time.sleep(0.4)
    assert not stalls(capsys)
    c.at(12, STEPPING)
    time.sleep(0.4)
    (line,) = stalls(capsys)
  assert 'process 1 of 3 on h1: it reads the batch of step 13' in line
  assert not left
