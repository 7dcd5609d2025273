"""The Hugging Face Hub: what hf://ORG/NAME[@REVISION] names, for all rooms.

Data sets are hf://datasets/ORG/NAME[@REVISION][/FOLDER]. huggingface_hub does
the work, with its cache, token, progress bars and switch HF_HUB_OFFLINE. It
compares only the sizes of downloaded files (2.4.0), so `snapshot` also compares
their hashes, by which its cache names them.
"""

import contextlib
import glob
import hashlib
import importlib
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import txl_jax
from txl_jax.program.errors import UserError, first_line

SCHEME = 'hf://'
_PLACE = re.compile(r'hf://([^/@\s]+/[^/@\s]+)(?:@((?!\.)\S+))?')
AGENT: Any = dict(library_name='txl_jax', library_version=txl_jax.__version__)
SECONDS = 10.0  # until a Hub that does not answer is out of reach
_DATASET = re.compile(
  r'hf://datasets/([^/@\s]+/[^/@\s]+)(?:@((?!\.)[^/\s]+))?(?:/(\S+?))?/?'
)
_LOG_IN = 'a token of an account that may: hf auth login, or HF_TOKEN'


class Place(NamedTuple):
  """A repository and a revision of it; None is its main branch."""

  repository: str
  revision: str | None
  kind: str = 'model'  # or 'dataset'
  folder: str = ''  # of it

  def __str__(self) -> str:
    at = f'@{self.revision}' if self.revision else ''
    folder = f'/{self.folder}' if self.folder else ''
    data = 'datasets/' if self.kind == 'dataset' else ''
    return f'{SCHEME}{data}{self.repository}{at}{folder}'


class Snapshot(NamedTuple):
  """A local folder with the files of a revision, and which it is."""

  folder: pathlib.Path
  name: str  # hf://ORG/NAME@COMMIT
  files: list[str]  # their relative paths


def is_place(text: Any) -> bool:
  """Whether a text names something on the Hub."""
  return f'{text}'.startswith(SCHEME)


def place(text: str, name: str = '') -> Place:
  """The place of a text; UserError, which names a flag, if it is none."""
  if not (found := _PLACE.fullmatch(text)):
    called = f'{name}{"=" if name else ""}{text}'
    raise UserError(
      f'{called}; allowed: hf://ORG/NAME or hf://ORG/NAME@REVISION'
    )
  return Place(found[1], found[2])


def dataset(text: str, name: str) -> Place:
  """The place of a data set; UserError, which names a key, if it is none."""
  if not (found := _DATASET.fullmatch(text)):
    raise UserError(
      f'{name} is {text}; allowed: hf://datasets/ORG/NAME, with @REVISION and '
      '/FOLDER if need be'
    )
  return Place(found[1], found[2], 'dataset', found[3] or '')


def snapshot(
  where: Place, choose: Callable[[list[str]], Sequence[str]]
) -> Snapshot:
  """Downloads files of a repository, unless the cache has them.

  `choose` selects from the files of the repository or, if the Hub cannot be
  reached, from the cached ones. UserError: the repository does not exist,
  cannot be reached or may not be read, or a file is damaged.
  """
  client = opened(where)
  with translating_errors(client, where):
    asked: Any = dict(
      repo_id=where.repository,
      revision=where.revision,
      repo_type=where.kind,
      etag_timeout=SECONDS,
      **AGENT,
    )
    there = None if client.is_offline_mode() else _list(client, where)
    local = there is None
    if there is None:
      # A pattern of no file: the cache need not have all of them.
      root = client.snapshot_download(
        allow_patterns=['/'], local_files_only=True, **asked
      )
      paths = (x for x in pathlib.Path(root).rglob('*') if x.is_file())
      there = [x.relative_to(root).as_posix() for x in paths]
    chosen = [*choose(sorted(there))]
    root = client.snapshot_download(
      allow_patterns=[*map(glob.escape, chosen)],
      local_files_only=local,
      **asked,
    )
  folder = pathlib.Path(root)
  for name in chosen:
    _check(folder / name, where)
  named = where._replace(revision=folder.name)
  return Snapshot(folder, f'{named}', chosen)


