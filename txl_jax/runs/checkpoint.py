"""Checkpoints that can be trusted: written by orbax, sealed, checked.

Layout of the folder:

  <step>/params, <step>/training, <step>/host   items written by orbax
  <step>/memory, <step>/average                 the same, if there is one
  <step>/seal.json                              written last, see below

Orbax moves a step into place only when it is complete, but it restores a
file with a flipped bit without a word. So a seal is added to each step: the
size and CRC-32 of every file, and a digest of the seal itself. A step whose
seal does not fit is not used; the newest one that fits is.

A step is deleted only after a newer one was sealed. Kept are the two newest
and the best.

With several processes all of them write and read the arrays, in one folder
that they share; process 0 seals, moves, deletes and decides which step is good.

A save may go on in a thread while training does. The thread must not use
`processes.on_main`, whose calls have an order.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys
import threading
import zlib

import jax
import numpy as np
import orbax.checkpoint as ocp

from txl_jax.errors import UserError, first_line
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes

_SEAL = 'seal.json'
_NO_SEAL = 'it has no seal'
_KEEP = 2  # newest steps
# Seconds for a save: for ever. Orbax counts them by a clock that may be set,
# and `watch` finds out that a process is lost.
_TIMEOUT = 10 * 365 * 24 * 3600


def seal(folder):
  """Writes the seal of a complete step."""
  entries = {}
  for path in sorted(p for p in folder.rglob('*') if p.is_file()):
    entries[path.relative_to(folder).as_posix()] = _fingerprint(path)
  entries.pop(_SEAL, None)
  body = json.dumps(entries, sort_keys=True)
  text = json.dumps({'files': entries, 'sha256': _sha256(body)})
  temporary = folder / f'{_SEAL}.tmp'
  with temporary.open('w') as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  temporary.replace(folder / _SEAL)


def damage(folder):
  """What is wrong with a step, in a few words; '' if nothing is."""
  try:
    found = json.loads((folder / _SEAL).read_bytes())
    entries, digest = found['files'], found['sha256']
  except FileNotFoundError:
    return _NO_SEAL
  except (OSError, ValueError, TypeError, KeyError):
    return f'{_SEAL} cannot be read'
  if digest != _sha256(json.dumps(entries, sort_keys=True)):
    return f'{_SEAL} is damaged'
  for name, expected in entries.items():
    try:
      fingerprint = _fingerprint(folder / name)
    except OSError as e:
      return f'{name}: {e.strerror}'
    if fingerprint != expected:
      return f'{name} has (bytes, crc32) {fingerprint}, expected {expected}'
  return ''


def _sha256(text):
  return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint(path):
  """[bytes, CRC-32] of a file."""
  size, crc = 0, 0
  with path.open('rb') as f:
    while block := f.read(1 << 20):
      size += len(block)
      crc = zlib.crc32(block, crc)
  return [size, crc]


# Folders are made before a save returns, so that it is told if they cannot be.
_ASYNC = ocp.AsyncOptions(
  timeout_secs=_TIMEOUT, create_directories_asynchronously=False
)


def _handler():
  return ocp.CompositeCheckpointHandler(
    composite_options=ocp.CompositeOptions(async_options=_ASYNC),
    params=ocp.StandardCheckpointHandler(),
    training=ocp.StandardCheckpointHandler(),
    memory=ocp.StandardCheckpointHandler(),
    average=ocp.StandardCheckpointHandler(),
    host=ocp.JsonCheckpointHandler(),
  )


def _reader():
  return ocp.Checkpointer(_handler())


def _writer():
  """Writes a step in a thread; moves it into place when it is complete."""
  return ocp.AsyncCheckpointer(_handler(), async_options=_ASYNC)


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(self, folder, asynchronous=False):
    """Opens the folder, which need not exist.

    Args:
      folder: where the steps lie.
      asynchronous: whether `save` returns before the step is written.
    """
    self.folder = pathlib.Path(folder).absolute()
    self._asynchronous = asynchronous
    self._said = set()
    self._thread = None  # that completes a save
    self._error = None  # it has ended with

  def steps(self):
    """Steps in the folder, newest first, whole or not."""
    if not self.folder.is_dir():
      return []
    names = (p.name for p in self.folder.iterdir() if p.is_dir())
    numbers = (int(n) for n in names if n.isdecimal() and n == str(int(n)))
    return sorted(numbers, reverse=True)

  def good_steps(self):
    """Steps that can be used, newest first.

    What cannot be used is told on standard error, once. A step without a
    seal counts only where no step has a fitting one: the process may have
    died between the two.
    """
    return processes.on_main(self._good_steps)

  def _good_steps(self):
    sealed, unsealed = [], []
    for step in self.steps():
      problem = damage(self.folder / str(step))
      if not problem:
        sealed.append(step)
        continue
      if problem == _NO_SEAL and self._complete(step):
        unsealed.append(step)
      else:
        self._say(f'checkpoint {step} is damaged and not used: {problem}')
    good = sealed or unsealed[:1]
    for step in unsealed:
      tried = step in good
      use = 'is tried, for no other is whole' if tried else 'is not used'
      self._say(f'checkpoint {step} is not sealed, perhaps not yet, and {use}')
    return good

  def _complete(self, step):
    return (self.folder / str(step) / '_CHECKPOINT_METADATA').exists()

  def _say(self, message):
    if message not in self._said:
      self._said.add(message)
      print(f'warning: {self.folder}: {message}', file=sys.stderr)

  def save(self, step, host, keep=(), **items):
    """Writes a step, seals it, then deletes what is no longer kept.

    If asynchronous, it returns when the arrays are copied to the host, and
    the rest is done in a thread: `wait` for it.

    Args:
      step: int; a whole step of that number is replaced if its host part
        differs (an evaluation that was cut short has been made up for).
      host: JSON dict: the rest of the state on the host.
      keep: steps to keep besides the newest.
      **items: for some of 'params', 'training', 'memory' and 'average': a
        pytree of arrays. See `state.split`.

    Raises:
      UserError: the step cannot be written, as on a full disk, or the one
        before could not. The steps before it are untouched.
    """
    self.wait()
    final = target = self.folder / str(step)
    if processes.on_main(final.exists):
      if processes.on_main(lambda: not damage(final)):
        same = self.host(step) == json.loads(json.dumps(host))
        if processes.on_main(lambda: same):
          return
      target = self.folder / f'{step}.new'
    saved = {k: ocp.args.StandardSave(v) for k, v in items.items()}
    with self._told(target, final):
      processes.on_main(self._make)
      writer = _writer()
      args = ocp.args.Composite(**saved, host=ocp.args.JsonSave(host))
      writer.save(target, args=args)
    self._thread = threading.Thread(
      target=self._wait_and_seal, args=(writer, target, final, keep)
    )
    self._thread.start()
    if not self._asynchronous:
      self.wait()

  def _wait_and_seal(self, writer, target, final, keep):
    """The rest of a save, in a thread."""
    try:
      with self._told(target, final):
        writer.close()  # when all processes have written
        if processes.is_main():
          self._finish(target, final)
      if processes.is_main():
        self._delete(keep)
    except BaseException as e:
      self._error = e

  @contextlib.contextmanager
  def _told(self, target, final):
    """Turns what a save raises into one line."""
    try:
      yield
    except (OSError, ValueError) as e:
      if isinstance(e.__cause__, RuntimeError):
        raise e.__cause__ from None  # another process is lost
      if processes.is_main():
        shutil.rmtree(target, ignore_errors=True)
        self.recover()
      raise UserError(
        f'{final}: the checkpoint cannot be written ({_cause(e)}); '
        'earlier checkpoints are untouched'
      ) from e

  def check(self):
    """Raises what the save under way has failed with on this process, if so."""
    if self._error:
      error, self._error = self._error, None
      raise error

  def wait(self):
    """Waits until the save under way is sealed; all processes must call it.

    Raises:
      UserError: it cannot be written.
    """
    if self._thread:
      self._thread.join()
      self._thread = None
      self.check()
      processes.on_main(lambda: None)  # which has sealed by then

  def abandon(self):
    """Before an error ends the program: a save under way is not lost.

    With several processes it is: the others may never complete it.
    """
    if self._thread and processes.count() == 1:
      self._thread.join()

  def _make(self):
    self.folder.mkdir(parents=True, exist_ok=True)

  def _finish(self, target, final):
    """Seals a step and moves it into place."""
    seal(target)
    if target != final:
      final.rename(self.folder / f'{final.name}.old')
      target.rename(final)
      self._remove_temporary()

  def _delete(self, keep):
    """Deletes the steps that are no longer kept."""
    good = [s for s in self.steps() if not damage(self.folder / str(s))]
    for old in set(good[_KEEP:]) - set(keep):
      folder = self.folder / str(old)
      # By its name, one that is half deleted would be a damaged one.
      shutil.rmtree(folder.rename(self.folder / f'{old}.old'))

  def _remove_temporary(self):
    for pattern in ('*.orbax-checkpoint-tmp*', '*.new', '*.old'):
      for path in self.folder.glob(pattern):
        shutil.rmtree(path, ignore_errors=True)

  def recover(self):
    """Finishes or removes what an interrupted save has left."""
    for path in (*self.folder.glob('*.new'), *self.folder.glob('*.old')):
      final = path.with_suffix('')
      if not final.exists() and not damage(path):
        path.rename(final)
    self._remove_temporary()

  def clean(self, newest):
    """Prepares the folder for a run that continues from step `newest`.

    Damaged steps are moved to the folder `damaged` beside this one, in the
    place of an earlier one of the same number: no step is written twice.
    Step `newest` itself, which could be restored, gets a seal if the process
    that wrote it had no time to.
    """
    aside = self.folder.with_name('damaged')
    for step in self.steps():
      folder = self.folder / str(step)
      if step == newest:
        if not (folder / _SEAL).exists():
          seal(folder)
      elif step > newest or damage(folder):
        aside.mkdir(exist_ok=True)
        target = aside / str(step)
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)

  def has_average(self, step):
    """Whether an average of the parameters was saved with a step."""
    return processes.on_main((self.folder / str(step) / 'average').exists)

  def host(self, step):
    """The JSON dict that was saved with a step; all processes must ask."""
    with self._errors(step), _reader() as reader:
      args = ocp.args.Composite(host=ocp.args.JsonRestore())
      return reader.restore(self.folder / str(step), args=args)['host']

  def restore(self, step, **abstract):
    """Restores items of a step.

    Args:
      step: one of `good_steps`.
      **abstract: for some of the items that were saved: a pytree of
        ShapeDtypeStruct with shardings.

    Returns:
      A dict of the restored pytrees.

    Raises:
      UserError: the step holds arrays of other names, shapes or dtypes.
    """
    folder = self.folder / str(step)
    with self._errors(step), _reader() as reader:
      metadata = reader.metadata(folder).item_metadata
      for item, tree in abstract.items():
        found = metadata[item].tree if item in metadata else {}
        self._compare(step, item, tree, found)
      items = {k: ocp.args.StandardRestore(v) for k, v in abstract.items()}
      return dict(reader.restore(folder, args=ocp.args.Composite(**items)))

  def _errors(self, step):
    return _reworded(f'{self.folder / str(step)} cannot be restored')

  def _compare(self, step, item, expected, found):
    """Orbax casts another dtype without a word, and fails at length."""
    expected, found = _leaves(expected), _leaves(found)
    for name in sorted(expected | found):
      want, have = expected.get(name, 'nothing'), found.get(name, 'nothing')
      if want != have:
        raise UserError(
          f'{self.folder / str(step)}: {item}/{name} is {have} in the '
          f'checkpoint, {want} in this config'
        )


@contextlib.contextmanager
def _reworded(what):
  """Turns what orbax raises into one line."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    raise UserError(f'{what}: {_cause(e)}') from e


def _cause(error):
  line = first_line(error).split(' [tensorstore_spec=')[0]
  return line if len(line) <= 300 else f'…{line[-300:]}'  # the cause is last


def _leaves(tree):
  """{path: 'dtype[shape]'} of a pytree of arrays or orbax metadata.

  Attributes of a dataclass and keys of a dict read the same: orbax turns
  the one into the other.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(
    tree, is_leaf=lambda x: hasattr(x, 'shape') and hasattr(x, 'dtype')
  )
  return {
    mesh_lib.path_name(path): f'{np.dtype(x.dtype)}{list(x.shape)}'
    for path, x in leaves
  }
