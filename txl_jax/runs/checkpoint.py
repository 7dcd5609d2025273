"""Checkpoints: written by Orbax, then sealed; verified before they are read.

A step is a folder <step>/ with items written by Orbax: params, training, host,
and where they exist memory and average (only params and host for converted
weights); small files next to them; and seal.json with all files' checksums.

Orbax restores a file with a flipped bit without an error, so each step has a
seal, which is verified before the step is used. A step is written as <step>.new
and sealed only if it can be read; then it is renamed, and older steps are
deleted. The two newest steps, the best one and step 0 (converted weights) are
kept. `checkpoint_folder` manages the steps in a folder or bucket.

With several processes, all write and read the arrays in one shared folder;
process 0 does everything else. A save continues in a thread, which must not
call `processes.on_main`: the order of its calls matters.

Orbax's CheckpointManager cannot do this: it deletes old steps before the new
one can be sealed, refuses to replace a step, and reports the error of a process
that cannot write only when all have finished.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from etils.epath import gpath

from txl_jax.parallel import processes
from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError, first_line
from txl_jax.runs import checkpoint_folder, lease

_KEEP = 2  # number of newest steps to keep
_PATIENCE = 10.0  # seconds to wait for each thread of a failed save
# A save has no timeout: Orbax's clock may be adjusted, and the watchdog detects
# lost processes. Folders are created synchronously, to raise errors at once.
_ASYNC = ocp.AsyncOptions(10**9, create_directories_asynchronously=False)


class Checkpoints(checkpoint_folder.Steps):
  """The checkpoints of one run."""

  def __init__(
    self,
    folder: str | pathlib.Path,
    asynchronous: bool = False,
    texts: Mapping[str, str] | None = None,
  ):
    """The folder need not exist yet; for `asynchronous` see `save`.

    `texts`, {name: text}, are small files to write into every step.
    """
    super().__init__(folder)
    self._asynchronous = asynchronous
    self._texts = texts or {}
    # Bucket clients raise their own types.
    known = (OSError, ValueError, UserError)
    self._failures = (Exception,) if self.in_bucket else known
    self._reported = set()
    self._executor = concurrent.futures.ThreadPoolExecutor(1)
    self._saving: concurrent.futures.Future | None = None

  def check_path(self) -> None:
    """UserError if TensorStore would read the path of the folder as another."""
    found = re.search(r'\\|gs:/|[\ud800-\udfff]', f'{self.folder}')
    if found and not self.in_bucket:
      allowed = 'a path in UTF-8 without \\ or gs:/'
      raise UserError(f'{self.folder} cannot hold runs; allowed: {allowed}')

  def newest(self, item: str = '') -> int | None:
    """The newest undamaged step (with `item`, only it is checked), or None."""
    return processes.on_main(
      lambda: next((s for s in self.steps() if self._usable(s, item)), None)
    )

  def usable(self, step: int) -> bool:
    """Whether a step exists and is undamaged; damage is reported once."""
    return processes.on_main(lambda: self._usable(step))

  def _usable(self, step, item=''):
    folder = self.path(step)
    if not folder.is_dir():
      return False
    problem = checkpoint_folder.damage(folder, item)
    if problem and (step, problem) not in self._reported:
      self._reported.add((step, problem))
      line = f'checkpoint {step} is damaged and not used: {problem}'
      print(f'warning: {self.folder}: {line}', file=sys.stderr)
    return not problem

  def save(
    self, step: int, host: dict, keep: tuple[int, ...] = (), **items: Any
  ) -> None:
    """Writes a step, reads it, seals it, then deletes steps no longer kept.

    Items are pytrees of arrays: 'params', 'training' and so on; `host` is the
    host state, a JSON dict; the steps `keep` are kept besides the newest and 0.
    An existing checkpoint of this step is replaced unless it is intact and has
    the same host state (which differs after an interrupted evaluation).

    If asynchronous, returns once the arrays are copied to the host, so they may
    be donated; a thread does the rest, see `wait`. UserError if this or the
    previous step cannot be written, or then read; earlier ones are untouched.
    """
    self.check_path()
    self.wait()
    if processes.on_main(lambda: self._is_saved(step, host)):
      return
    saved = {k: ocp.args.StandardSave(v) for k, v in items.items()}
    leaves = {k: _leaves(v) for k, v in items.items()}
    args = ocp.args.Composite(**saved, host=ocp.args.JsonSave(host))
    options = ocp.CompositeOptions(async_options=_ASYNC)
    handler = ocp.CompositeCheckpointHandler(composite_options=options)
    with self._write_errors(step):
      processes.on_main(lambda: self.folder.mkdir(parents=True, exist_ok=True))
      writer = ocp.AsyncCheckpointer(handler, async_options=_ASYNC)
      writer.save(_orbax_path(self.path(step, '.new')), args=args)
    task = self._complete, writer, step, keep, leaves
    self._saving = self._executor.submit(*task)
    if not self._asynchronous:
      self.wait()

  def _is_saved(self, step, host):
    # Contents need not be read again: this process has read or written them.
    if not self.is_intact(step):
      return False
    return self._host(step) == json.loads(json.dumps(host))

  def _complete(self, writer, step, keep, leaves):
    """Completes a save, in a thread."""
    new = self.path(step, '.new')
    with self._write_errors(step):
      writer.close()  # returns when all processes have written
      if not processes.is_main():
        return
      for name, text in self._texts.items():
        files.write(new / name, text)
      for item, expected in leaves.items():
        _check_readable(new / item, expected)
      lease.confirm(self.folder.parent)
      checkpoint_folder.seal(new, f'{step}')
      self.commit(step)
    try:
      intact = [step for step in self.steps() if self.is_intact(step)]
      self.delete(*(set(intact[_KEEP:]) - {0, *keep}))
    except self._failures as e:  # the next save tries again
      line = f'older checkpoints are kept ({_cause(e)})'
      print(f'warning: {self.folder}: {line}', file=sys.stderr)

  @contextlib.contextmanager
  def _write_errors(self, step):
    """Turns errors of a save into a one-line UserError, and cleans up."""
    try:
      yield
    except self._failures as e:
      others = processes.count() > 1 and type(e) is not UserError
      if others and isinstance(e.__cause__, RuntimeError):
        raise e.__cause__ from None  # another process is lost
      # Threads of Orbax may still be writing.
      for thread in threading.enumerate():
        if type(thread).__module__.startswith('orbax'):
          threading.Thread.join(thread, _PATIENCE)  # Orbax's `join` raises
      if processes.is_main():
        # A bucket may refuse the cleanup. A sealed step is kept.
        with contextlib.suppress(OSError):
          self.recover()
      why = f'the checkpoint cannot be written ({_cause(e)})'
      rest = 'earlier checkpoints are untouched'
      # Where the system refuses a write, TensorStore raises a ValueError, from
      # which a watchdog would wait for the news that a process is lost.
      own = OSError(f'{e}') if isinstance(e, ValueError) else e
      raise UserError(f'{self.path(step)}: {why}; {rest}') from own

  def check(self) -> None:
    """Raises the error of the current save if it has failed on this process."""
    if self._saving and self._saving.done() and self._saving.exception():
      saving, self._saving = self._saving, None
      saving.result()

  def wait(self) -> None:
    """Waits until the current save is sealed; all processes must call it."""
    if self._saving:
      concurrent.futures.wait([self._saving])
      self.check()
      self._saving = None
      processes.on_main(lambda: None)  # waits until process 0 has sealed it

  def abandon(self) -> None:
    """Completes the save in progress before an error ends the program."""
    # With several processes, the others may never complete it.
    if self._saving and processes.count() == 1:
      concurrent.futures.wait([self._saving])

  def clean(self, newest: int) -> None:
    """Prepares the folder for a run that resumes from step `newest`.

    Later and incomplete steps, which the run will write again, are moved to the
    folder `damaged` next to this one, replacing older copies. For process 0.
    """
    aside = self.folder.with_name('damaged')
    for step in self.steps():
      folder = self.path(step)
      if step > newest or not self.is_intact(step):
        aside.mkdir(exist_ok=True)
        checkpoint_folder.remove(aside / folder.name)
        folder.rename(aside / folder.name)

  def has(self, step: int, item: str) -> bool:
    """Whether a step has an item."""
    return processes.on_main((self.path(step) / item).exists)

  def host(self, step: int) -> dict:
    """The host state of a step, a JSON dict."""
    return processes.on_main(lambda: self._host(step))

  def _host(self, step):
    path = self.path(step) / 'host'
    with _read_errors(path):
      return dict(ocp.JsonCheckpointHandler().restore(_orbax_path(path)))

  def restore(
    self, step: int, cast: Sequence[str] = (), **abstract: Any
  ) -> dict[str, Any]:
    """Restores items of a `usable` step, given as ShapeDtypeStructs.

    Arrays get the shardings of the structs, whatever mesh they were saved from.
    UserError if names, shapes or dtypes of the arrays differ; those of the
    items in `cast` may have been saved in another dtype.
    """
    self.check_path()
    folder = self.path(step)
    restored = {}
    handler = ocp.StandardCheckpointHandler()
    with _read_errors(folder), ocp.Checkpointer(handler) as reader:
      for item, tree in abstract.items():
        path = _orbax_path(folder / item)
        args = ocp.args.StandardRestore(tree)
        found = handler.metadata(path).tree if path.exists() else {}
        names = [_leaves(x, dtypes=item not in cast) for x in (tree, found)]
        _compare(path, *names)
        restored[item] = reader.restore(path, args=args)
      return restored


class _LocalPath(gpath.PosixGPath):
  """A local path for Orbax, whatever characters it contains."""

  _uri_scheme: Any = None  # epath would take /gs/… for a bucket

  def glob(self, pattern: str) -> Iterator['_LocalPath']:
    """Matches below this folder; epath would match the folder's name too."""
    return map(_LocalPath, pathlib.Path(self).glob(pattern))


