import pathlib
import subprocess
import sys

import pytest

from txl_jax.corpora import scratch


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_folder_lies_beside_and_goes(tmp_path):
  path = tmp_path / 'new' / 'corpus'
  with pytest.raises(KeyError), scratch.beside(path) as folder:
    assert folder.parent == path.parent
    assert folder.name.startswith('corpus.tmp-')
    (folder / 'half').mkdir()
    (folder / 'half' / 'file').write_text('')
    raise KeyError
  assert names(path.parent) == []


def test_dead_ones_are_removed_and_living_ones_are_not(tmp_path):
  code = """
import pathlib, sys
from txl_jax.corpora import scratch
with scratch.beside(pathlib.Path(sys.argv[1])) as folder:
  (folder / 'file').write_text('')
  print(folder.name, flush=True)
  sys.stdin.read()
"""
  process = subprocess.Popen(
    [sys.executable, '-c', code, str(tmp_path / 'one')],
    cwd=pathlib.Path(scratch.__file__).parents[2],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None
  theirs = process.stdout.readline().strip()
  # Of others: their own, or made by something else.
  for name in ('keep', 'keep.tmp-1', 'keep.tmp-12345678'):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'file').write_text('')
  kept = {'keep', 'keep.tmp-1', 'keep.tmp-12345678'}
  (tmp_path / 'empty.tmp-12345678').mkdir()
  with scratch.beside(tmp_path / 'two') as ours:
    assert {*names(tmp_path)} == {theirs, ours.name, *kept}
    with scratch.beside(tmp_path / 'two') as another:
      assert ours.is_dir()
      assert another != ours
  process.kill()
  process.communicate()
  assert {*names(tmp_path)} == {theirs, *kept}
  with scratch.beside(tmp_path / 'two') as ours:
    assert {*names(tmp_path)} == {ours.name, *kept}


def test_removal_that_is_interrupted_is_ended_by_the_next(
  tmp_path, monkeypatch
):
  unlink = pathlib.Path.unlink

  def interrupted(path, **kwargs):
    unlink(path, **kwargs)
    raise KeyboardInterrupt

  with (
    pytest.raises(KeyboardInterrupt),
    monkeypatch.context() as patch,
    scratch.beside(tmp_path / 'one') as folder,
  ):
    (folder / 'a').write_text('')
    (folder / 'b').write_text('')
    patch.setattr(pathlib.Path, 'unlink', interrupted)
  left = names(folder)
  assert 'lock' in left and len(left) == 2
  with scratch.beside(tmp_path / 'one') as another:
    assert names(tmp_path) == [another.name]


@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_folder_that_is_taken_for_dead_is_made_again(
  tmp_path, monkeypatch, when
):
  hold, made = scratch._hold, []

  def removed_meanwhile(folder):
    made.append(folder)
    if when == 'before':
      scratch._remove_if_dead(folder)
    else:
      (folder / 'lock').write_text('')
      monkeypatch.setattr(
        scratch.fcntl, 'flock', lambda *_: scratch.shutil.rmtree(folder)
      )
    lock = hold(folder)
    monkeypatch.undo()
    return lock

  monkeypatch.setattr(scratch, '_hold', removed_meanwhile)
  with scratch.beside(tmp_path / 'corpus') as folder:
    assert folder.is_dir()
  assert made[0] != folder
