"""Damaged and unfinished checkpoints: found, passed over, set aside."""

import hashlib
import json
import os
import pathlib
import shutil
import zlib

import pytest

from tests.runs.checkpoint.saves import (
  assert_whole,
  contents,
  copy,
  cut,
  files,
  flip,
  names,
  save,
  whole,
)
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, checkpoint_folder


def sealed(entries):
  """The text of a seal with a digest that fits, whatever is in it."""
  body = {'name': '2', 'files': entries}
  text = json.dumps(body, sort_keys=True).encode()
  return json.dumps(body | {'sha256': hashlib.sha256(text).hexdigest()})


def test_a_copy_under_another_number_is_no_step_of_its_own(c, capfd):
  shutil.copytree(c.folder / '2', c.folder / '3')
  (c.folder / '4').symlink_to(c.folder / '1')
  assert c.newest() == 2
  err = capfd.readouterr().err
  assert 'checkpoint 3 is damaged and not used: it is a copy of 2' in err
  assert 'checkpoint 4 is damaged and not used: it is a copy of 1' in err
  c.clean(2)
  assert names(c.folder) == ['1', '2']
  assert_whole(c, 2)


@pytest.mark.parametrize(
  'text',
  ['[' * 100_000, '[]', '1', 'null', '{"files": 3}']
  + ['{"files": {}}', '{"files": [], "sha256": ""}']
  + [sealed(x) for x in ([], 'a', {'params/x': 3}, {'..': [1, 2]}, None)],
)
def test_an_odd_seal(c, text):
  (c.folder / '2' / checkpoint_folder.SEAL).write_text(text)
  assert c.newest() == 1


@pytest.mark.thorough
def test_a_part_that_is_a_pipe_or_has_no_end(c):
  for step, name in ((2, '_CHECKPOINT_METADATA'), (1, checkpoint_folder.SEAL)):
    path = c.folder / f'{step}' / name
    size = path.stat().st_size
    path.unlink()
    os.mkfifo(path)
    assert not c.usable(step)
    path.unlink()
    path.write_bytes(bytes(size))
    os.truncate(path, 1 << 40)
    assert not c.usable(step)


def test_what_is_not_of_a_save_is_left_alone(c):
  found = ['60.old.mine', 'best.old', 'mine.new', 'x.orbax-checkpoint-tmp']
  for name in found:
    shutil.copytree(c.folder / '1', c.folder / name)
  c.recover()
  save(c, 3)
  assert set(found) < set(names(c.folder))


def test_a_seal_that_leads_nowhere(c):
  for step in '12':
    path = c.folder / step / checkpoint_folder.SEAL
    path.unlink()
    path.symlink_to('/dev/zero')
  assert c.newest() is None


def test_a_file_in_the_place_of_the_folder(tmp_path):
  (tmp_path / 'checkpoints').write_text('')
  c = checkpoint.Checkpoints(tmp_path / 'checkpoints')
  c.recover()
  with pytest.raises(
    UserError, match=r'checkpoints is not a folder; move it away'
  ):
    c.newest()


def test_files_in_the_place_of_folders(c):
  """They are not steps, and in the way of none."""
  for name in ('3', '3.new', '3.old', '7.orbax-checkpoint-tmp'):
    (c.folder / name).write_text('')
  c.recover()
  assert c.steps() == [2, 1]
  save(c, 3)
  assert whole(c) == [3, 2]


def test_whole_checkpoints_are_good_without_a_word(c, capfd):
  assert c.newest() == 2
  assert c.usable(2) and c.usable(1) and not c.usable(3)
  assert c.steps() == whole(c) == [2, 1]
  assert_whole(c, 2)
  assert capfd.readouterr() == ('', '')


