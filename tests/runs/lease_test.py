"""The lock of a run in a bucket: one run, and none that is gone for good."""

import io
import os
import threading
import time

import pytest

from tests import fake_bucket
from txl_jax.program import buckets
from txl_jax.program.errors import UserError
from txl_jax.runs import lease


def test_a_lock_is_of_one(in_bucket, monkeypatch):
  monkeypatch.setattr(lease, 'LEASE', 3.0)
  with lease.held(in_bucket / 'lock'):
    with pytest.raises(UserError, match=f'in use by process {os.getpid()}'):
      lease.Lease(in_bucket / 'lock').take()
    lease.confirm(in_bucket)
    threads = [x for x in threading.enumerate() if 'keep' in x.name]
    assert threads and all(x.daemon for x in threads)
  assert not (in_bucket / 'lock').exists()


def test_a_lock_of_another_machine_is_taken_when_it_is_old(
  in_bucket, monkeypatch, capsys
):
  monkeypatch.setattr(lease, 'LEASE', 0.6)
  old = lease.Lease(in_bucket / 'lock')
  old._holder |= {'host': 'elsewhere'}
  old.take()
  since = time.monotonic()
  with lease.held(in_bucket / 'lock'):
    assert time.monotonic() - since > 0.6
  assert 'elsewhere: waiting up to 1 s' in capsys.readouterr().err


def test_who_has_lost_the_lock_ends(in_bucket, monkeypatch):
  def leave(line):
    raise SystemExit(line)

  monkeypatch.setattr(lease.processes, 'leave', leave)
  monkeypatch.setattr(lease, 'LEASE', 300.0)
  with lease.held(in_bucket / 'lock'):
    (in_bucket / 'lock').upload(io.BytesIO(b'{}'))
    with pytest.raises(SystemExit, match='was taken by another run'):
      lease.confirm(in_bucket)


@pytest.mark.parametrize('data', [b'', b'[]', b'{"pid": "x"}', b'\xff'])
def test_a_lock_that_is_none_is_taken_when_it_is_old(
  in_bucket, monkeypatch, data
):
  monkeypatch.setattr(lease, 'LEASE', 0.5)
  (in_bucket / 'lock').upload(io.BytesIO(data))
  with lease.held(in_bucket / 'lock'):
    pass


def test_a_lock_that_cannot_be_written(bucket, in_bucket):
  bucket.closed = True
  refused = r'--workdir=.* cannot be written: .*403'
  with pytest.raises(UserError, match=refused), lease.held(in_bucket / 'lock'):
    pass


def test_an_answer_that_was_lost(memory, monkeypatch):
  """The client repeats a write that was carried out, and is refused."""
  write = fake_bucket.Blob.upload_from_file

  def twice(*arguments, **how):
    write(*arguments, **how)
    write(*arguments, **how)

  monkeypatch.setattr(fake_bucket.Blob, 'upload_from_file', twice)
  folder = buckets.Path('gs://bucket/run')
  with lease.held(folder / 'lock'):
    lease.confirm(folder)
  assert not (folder / 'lock').exists()


@pytest.mark.parametrize('lasts, pause', [(12.0, 1.2), (60.0, 2.0)])
def test_a_lock_that_was_released_by_then(in_bucket, monkeypatch, lasts, pause):
  """Its holder ends while another waits, and looks at it at intervals."""
  monkeypatch.setattr(lease, 'LEASE', lasts)
  old, new, pauses = *map(lease.Lease, [in_bucket / 'lock'] * 2), []
  old.take(), old.confirm()
  monkeypatch.setattr(time, 'sleep', pauses.append)
  look = lambda: [pauses and old.release(), lease.Lease._read(new)][1]
  monkeypatch.setattr(new, '_read', look)
  new.take()
  assert pauses == [pause] * 2
  new.release()
  new.confirm()  # which does not take it again
  assert not (in_bucket / 'lock').exists()


def test_a_lock_that_is_deleted_while_it_is_read(memory, monkeypatch):
  path = buckets.Path('gs://bucket/run/lock')
  path.upload(io.BytesIO(b'{}'))

  def read(path):
    path.unlink()
    raise UserError

  monkeypatch.setattr(lease.files, 'read_json', read)
  assert lease.Lease(path)._read() == (0, {})


def test_a_lock_is_renewed(memory, monkeypatch):
  """Five times before others may take it, also after the bucket was away."""
  path, waits = buckets.Path('gs://bucket/run/lock'), []
  lock = lease.Lease(path)

  def wait(seconds):
    memory.closed = len(waits) == 1
    waits.append((seconds, path.stat().st_mtime_ns))
    return len(waits) > 3

  monkeypatch.setattr(lease, 'LEASE', 61.0)
  monkeypatch.setattr(lock._end, 'wait', wait)
  lock.take()
  lock.keep()
  assert waits == [(12.2, n) for n in (1, 2, 2, 3)]
