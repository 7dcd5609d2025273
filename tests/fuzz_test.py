"""Random damage: the record is as it was, or there is a line that says why not.

python -m pytest -m slow -n 0 -s tests/fuzz_test.py

Files of a run's folder, of an export and of a prepared corpus get other bytes,
other JSON, other types, or become pipes, folders and links; keys get other
values, on the command line and in a config file. Whatever is done with them
then either gives what it gave before, or says so in a line; it never ends with
a traceback. FUZZ_SEED repeats a run, FUZZ_TRIES sets how many (2,000).
"""

import collections
import json
import os
import random
import re
import shutil
import zipfile
from unittest import mock

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.experimental.compilation_cache import compilation_cache

from tests import programs
from txl_jax.configs import common
from txl_jax.data import prepared
from txl_jax.program import settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, weights_file

pytestmark = pytest.mark.slow

SEED = int(os.environ.get('FUZZ_SEED', random.randrange(2**32)))
TRIES = int(os.environ.get('FUZZ_TRIES', 2000))
OPTIONS = 'train.batch_size=8', 'train.log_every=2', 'train.steps=30'
COUNTS = collections.Counter()


def tries(share):
  """Runs a test with a share of the tries, as the seed says."""

  def decorate(test):
    test = hypothesis.seed(SEED)(test)
    return hypothesis.settings(
      max_examples=round(share * TRIES),
      deadline=None,
      database=None,
      phases=[hypothesis.Phase.generate],
      suppress_health_check=list(hypothesis.HealthCheck),
    )(test)

  return decorate


@pytest.fixture(scope='module', autouse=True)
def told(tmp_path_factory):
  """Programs are compiled once; at the end the counts are printed."""
  jax.config.update(
    'jax_compilation_cache_dir', str(tmp_path_factory.mktemp('c'))
  )
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  compilation_cache.reset_cache()
  yield
  jax.config.update('jax_compilation_cache_dir', None)
  compilation_cache.reset_cache()
  print(f'\nFUZZ_SEED={SEED}')
  for name, n in sorted(COUNTS.items()):
    print(f'{n:6} {name}')


