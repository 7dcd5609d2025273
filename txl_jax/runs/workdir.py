"""The folder of a run: its lock, its config, its vocabulary.

config.json, config.py   the config as JSON, and as Python for --config
vocabulary.json          symbols of the token ids
corpus.json              name and digest of the data
metrics.jsonl            see `metrics_log`
tensorboard/             the same records for TensorBoard
wandb.json, wandb/       the run at Weights & Biases, see `wandb_run`
checkpoints/             see `checkpoint`
lock                     held while a run writes here; in a bucket see `lease`

Every checkpoint has its own copy of config and vocabulary, which takes
precedence: a resumed run rewrites the files here.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import shlex
import time
from collections.abc import Iterator
from typing import Any

from txl_jax.data import vocabularies
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.program import buckets, files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import lease, metrics_log

VOCABULARY = 'vocabulary.json'
ANALYSIS = 'analysis'  # the folder of its measurements
CONFIG, _PYTHON = 'config.json', 'config.py'
WANDB = 'wandb.json'
_CORPUS, _LOCK = 'corpus.json', 'lock'
_OURS = CONFIG, _PYTHON, _CORPUS, VOCABULARY, WANDB


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Locks the folder against a second run; the lock ends with the process.

  The folder is created if needed, and removed if it is still empty at the end.
  UserError if another run holds the lock, or the folder cannot be written.
  """
  if isinstance(folder, buckets.Path):
    with lease.held(folder / _LOCK):
      yield
    return
  path = folder / _LOCK
  with contextlib.ExitStack() as stack:
    try:
      folder.mkdir(parents=True, exist_ok=True)
      file = stack.enter_context(path.open('a+'))  # 'a' blocks on pipes
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      found = f'{folder} is in use by another run'
      raise UserError(f'--workdir={found}; wait until it ends') from e
    except OSError as e:
      raise UserError(f'--workdir={folder} cannot be written: {e}') from e
    try:
      yield
    finally:
      if [*folder.iterdir()] == [path]:
        path.unlink()
        folder.rmdir()


def describe(
  folder: pathlib.Path, config: Any, corpus: Any, saved: Any
) -> None:
  """Writes the files that describe this run.

  `corpus` is a `data.prepared.Prepared`; `saved` is the `HostState` from which
  the run continues, None if it is new. A new run takes over the folder: a
  log without checkpoints and leftover files of another run are renamed, with a
  warning. UserError if a file cannot be written.
  """
  changes = {'train.resume': 'auto'}  # even after 'never'
  for name, entry in settings.keys(config.data).items():
    if entry.is_path and (path := getattr(config.data, name)):
      # For commands given in another working directory.
      changes[f'data.{name}'] = buckets.absolute(path)
  texts = {
    VOCABULARY: vocabulary_text(corpus.vocabulary),
    _CORPUS: json.dumps({'name': corpus.name, 'digest': corpus.digest}),
    _PYTHON: settings.to_python(config, command(folder), changes),
    CONFIG: settings.to_json(config),
  }
  if saved is None:
    same = _holds(folder / CONFIG, texts[CONFIG])
    leftovers = [x for x in _OURS if not same and (folder / x).exists()]
    log = folder / metrics_log.NAME
    if log.exists() and log.stat().st_size:
      leftovers.append(log.name)
    if leftovers:
      why = f'{folder} has no checkpoint of a run and is taken over'
      metrics_log.put_aside(folder, why, *leftovers, metrics_log.EVENTS)
  for name, text in texts.items():
    if not _holds(folder / name, text):
      files.write(folder / name, text)


def _holds(path, text):
  """Whether a file contains exactly this text."""
  with contextlib.suppress(UserError):
    return files.read(path) == text.encode()
  return False


def check_shared(folder: pathlib.Path, seconds: float = 10.0) -> None:
  """UserError unless this process sees the folder locked by process 0."""
  # A network file system may show the lock only after some seconds.
  deadline = time.monotonic() + seconds
  while not (folder / _LOCK).exists():
    if time.monotonic() > deadline:
      raise UserError(
        f'--workdir={folder} of process 0 is not visible here; allowed: a '
        'folder that all hosts share'
      )
    time.sleep(0.1)


def vocabulary(folder: pathlib.Path, step: int) -> AnyVocabulary:
  """The vocabulary of a checkpoint; UserError if there is none."""
  path = checkpoints(folder) / f'{step}' / VOCABULARY
  try:
    return vocabularies.from_json(files.read_json(path))
  except files.ODD as e:
    raise UserError(f'{path} is damaged: {e}') from e


def vocabulary_text(vocabulary: AnyVocabulary) -> str:
  """The contents of vocabulary.json."""
  return json.dumps(vocabulary.to_json())


def checkpoints(folder: pathlib.Path) -> pathlib.Path:
  """The folder of a run's checkpoints."""
  return buckets.place(folder) / 'checkpoints'


def own_config(folder: str) -> str:
  """Path of config.py in the folder of a run; '' if there is none."""
  if not folder or folder.startswith('hf://'):
    return ''
  path = buckets.place(os.path.expanduser(folder)) / _PYTHON
  with files.reading(f'{path}'[:200]):  # it may be too long for a name
    return f'{path}' if path.exists() else ''


def command(folder: pathlib.Path) -> str:
  """The command that resumes a run; --mode=… may be appended."""
  return f'python -m txl_jax.main --workdir={shlex.quote(f"{folder}")}'
