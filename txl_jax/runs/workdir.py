"""The folder of a run: its lock, its config, its vocabulary.

config.json, config.py   the config, the second one for --config
vocabulary.json          what the token ids stand for
corpus.json              name and digest of the data
metrics.jsonl            see `metrics_log`
tensorboard/             the same for TensorBoard
checkpoints/             see `checkpoint`
lock                     held while a run writes here
"""

import contextlib
import fcntl
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from txl_jax import settings
from txl_jax.data import vocabulary as vocabulary_lib
from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.data.words import Words
from txl_jax.errors import UserError


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Holds the folder against a second run; the lock dies with the process.

  It is made if it is not there. UserError if another run holds it, or it cannot
  be written.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / 'lock').open('a+')
  except OSError as e:
    raise UserError(f'--workdir={folder} cannot be written: {e}') from e
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
      file.seek(0)
      found = f'{folder} is in use by process {file.read().strip()}'
      raise UserError(f'--workdir={found}; allowed: one run at a time') from e
    file.truncate(0)
    print(os.getpid(), file=file, flush=True)
    yield


def describe(
  folder: pathlib.Path,
  config: Any,
  sections: Mapping[str, type],
  corpus: Prepared,
  command: str,
) -> None:
  """Writes what tells this run from others, or checks that it is the same.

  The config is a ConfigDict of sections, see `settings.check`; the command is
  that which continues this run. UserError: the folder holds a run of another
  config or corpus.
  """
  if (folder / 'config.json').exists():
    now = settings.flatten(json.loads(settings.to_json(config)))
    then = settings.flatten(_read(folder / 'config.json'))
    found = settings.differences(sections, now, then, settings.ON_RESUME)
    for name, here, there in found:
      raise UserError(
        f'{folder} holds a run with {name} = {there!r}, this command has '
        f'{here!r}; continue with the same value or choose another --workdir'
      )
    then = {'name': '?', 'digest': '?'} | _read(folder / 'corpus.json')
    if then['digest'] != corpus.digest:
      raise UserError(
        f'{folder} holds a run on corpus {then["name"]} (sha256 '
        f'{then["digest"][:12]}), found {corpus.name} (sha256 '
        f'{corpus.digest[:12]}); allowed: the same corpus, or another --workdir'
      )
    return
  about = {'name': corpus.name, 'digest': corpus.digest}
  _write(folder / 'vocabulary.json', json.dumps(corpus.vocabulary.to_json()))
  _write(folder / 'corpus.json', json.dumps(about))
  _write(folder / 'config.py', settings.to_python(config, command))
  _write(folder / 'config.json', settings.to_json(config))


def check_shared(folder: pathlib.Path, seconds: float = 10.0) -> None:
  """UserError unless the folder is that which process 0 has described."""
  # A network file system may take some seconds to show that.
  deadline = time.monotonic() + seconds
  while not (folder / 'config.json').exists():
    if time.monotonic() > deadline:
      allowed = 'allowed: a folder that all hosts share'
      raise UserError(
        f'--workdir={folder} of process 0 is not seen here; {allowed}'
      )
    time.sleep(0.1)


def config(folder: pathlib.Path) -> dict[str, Any]:
  """The config of the run in a folder, flat; UserError if there is none."""
  return settings.flatten(_read(folder / 'config.json'))


def vocabulary(folder: pathlib.Path) -> Vocabulary | Words:
  """The vocabulary of the run in a folder; UserError without one."""
  try:
    return vocabulary_lib.from_json(_read(folder / 'vocabulary.json'))
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(f'{folder}/vocabulary.json is damaged: {e}') from e


def checkpoints(folder: pathlib.Path) -> pathlib.Path:
  """Where the checkpoints of a run lie."""
  return pathlib.Path(folder) / 'checkpoints'


def _write(path, text):
  temporary = path.with_name(path.name + '.tmp')
  with temporary.open('w') as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  temporary.replace(path)


def _read(path):
  """A JSON object from a file of a run."""
  try:
    found = json.loads(path.read_text())
  except (OSError, ValueError) as e:
    folder = path.parent
    if not path.exists() and not (folder / 'config.json').exists():
      none = f'--workdir={folder} holds no run; train one first'
      raise UserError(none) from e
    raise UserError(f'{path} cannot be read: {e}') from e
  if not isinstance(found, dict):
    raise UserError(f'{path} is damaged: {found!r} is no JSON object')
  return found