def program(folder, *overrides, name='train', config='configs/common.py'):
  """(status, standard output, standard error) of a mode, in this process."""
  overrides = (*OPTIONS, *overrides)
  flags = [f'--mode={name}']
  command = programs.command(folder, *overrides, flags=flags, config=config)
  done = programs.here(command)
  assert 'Traceback' not in done.stderr
  if done.returncode:
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith('error: ')]
    assert done.returncode == 1 and errors == lines[-1:], done.stderr
  return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A corpus, and a run with checkpoints at 10, 20 and 30."""
  folder = tmp_path_factory.mktemp('whole')
  programs.write_corpus(folder)
  with mock.patch.object(checkpoint, '_KEEP', 3):
    assert program(folder)[0] == 0
  return folder


# Damage

scalars = (
  st.none()
  | st.booleans()
  | st.integers(-3, 300)
  | st.sampled_from([10**9, 2**31, -(2**63), 10**30, 10**400])
  | st.floats()
  | st.sampled_from(['', 'False', 'no', '1', '../x', '~', '/dev/zero', 'é'])
  | st.text(st.characters(codec='utf-8', min_codepoint=1), max_size=5)
)
values = st.recursive(
  scalars,
  lambda x: (
    st.lists(x, max_size=3)
    | st.dictionaries(st.text(max_size=3), x, max_size=3)
  ),
  max_leaves=5,
)


def places(tree, path=()):
  """The paths of all values within a JSON value."""
  yield path
  inside = tree.items() if isinstance(tree, dict) else ()
  inside = enumerate(tree[:9]) if isinstance(tree, list) else inside
  for key, x in inside:
    yield from places(x, (*path, key))


def replaced(tree, path, value):
  """A JSON value with another one at a path."""
  if not path:
    return value
  copy = tree.copy()
  copy[path[0]] = replaced(tree[path[0]], path[1:], value)
  return copy


def damaged_text(data, draw):
  """Other contents for a file, as different as can be."""
  kinds = ['flip', 'cut', 'bytes', 'insert', 'deep', 'json', 'lines']
  kind = draw(st.sampled_from(['value'] * 4 + kinds))
  at = draw(st.integers(0, max(len(data) - 1, 0)))
  if kind == 'value':
    try:
      tree = json.loads(data)
      path = draw(st.sampled_from(list(places(tree))))
      return json.dumps(replaced(tree, path, draw(values))).encode()
    except (ValueError, RecursionError):
      kind = 'flip'
  if kind == 'flip' and data:
    other = data[at] ^ (1 << draw(st.integers(0, 7)))
    return data[:at] + bytes([other]) + data[at + 1 :]
  if kind == 'insert':
    return data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at:]
  if kind == 'lines':
    lines = data.splitlines(keepends=True)
    draw(st.randoms()).shuffle(lines)
    return b''.join(lines)
  return {
    'cut': data[:at],
    'bytes': draw(st.binary(max_size=50)),
    'deep': b'[' * 100_000,
    'json': json.dumps(draw(values)).encode(),
  }.get(kind, b'')


def damage(path, draw):
  """Changes a file, or puts something else in its place; the kind."""
  kinds = ['gone', 'pipe', 'folder', 'loop', 'endless', 'unreadable']
  kind = draw(st.sampled_from(['contents'] * 12 + kinds))
  if kind == 'contents':
    path.write_bytes(damaged_text(path.read_bytes(), draw))
    return kind
  path.unlink()
  if kind == 'pipe':
    os.mkfifo(path)
  elif kind == 'folder':
    path.mkdir()
  elif kind == 'loop':
    path.symlink_to(path.name)
  elif kind == 'endless':
    path.symlink_to('/dev/zero')
  elif kind == 'unreadable':
    with path.open('wb') as f:
      f.truncate(1 << 38)
  return kind


def some_file(folder, draw):
  """Any file of a folder; those of small folders are as likely as others."""
  found = collections.defaultdict(list)
  for path in sorted(p for p in folder.rglob('*') if p.is_file()):
    found[path.parent].append(path)
  return draw(st.sampled_from(found[draw(st.sampled_from(sorted(found)))]))


def count(what, kind, outcome):
  COUNTS[f'{what}, {kind}: {outcome}'] += 1


def loaded(what, kind, load, path):
  """What is loaded, or None after a line that says why not."""
  try:
    found = load(path)
  except UserError as e:
    assert '\n' not in str(e)
    count(what, kind, 'refused')
    return None
  count(what, kind, 'the same')
  return found


# What is held


@tries(0.3)
@hypothesis.given(st.data())
def test_a_run_that_goes_on(whole, tmp_path_factory, data):
  folder = tmp_path_factory.mktemp('run')
  for name in 'run', 'data':
    shutil.copytree(whole / name, folder / name)
  shutil.copy(whole / 'corpus.txt', folder)
  shutil.rmtree(folder / 'run/checkpoints/30')
  path = some_file(folder / 'run', data.draw)
  kind = damage(path, data.draw)
  status, _, errors = program(folder)
  same = not status and programs.record(folder) == programs.record(whole)
  said = status or 'warning: ' in errors
  assert same or said, (path, kind)
  outcome = 'refused' if status else 'the same' if same else 'goes on, said'
  count('a run goes on', kind, outcome)
  shutil.rmtree(folder)


@tries(0.25)
@hypothesis.given(st.data(), st.sampled_from(['eval', 'generate']))
def test_a_run_that_is_used(whole, tmp_path_factory, data, name):
  if name not in PRINTED:
    PRINTED[name] = program(whole, name=name)[1]
  folder = tmp_path_factory.mktemp('run')
  shutil.copytree(whole / 'run', folder / 'run')
  (folder / 'data').symlink_to(whole / 'data')
  shutil.copy(whole / 'corpus.txt', folder)
  kind = damage(some_file(folder / 'run', data.draw), data.draw)
  status, printed, errors = program(folder, name=name)
  same = not status and untimed(printed) == untimed(PRINTED[name])
  assert same or status or 'warning: ' in errors
  outcome = 'refused' if status else 'the same' if same else 'another, said'
  count(f'--mode={name}', kind, outcome)
  shutil.rmtree(folder)


PRINTED = {}


def untimed(text):
  """What is printed, without seconds and rates."""
  return re.sub(r'[\d.,]+ (s, |tokens/s)', '', text)


@tries(0.15)
@hypothesis.given(st.data())
def test_an_export(whole, tmp_path_factory, data):
  folder = tmp_path_factory.mktemp('export')
  path = folder / 'model.npz'
  if 'export' not in PRINTED:
    PRINTED['export'] = whole / 'model.npz'
    flags = ['--mode=export', f'--export_file={whole}/model.npz']
    command = programs.command(whole, *OPTIONS, flags=flags)
    assert programs.here(command).returncode == 0
  shutil.copy(PRINTED['export'], path)
  kind = 'member'
  if data.draw(st.booleans()):
    kind = damage(path, data.draw)
  else:
    other_member(path, data.draw)
  if found := loaded('an export', kind, weights_file.load, path):
    then = weights_file.load(PRINTED['export'])
    jax.tree.map(np.testing.assert_array_equal, found[1], then[1])
    if kind != 'member':  # there, another model or alphabet is what was asked
      assert (found[0], found[2]) == (then[0], then[2])
  shutil.rmtree(folder)


def other_member(path, draw):
  """Writes a file of weights with one member changed."""
  with np.load(path) as f:
    arrays = dict(f)
  name = draw(st.sampled_from(sorted(arrays)))
  x = arrays[name]
  if name == '__model__':
    tree = json.loads(str(x))
    place = draw(st.sampled_from(list(places(tree))))
    arrays[name] = np.array(json.dumps(replaced(tree, place, draw(values))))
  else:
    arrays[name] = draw(
      st.sampled_from(
        [x.astype(np.int32), x.astype(np.float64), x[:-1], x[None], x * np.nan]
      )
    )
  np.savez(path, allow_pickle=False, **arrays)
  with zipfile.ZipFile(path) as f:
    assert f.testzip() is None


@tries(0.15)
@hypothesis.given(st.data())
def test_a_prepared_corpus(whole, tmp_path_factory, data):
  (source,) = (whole / 'data').glob('text-*')
  folder = tmp_path_factory.mktemp('corpus') / source.name
  shutil.copytree(source, folder)
  path = some_file(folder, data.draw)
  kind = damage(path, data.draw)
  if found := loaded('a corpus', kind, prepared.load, folder):
    then = prepared.load(source)
    assert found.vocabulary == then.vocabulary
    assert found.digest == then.digest
    for split in 'train', 'validation', 'test':
      np.testing.assert_array_equal(found.tokens(split), then.tokens(split))
  shutil.rmtree(folder.parent)


KEYS = sorted(settings.flatten(common.get_config()))


@tries(0.15)
@hypothesis.given(st.data(), st.sampled_from(KEYS), st.booleans())
def test_a_key(whole, tmp_path_factory, data, key, in_a_file):
  """What is taken, and is not large, is tried in training too."""
  value = data.draw(values | st.integers(-2, 64) | st.floats(-1, 2))
  folder = tmp_path_factory.mktemp('key')
  options = {}
  override = f'{key}={value}'
  if in_a_file:
    options = {'config': str(folder / 'config.py')}
    override = 'seed=0'
    (folder / 'config.py').write_text(
      'from txl_jax.configs import common\n\n\n'
      'def get_config():\n  nan, inf = float("nan"), float("inf")\n'
      f'  c = common.get_config()\n  c.{key} = {value!r}\n  return c\n',
      errors='surrogatepass',
    )
  status, *_ = program(whole, override, name='summary', **options)
  outcome = 'refused' if status else 'taken'
  if not status and isinstance(value, int | float) and abs(value) <= 64:
    (folder / 'data').symlink_to(whole / 'data')
    shutil.copy(whole / 'corpus.txt', folder)
    status, *_ = program(folder, 'train.steps=2', override, **options)
    outcome = 'refused by training' if status else 'trained with'
  where = 'in a config file' if in_a_file else 'on the command line'
  count('a key', where, outcome)
  shutil.rmtree(folder)
