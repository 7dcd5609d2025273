"""The watch of several processes: here threads with a made-up store."""

import signal
import threading
import time

import pytest

from txl_jax.errors import UserError
from txl_jax.parallel import processes, watchdog
from txl_jax.parallel.watchdog import READING, STEPPING


class Store:
  """The store of jax.processes, as a dict."""

  def __init__(self):
    self.values, self.changed = {}, threading.Condition()

  def key_value_set(self, key, value, allow_overwrite=False):
    with self.changed:
      assert allow_overwrite or key not in self.values
      self.values[key] = value
      self.changed.notify_all()

  def key_value_dir_get(self, prefix):
    with self.changed:
      return [(k, v) for k, v in self.values.items() if k.startswith(prefix)]

  def wait_at_barrier(self, name, timeout_ms):
    raise RuntimeError('not all are there')


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
  monkeypatch.setattr(watchdog, '_BEAT', 0.01)
  monkeypatch.setattr(watchdog, '_SUSPECT', 0.3)
  monkeypatch.setattr(watchdog, '_LOST', 0.5)
  monkeypatch.setattr(threading, 'excepthook', lambda e: None)
  yield lines
  for made in _made:
    made._done = True
    made._wake.put(None)
    if made._thread.ident:
      made._thread.join(2)
  _made.clear()


_made = []  # watches of the test


def watches(monkeypatch, count, **options):
  made = []
  for p in range(count):
    monkeypatch.setattr(processes, 'index', lambda p=p: p)
    monkeypatch.setattr(processes, 'count', lambda: count)
    monkeypatch.setattr(
      processes, 'name', lambda p=p: f'process {p} of {count} on h{p}'
    )
    made.append(watchdog.Watch(**options))
  _made.extend(made)
  monkeypatch.setattr(watchdog.socket, 'gethostname', lambda: 'h')
  return made


def wait_for(condition):
  deadline = time.monotonic() + 20
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_one_process_needs_no_thread():
  with watchdog.Watch() as w:
    assert not w._thread.ident
    with w.signals():
      assert w.stopping() == 0
      signal.raise_signal(signal.SIGTERM)
      assert w.stopping() == signal.SIGTERM
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_all_stop_at_the_same_question(monkeypatch, left):
  made, stopped = watches(monkeypatch, 3), {}
  meeting = threading.Barrier(3)

  def run(p):
    with made[p] as w:
      for question in range(10_000):
        if p == 2 and question == 20:
          w._asked = signal.SIGTERM
          w._wake.put(None)
        if number := w.stopping():
          stopped[p] = question, number
          return
        if question % 5 == p:
          time.sleep(0.002 * p)  # they drift apart by up to five questions
        if question % 5 == 4:
          meeting.wait(20)

  threads = [threading.Thread(target=run, args=(p,)) for p in range(3)]
  for t in threads:
    t.start()
  for t in threads:
    t.join(30)
  assert not left
  assert len(stopped) == 3 and len(set(stopped.values())) == 1, stopped
  question, number = stopped[0]
  assert question >= 20 and number == signal.SIGTERM


def test_one_that_is_lost_while_all_are_to_stop(monkeypatch, left):
  made = watches(monkeypatch, 2)
  made[1].at(7, STEPPING)
  made[1]._send()  # once, and never again
  with made[0] as w:
    w.at(8, STEPPING)
    w._asked = signal.SIGTERM
    w._wake.put(None)
    wait_for(lambda: left)
  ((line, _),) = left
  assert line.startswith('error: process 1 of 2 on h is lost, last seen at ')


@pytest.mark.parametrize('first', [0, 1])
def test_asked_when_one_is_done(monkeypatch, left, first):
  """Nobody stops, and nobody waits for one that asks no more."""
  made = watches(monkeypatch, 2)
  last = made[1 - first]
  with last:
    with made[first]:
      last.stopping()
    last._asked = signal.SIGTERM
    last._wake.put(None)
    wait_for(lambda: f'{watchdog._TICKS}{last._me}' in processes.store().values)
    assert last.stopping() == 0
  assert not left


def test_a_store_that_fails_for_a_moment(monkeypatch, left):
  """What was told of the questions stays, for another may have read it."""
  made = watches(monkeypatch, 2)
  store, failures = processes.store(), [3]
  get = store.key_value_dir_get

  def sometimes(folder):
    if folder == watchdog._TICKS and failures[0]:
      failures[0] -= 1
      raise RuntimeError('UNAVAILABLE')
    return get(folder)

  monkeypatch.setattr(store, 'key_value_dir_get', sometimes)
  told = []
  with made[0] as w, made[1] as other:
    w._asked = signal.SIGTERM
    w._wake.put(None)
    while not (number := w.stopping()):
      time.sleep(0.001)
      told.append(store.values.get(f'{watchdog._TICKS}0'))
    while not other.stopping():
      time.sleep(0.001)
    assert (number, w._stop_at) == (signal.SIGTERM, other._stop_at)
  assert not failures[0]
  assert len(set(told) - {None}) <= 1
  assert not left


def test_a_process_without_a_sign_ends_the_others(monkeypatch, left):
  made = watches(monkeypatch, 2)
  made[1].at(7, STEPPING)
  made[1]._send()  # once, and never again
  with made[0] as w:
    w.at(8, STEPPING)
    wait_for(lambda: left)
  assert left == [
    (
      'error: process 1 of 2 on h is lost, last seen at step 7; '
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
  made = watches(monkeypatch, 2)
  with made[0] as w:
    w.at(4, READING)
    with pytest.raises(Left), made[1] as other:
      other.at(5, READING)
      raise UserError('data.path: it is gone')
    wait_for(lambda: len(left) == 2)
  assert left == [
    ('error: process 1 of 2 on h1, step 5: data.path: it is gone', 1),
    (
      'error: process 1 of 2 on h1, step 5: data.path: it is gone; '
      'process 0 of 2 on h0 ends at step 4',
      1,
    ),
  ]


def test_an_error_that_another_process_causes(monkeypatch, left, capsys):
  monkeypatch.setattr(watchdog, '_LOST', 20.0)
  made = watches(monkeypatch, 2)
  made[1]._send()
  with pytest.raises(Left), made[0]:
    time.sleep(0.05)
    raise ValueError('Gloo: connection closed by peer')
  assert left[0][0].startswith('error: process 1 of 2 on h is lost, last seen')
  assert 'ValueError: Gloo' in capsys.readouterr().err


def test_stopping_is_no_failure(monkeypatch, left):
  made = watches(monkeypatch, 2)
  with pytest.raises(watchdog.Stopped), made[0]:
    raise watchdog.Stopped(signal.SIGTERM, 3)
  assert not left


def stalls(capsys):
  text = capsys.readouterr().err
  return [line for line in text.splitlines() if 'no step for' in line]


def test_stalls(capsys):
  with watchdog.Watch(stall_seconds=0.1) as w:
    with_beats = lambda: (w._wake.put(None), time.sleep(0.01))
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
  assert 'process 1 of 3 on h: it reads the batch of step 13' in line
  assert not left
