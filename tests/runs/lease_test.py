"""The lock of a run in a bucket: one run, and none that is gone for good."""

import io
import os
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


def test_a_lock_that_was_released_by_then(in_bucket, monkeypatch):
  """Its holder ends while another waits."""
  monkeypatch.setattr(lease, 'LEASE', 60.0)
  old = lease.Lease(in_bucket / 'lock')
  old.take()
  monkeypatch.setattr(time, 'sleep', lambda _: old.release())
  with lease.held(in_bucket / 'lock'):
    pass
  assert not (in_bucket / 'lock').exists()
