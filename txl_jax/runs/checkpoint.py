"""Checkpoints that can be trusted: written by orbax, sealed, verified.

A step is a folder, <step>/, of items written by orbax: params, training, host,
and memory and average if there are any (converted weights are params and host);
of small files next to them; and of seal.json, which records the step.

Orbax restores a file with a flipped bit without an error, so a step is sealed,
and verified before it is used. It is written as <step>.new and gets its name
once it is sealed; only then are older ones deleted. The two newest, the best
and step 0, which is converted weights, are kept. `steps` defines what a step is
in a folder or a bucket.

With several processes all of them write and read the arrays, in one shared
folder; process 0 does and decides the rest. A save continues in a thread, which
must not call `processes.on_main`, whose calls must be in order.

Orbax's CheckpointManager cannot do this, as manager_test.py shows: it deletes
old steps before the new one can be sealed, refuses to replace a step, and
withholds the error of a process that cannot write until all have finished.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from txl_jax.parallel import processes
from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError, first_line
from txl_jax.runs import checkpoint_folder, lease, seal

_KEEP = 2  # newest steps
_PATIENCE = 10.0  # seconds to wait for a thread of a failed save
# A save may take 30 years: orbax's clock may be adjusted, and a lost process is
# noticed elsewhere. It raises at once if folders cannot be made.
_ASYNC = ocp.AsyncOptions(10**9, create_directories_asynchronously=False)


class Checkpoints(checkpoint_folder.Steps):
  """The checkpoints of one run."""

  def __init__(
    self,
    folder: str | pathlib.Path,
    asynchronous: bool = False,
    texts: Mapping[str, str] | None = None,
  ):
    """The folder need not exist. For `asynchronous` see `save`.

    Texts, {name: text}, are files to put into every step.
    """
    super().__init__(folder)
    self._asynchronous, self._texts = asynchronous, texts or {}
    # Bucket clients have their own errors.
    known = (OSError, ValueError, UserError)
    self._failures = (Exception,) if self.in_bucket else known
    self._reported = set()
    self._executor = concurrent.futures.ThreadPoolExecutor(1)
    self._saving: concurrent.futures.Future | None = None

  def newest(self, item: str = '') -> int | None:
    """The newest step that is `usable`, or has a usable item; None without."""
    return processes.on_main(
      lambda: next((s for s in self.steps() if self._usable(s, item)), None)
    )

  def usable(self, step: int) -> bool:
    """Whether a step is there and whole; damage is reported once."""
    return processes.on_main(lambda: self._usable(step))

  def _usable(self, step, item=''):
    folder = self.path(step)
    if not folder.is_dir():
      return False
    problem = seal.damage(folder, item)
    if problem and (step, problem) not in self._reported:
      self._reported.add((step, problem))
      line = f'checkpoint {step} is damaged and not used: {problem}'
      print(f'warning: {self.folder}: {line}', file=sys.stderr)
    return not problem

  def save(
    self, step: int, host: dict, keep: tuple[int, ...] = (), **items: Any
  ) -> None:
    """Writes a step, seals it, then deletes what is no longer kept.

    Items are pytrees of arrays: 'params', 'training' and so on; `host` is a
    JSON dict, the rest of the state; `keep` are steps to keep in addition to
    the newest and 0. An existing step of that number is replaced, unless it is
    whole and has the same host part (it differs after an evaluation cut short).

    If asynchronous, it returns once the arrays are copied to the host, so that
    they may be donated; a thread does the rest: `wait` for it. UserError: this
    step or the one before cannot be written; earlier ones are untouched.
    """
    self.wait()
    if processes.on_main(lambda: self._is_saved(step, host)):
      return
    saved = {k: ocp.args.StandardSave(v) for k, v in items.items()}
    args = ocp.args.Composite(**saved, host=ocp.args.JsonSave(host))
    options = ocp.CompositeOptions(async_options=_ASYNC)
    handler = ocp.CompositeCheckpointHandler(composite_options=options)
    with self._write_errors(step):
      processes.on_main(lambda: self.folder.mkdir(parents=True, exist_ok=True))
      writer = ocp.AsyncCheckpointer(handler, async_options=_ASYNC)
      writer.save(_orbax_path(self.path(step, '.new')), args=args)
    self._saving = self._executor.submit(self._complete, writer, step, keep)
    if not self._asynchronous:
      self.wait()

  def _is_saved(self, step, host):
    # This process has read or written it.
    if not self.is_there(step) or seal.damage(self.path(step), read=False):
      return False
    return self._host(step) == json.loads(json.dumps(host))

  def _complete(self, writer, step, keep):
    """The rest of a save, run in a thread."""
    new = self.path(step, '.new')
    with self._write_errors(step):
      writer.close()  # returns when all processes have written
      if not processes.is_main():
        return
      for name, text in self._texts.items():
        files.write(new / name, text)
      lease.confirm(self.folder.parent)
      seal.write(new, f'{step}')
      self.place(step)
    found = [(s, seal.damage(self.path(s), read=False)) for s in self.steps()]
    sound = [step for step, problem in found if not problem]
    self.delete(*(set(sound[_KEEP:]) - {0, *keep}))

  @contextlib.contextmanager
  def _write_errors(self, step):
    """Turns what a save raises into one line, and removes its traces."""
    try:
      yield
    except self._failures as e:
      if isinstance(e.__cause__, RuntimeError):
        raise e.__cause__ from None  # another process is lost
      # Threads of orbax may still be writing.
      for thread in threading.enumerate():
        if type(thread).__module__.startswith('orbax'):
          threading.Thread.join(thread, _PATIENCE)  # its own raises
      if processes.is_main():
        # A bucket may refuse this. What was sealed by then is kept.
        with contextlib.suppress(OSError):
          self.recover()
      why = f'the checkpoint cannot be written ({_cause(e)})'
      rest = 'earlier checkpoints are untouched'
      raise UserError(f'{self.path(step)}: {why}; {rest}') from e

  def check(self) -> None:
    """Raises the error of the current save, if it failed on this process."""
    if self._saving and self._saving.done() and self._saving.exception():
      saving, self._saving = self._saving, None
      saving.result()

  def wait(self) -> None:
    """Waits until the current save is sealed, or raises; all must call it."""
    if self._saving:
      concurrent.futures.wait([self._saving])
      self.check()
      self._saving = None
      processes.on_main(lambda: None)  # which has sealed by then

  def abandon(self) -> None:
    """Completes the save in progress before an error ends the program."""
    # With several processes the others may never complete it.
    if self._saving and processes.count() == 1:
      concurrent.futures.wait([self._saving])

  def clean(self, newest: int) -> None:
    """Prepares the folder for a run that continues from `newest`; process 0.

    No step is written twice: later ones, and those that lack a part, are moved
    to the folder `damaged` next to it, which keeps the last one of each number.
    """
    aside = self.folder.with_name('damaged')
    for step in self.steps():
      folder = self.path(step)
      if step > newest or seal.damage(folder, read=False):
        aside.mkdir(exist_ok=True)
        checkpoint_folder.remove(aside / folder.name)
        folder.rename(aside / folder.name)

  def has(self, step: int, item: str) -> bool:
    """Whether an item was saved with a step."""
    return processes.on_main((self.path(step) / item).exists)

  def host(self, step: int) -> dict:
    """The JSON dict that was saved with a step."""
    return processes.on_main(lambda: self._host(step))

  def _host(self, step):
    path = self.path(step) / 'host'
    with _read_errors(path):
      return dict(ocp.JsonCheckpointHandler().restore(_orbax_path(path)))

  def restore(self, step: int, **abstract: Any) -> dict[str, Any]:
    """Restores items of a `usable` step, given as ShapeDtypeStruct pytrees.

    UserError if the step holds arrays of other names, shapes or dtypes.
    """
    folder, restored = self.path(step), {}
    handler = ocp.StandardCheckpointHandler()
    with _read_errors(folder), ocp.Checkpointer(handler) as reader:
      for item, tree in abstract.items():
        path, args = folder / item, ocp.args.StandardRestore(tree)
        path = _orbax_path(path)
        found = handler.metadata(path).tree if path.exists() else {}
        _compare(path, _leaves(tree), _leaves(found))
        restored[item] = reader.restore(path, args=args)
      return restored


def _orbax_path(path: Any) -> Any:
  """The path in the form that orbax takes."""
  return epath.Path(f'{path}') if isinstance(path, buckets.Path) else path


def _compare(path, expected, found):
  """Compares leaves: orbax casts dtypes silently, and has lengthy errors."""
  for name in sorted(expected | found):
    want, have = expected.get(name, 'nothing'), found.get(name, 'nothing')
    if want != have:
      where = f'{have} in the checkpoint, {want} in this config'
      raise UserError(f'{path}/{name} is {where}')


def _leaves(tree):
  """{path: 'dtype[shape]'} of a pytree of arrays or of their metadata."""
  leaves = ocp.tree.to_flat_dict(tree, sep='/').items()
  return {name: f'{np.dtype(x.dtype)}{list(x.shape)}' for name, x in leaves}


@contextlib.contextmanager
def _read_errors(folder):
  """Turns what orbax raises into one line."""
  try:
    yield
  except UserError:
    raise
  except Exception as e:
    raise UserError(f'{folder} cannot be restored: {_cause(e)}') from e


def _cause(error):
  line = first_line(error).split(' [tensorstore_spec=')[0]
  return line if len(line) <= 300 else f'…{line[-300:]}'  # the cause is last
