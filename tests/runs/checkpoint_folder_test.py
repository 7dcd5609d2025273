"""Steps in a bucket, where a program is killed before any of its writes."""

import functools
import io

import pytest

from tests import emulator, fake_bucket
from txl_jax.program import buckets
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint_folder

FOLDER = buckets.Path(f'gs://{emulator.BUCKET}/checkpoints')


def save(folder, number):
  """A step as a save leaves it: sealed, and not yet named."""
  new = folder / f'{number}.new'
  for name in 'params/a', 'params/b/c', '_CHECKPOINT_METADATA':
    (new / name).upload(io.BytesIO(f'{number} {name}'.encode()))
  checkpoint_folder.seal(new, f'{number}')


def whole(folder):
  """The numbers of all steps, each of which must be whole."""
  found = checkpoint_folder.Steps(folder).steps()
  for number in found:
    assert not checkpoint_folder.damage(folder / f'{number}')
  return found


def names(folder):
  return sorted(x.name for x in folder.iterdir())


class Killed(BaseException):
  """A program is no more."""


def killed(bucket, after, act):
  """Whether an act makes more than so many writes; it is ended before."""
  made = []

  def seen(what):
    made.append(what)
    if len(made) > after:
      raise Killed

  bucket.seen = seen
  try:
    act()
  except Killed:
    return True
  finally:
    bucket.seen = lambda what: None
  return False


def each_time(bucket, folder, act):
  """Carries out an act that is killed ever later, in folders of its own."""
  after = 0
  while True:
    here = folder / f'{after}'
    for number in 1, 2:
      save(here, number)
      checkpoint_folder.Steps(here).commit(number)
    save(here, 3)
    found = checkpoint_folder.Steps(here)
    ended = not killed(bucket, after, functools.partial(act, found))
    yield here
    if ended:
      assert after > 3
      return
    after += 1


def test_killed_while_a_step_gets_its_name(memory):
  for folder in each_time(memory, FOLDER, lambda x: x.commit(3)):
    assert whole(folder)[-2:] == [2, 1]
    checkpoint_folder.Steps(folder).recover()
    assert whole(folder) == [3, 2, 1]
    assert names(folder) == ['1', '2', '3']


def test_killed_while_a_step_is_replaced(memory):

  def act(found):
    found.commit(3)
    save(found.folder, 2)
    found.commit(2)

  for folder in each_time(memory, FOLDER, act):
    checkpoint_folder.Steps(folder).recover()
    assert whole(folder) == [3, 2, 1]
    assert names(folder) == ['1', '2', '3']


def test_killed_while_a_step_is_deleted(memory):
  for folder in each_time(memory, FOLDER, lambda x: x.delete(1)):
    assert whole(folder) in ([2, 1], [2])
    kept = whole(folder)
    checkpoint_folder.Steps(folder).recover()
    assert whole(folder) == [3, *kept]
    assert names(folder) == sorted(f'{x}' for x in [3, *kept])


def test_a_save_that_was_not_sealed(in_bucket):
  save(in_bucket, 1)
  (in_bucket / '1.new/seal.json').unlink()
  (in_bucket / '1.new.orbax-checkpoint-tmp-8/a').upload(io.BytesIO(b'x'))
  save(in_bucket, 7)  # the next in the listing
  (in_bucket / 'mine').upload(io.BytesIO(b'x'))
  found = checkpoint_folder.Steps(in_bucket)
  assert found.steps() == []
  found.recover()
  assert found.steps() == [7] and names(in_bucket) == ['7', 'mine']


@pytest.mark.parametrize('unreadable', ['seal.json', '_CHECKPOINT_METADATA'])
def test_what_is_out_of_reach_is_not_damaged(memory, monkeypatch, unreadable):
  """Else a run would go back to an older step because of its network."""
  save(FOLDER, 1)
  checkpoint_folder.Steps(FOLDER).commit(1)
  (FOLDER / '1/params/a').upload(io.BytesIO(b'2'))
  assert 'params/a has 1 bytes' in checkpoint_folder.damage(FOLDER / '1')
  (FOLDER / '1/params/a').unlink()
  lost = 'params/a: No such file or directory'
  assert checkpoint_folder.damage(FOLDER / '1') == lost

  def refuse(self, file):
    if self.name.endswith(unreadable):
      raise fake_bucket.Error(503)
    read(self, file)

  read = fake_bucket.Blob.download_to_file
  monkeypatch.setattr(fake_bucket.Blob, 'download_to_file', refuse)
  with pytest.raises((OSError, UserError), match='503 Service Unavailable'):
    checkpoint_folder.damage(FOLDER / '1')