def _list(client, where):
  """The files of a repository; None, with a warning, if there is no answer.

  What it refuses is an error: snapshot_download would take what the cache has.
  """
  errors = client.errors
  try:
    info = client.HfApi(**AGENT).repo_info(
      where.repository,
      revision=where.revision,
      repo_type=where.kind,
      timeout=SECONDS,
    )
  except errors.HfHubHTTPError:
    raise
  except errors.HfHubHTTPError.__mro__[1] as e:  # of its HTTP library
    print(f'warning: {where}, from the cache: {why(e)}', file=sys.stderr)
    return None
  return [x.rfilename for x in info.siblings or ()]


def opened(where: Place) -> Any:
  """The library huggingface_hub; UserError without it."""
  try:
    importlib.import_module('huggingface_hub.errors')
    return importlib.import_module('huggingface_hub')
  except ValueError as e:  # of a variable that it reads
    raise UserError(f'{where}: huggingface_hub: {why(e)}') from e
  except ImportError as e:
    raise UserError(
      f"{where} needs huggingface_hub; run: pip install 'txl_jax[hub]'"
    ) from e


@contextlib.contextmanager
def translating_errors(client: Any, where: Place) -> Iterator[None]:
  """Raises a UserError for what the client raises."""
  errors = client.errors
  # Of whichever HTTP library it has, where there was no answer; of an upload;
  # of names and addresses that are none.
  others = errors.HfHubHTTPError.__mro__[1], OSError, RuntimeError, ValueError
  try:
    yield
  except errors.GatedRepoError as e:
    raise UserError(f'{where} is gated; you need {_LOG_IN}') from e
  except errors.RevisionNotFoundError as e:
    raise UserError(
      f'{where}: there is no revision {where.revision}; allowed: a branch, a '
      'tag or a commit'
    ) from e
  except errors.RepositoryNotFoundError as e:
    raise UserError(
      f'{where} does not exist or is private; allowed: another name, or '
      f'{_LOG_IN}'
    ) from e
  except errors.HFValidationError as e:
    raise UserError(f'{where}: {first_line(e)}') from e
  except errors.LocalEntryNotFoundError as e:
    offline = client.is_offline_mode()
    reason = 'HF_HUB_OFFLINE is set' if offline else why(e.__cause__ or e)
    raise UserError(
      f'{where} is not in the cache, and the Hub is out of reach: {reason}'
    ) from e
  except errors.HfHubHTTPError as e:
    code = e.response.status_code
    refused = f'; allowed: {_LOG_IN}' if code in (401, 403) else ''
    said = ' '.join((e.server_message or '').split())[:200]
    answer = f'{code}: {said}' if said else f'{code}'
    raise UserError(f'{where}: the Hub answers {answer}{refused}') from e
  except others as e:
    raise UserError(f'{where}: {why(e.__cause__ or e)}') from e


def why(error: BaseException) -> str:
  """What an error says, in short."""
  return ' '.join(first_line(error).split())[:200]


def _check(path, where):
  """UserError if a file is not what the Hub says; the cache loses it then.

  The cache names a file by its hash: sha256 of large ones, git's of others.
  """
  blob = pathlib.Path(os.path.realpath(path))
  named = {40: 'sha1', 64: 'sha256'}.get(len(blob.name))
  if blob == path or not named or not re.fullmatch('[0-9a-f]+', blob.name):
    return  # no cache with links, as on Windows
  with blob.open('rb') as f:
    hashed = hashlib.new(named)
    if named == 'sha1':
      hashed.update(b'blob %d\0' % blob.stat().st_size)
    while block := f.read(1 << 20):
      hashed.update(block)
  if hashed.hexdigest() != blob.name:
    with contextlib.suppress(OSError):  # of a cache that can only be read
      blob.unlink()
      path.unlink()
    raise UserError(
      f'{where}: {path.name} has {named} {hashed.hexdigest()}, the Hub says '
      f'{blob.name}; remove {blob} and try again'
    )