def _orbax_path(path: Any) -> Any:
  """Converts a path to the type that Orbax accepts."""
  in_bucket = isinstance(path, buckets.Path)
  return epath.Path(f'{path}') if in_bucket else _LocalPath(path)


def _check_readable(path, expected):
  """UserError unless an item has the expected leaves and one can be read.

  Opens every array and reads one of median size; small ones are in the index.
  """
  with _read_errors(path):
    reader = ocp.PyTreeCheckpointHandler()
    place = _orbax_path(path)
    tree = reader.metadata(place).tree
    _compare(path, expected, _leaves(tree))
    by_size = sorted(jax.tree.leaves(tree), key=lambda x: np.prod(x.shape))
    one = by_size[len(by_size) // 2]
    item = jax.tree.map(lambda x: x if x is one else ocp.PLACEHOLDER, tree)
    local = jax.tree.map(lambda x: ocp.RestoreArgs(np.ndarray), tree)
    reader.restore(place, args=ocp.args.PyTreeRestore(item, local))


def _compare(path, expected, found):
  """Compares leaves: Orbax casts dtypes silently, and its errors are long."""
  for name in sorted(expected | found):
    want = expected.get(name, 'nothing')
    have = found.get(name, 'nothing')
    if want != have:
      where = f'{have} in the checkpoint, {want} in this config'
      raise UserError(f'{path}/{name} is {where}')


def _leaves(tree, dtypes=True):
  """{path: 'dtype[shape]'} for a pytree of arrays or of their metadata."""
  leaves = ocp.tree.to_flat_dict(tree, sep='/').items()
  name = lambda x: f'{np.dtype(x.dtype)}' if dtypes else ''
  return {path: f'{name(x)}{list(x.shape)}' for path, x in leaves}


@contextlib.contextmanager
def _read_errors(folder):
  """Turns any error of Orbax into a one-line UserError."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    raise UserError(f'{folder} cannot be restored: {_cause(e)}') from e


def _cause(error):
  line = first_line(error).split(' [tensorstore_spec=')[0]
  return line if len(line) <= 300 else f'…{line[-300:]}'  # the cause is last