DAMAGE = {
  'first bit flipped': lambda path: flip(path, 0),
  'last bit flipped': lambda path: flip(path, -1, 7),
  'middle bit flipped': lambda path: flip(path, path.stat().st_size // 2, 3),
  'cut': cut,
  'grown': lambda path: path.write_bytes(path.read_bytes() + b'\0'),
  'emptied': lambda path: path.write_bytes(b''),
  'deleted': pathlib.Path.unlink,
  'a folder': lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.default_cases('first bit flipped')
@pytest.mark.parametrize('kind', DAMAGE)
def test_damage_of_any_file_is_found(c, kind, capfd):
  folder = c.folder / '2'
  assert len(files(folder)) > 10
  for path in files(folder):
    data = path.read_bytes()
    DAMAGE[kind](path)
    new = checkpoint.Checkpoints(c.folder)
    assert new.newest() == 1 and not new.usable(2), path
    out, err = capfd.readouterr()
    assert not out and err.count('\n') == 1
    assert err.startswith(f'warning: {c.folder}: checkpoint 2 ')
    said = path.relative_to(folder).as_posix()
    assert ('seal' if said == 'seal.json' else said) in err
    if path.is_dir():
      path.rmdir()
    path.write_bytes(data)
  assert_whole(c, 1)
  assert checkpoint.Checkpoints(c.folder).newest() == 2
  assert whole(c) == [2, 1]


@pytest.mark.thorough
def test_any_flipped_bit_of_the_seal_is_found(c):
  path = c.folder / '2' / 'seal.json'
  data = path.read_bytes()
  with path.open('r+b', buffering=0) as f:
    for at, byte in enumerate(data):
      for bit in range(8):
        os.pwrite(f.fileno(), bytes([byte ^ 1 << bit]), at)
        assert checkpoint_folder.damage(path.parent), (at, bit)
      os.pwrite(f.fileno(), bytes([byte]), at)
  assert not checkpoint_folder.damage(path.parent)


def test_damage_is_told_once(c, capfd):
  cut(c.folder / '1' / '_CHECKPOINT_METADATA')
  assert c.newest() == 2
  assert not capfd.readouterr().err
  cut(c.folder / '2' / '_CHECKPOINT_METADATA')
  assert c.newest() is c.newest() is None
  assert not c.usable(2) and not c.usable(1)
  err = capfd.readouterr().err
  assert err.count('checkpoint 2') == err.count('checkpoint 1 is damaged') == 1
  assert c.steps() == [2, 1]


@pytest.mark.parametrize('rubbish', [False, True])
def test_a_folder_with_the_name_of_a_step(c, capfd, rubbish):
  (c.folder / '3').mkdir()
  if rubbish:
    (c.folder / '3' / 'notes.txt').write_text('not by us')
  assert c.newest() == 2 and not c.usable(3)
  assert 'checkpoint 3 ' in capfd.readouterr().err
  for step in '12':
    shutil.rmtree(c.folder / step)
  assert c.newest() is None


def test_other_names_are_no_steps(c, capfd):
  for name in ('damaged', '4.new', '5.orbax-checkpoint-tmp', '-6', '7.0'):
    (c.folder / name).mkdir()
  (c.folder / '8').write_text('a file')
  assert c.steps() == [2, 1]
  assert c.newest() == 2
  assert not capfd.readouterr().err


def test_a_step_without_a_seal_is_no_checkpoint(c, capfd):
  for step in '12':
    (c.folder / step / 'seal.json').unlink()
  assert c.newest() is None
  first, second = capfd.readouterr().err.splitlines()
  assert 'checkpoint 2 is damaged' in first and 'no seal' in first
  assert 'checkpoint 1 is damaged' in second and 'no seal' in second


# What interrupted saves leave behind


@pytest.mark.parametrize('replaces', [False, True])
def test_recover_finishes_a_step_that_was_sealed(c, replaces):
  (c.folder / '2').rename(c.folder / '2.new')
  if replaces:  # the old step 2 had been moved out of the way
    shutil.copytree(c.folder / '1', c.folder / '2.old')
  c.recover()
  assert names(c.folder) == ['1', '2']
  assert_whole(c, 2)


@pytest.mark.parametrize('name', ['2.new', '2.old'])
def test_recover_leaves_whole_steps_alone(c, name):
  before = contents(c.folder)
  shutil.copytree(c.folder / '1', c.folder / name)
  c.recover()
  assert contents(c.folder) == before
  assert names(c.folder) == ['1', '2']


@pytest.mark.parametrize(
  'name, spoil',
  [
    ('_CHECKPOINT_METADATA', cut),
    ('seal.json', cut),
    ('seal.json', pathlib.Path.unlink),  # Orbax had written all of it
  ],
)
def test_recover_takes_no_damaged_step(c, name, spoil):
  shutil.copytree(c.folder / '1', c.folder / '3.new')
  spoil(c.folder / '3.new' / name)
  c.recover()
  assert names(c.folder) == ['1', '2']


def test_recover_removes_temporary_folders(c):
  for name in ('3.orbax-checkpoint-tmp', '2.new.orbax-checkpoint-tmp-17'):
    shutil.copytree(c.folder / '1', c.folder / name)
  c.recover()
  assert names(c.folder) == ['1', '2']
  assert whole(c) == [2, 1]


def test_clean_moves_damaged_and_later_steps_aside(c):
  for step in '345':
    copy(c, 1, step)
  cut(c.folder / '2' / '_CHECKPOINT_METADATA')
  (c.folder / '5' / 'seal.json').unlink()
  before = contents(c.folder)
  c.clean(3)
  assert names(c.folder) == ['1', '3']
  aside = c.folder.with_name('damaged')
  assert names(aside) == ['2', '4', '5']
  # Nothing is lost.
  after = contents(c.folder.parent)
  assert sorted(after.values()) == sorted(before.values())


def test_clean_again_with_the_same_step(c):
  for step in ('2', '3'):
    cut(c.folder / '2' / '_CHECKPOINT_METADATA')
    c.clean(1)
    assert names(c.folder) == ['1']
    assert names(c.folder.with_name('damaged')) == ['2']
    copy(c, 1, 2)
    assert whole(c) == [2, 1], step


def test_only_what_is_deleted_goes(tmp_path):
  for name in '1', '2', '3.new', '4.old', '5.orbax-checkpoint-tmp-1':
    (tmp_path / name).mkdir()
  (tmp_path / '6.old').symlink_to(tmp_path / '2')
  (tmp_path / '7.old').touch()
  checkpoint_folder.Steps(tmp_path).delete(1)
  assert names(tmp_path) == ['2', '3.new', '5.orbax-checkpoint-tmp-1']


def test_a_seal_has_the_crc_of_each_file(tmp_path):
  assert checkpoint_folder.digest(tmp_path) == ''
  (tmp_path / 'a').write_bytes(b'data')
  checkpoint_folder.seal(tmp_path, '2')
  seal = json.loads((tmp_path / 'seal.json').read_text())
  assert seal['files'] == {'a': [4, zlib.crc32(b'data')]}
  assert checkpoint_folder.digest(tmp_path) == seal['sha256']
  (tmp_path / 'seal.json').write_text(sealed({'a/b': [1, 1]}))
  assert checkpoint_folder.damage(tmp_path, name='2').startswith('a/b: Not a')
