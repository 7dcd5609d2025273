"""Repositories of the Hugging Face Hub.

A model is hf://ORG/NAME[@REVISION], a data set
hf://datasets/ORG/NAME[@REVISION][/FOLDER]. The library huggingface_hub
provides cache, token and progress bars, and honours HF_HUB_OFFLINE. As of
2.4.0 it checks only the sizes of downloads, so `snapshot` also checks their
hashes, which are their names in the cache.
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
from txl_jax.program.errors import UserError, extra, reason

SCHEME = 'hf://'
_PLACE = re.compile(r'hf://([^/@\s]+/[^/@\s]+)(?:@((?!\.)\S+))?')
SECONDS = 10.0  # timeout of requests to the Hub
_DATASET = re.compile(
  r'hf://datasets/([^/@\s]+/[^/@\s]+)(?:@((?!\.)[^/\s]+))?(?:/(\S+?))?/?'
)
_LOG_IN = 'a token of an account with access: hf auth login, or HF_TOKEN'


class Place(NamedTuple):
  """A revision of a repository; None is the main branch."""

  repository: str
  revision: str | None
  kind: str = 'model'  # or 'dataset'
  folder: str = ''  # in the repository

  def __str__(self) -> str:
    at = f'@{self.revision}' if self.revision else ''
    folder = f'/{self.folder}' if self.folder else ''
    data = 'datasets/' if self.kind == 'dataset' else ''
    return f'{SCHEME}{data}{self.repository}{at}{folder}'


class Snapshot(NamedTuple):
  """A local folder with files of a revision."""

  folder: pathlib.Path
  name: str  # hf://ORG/NAME@COMMIT
  files: list[str]  # their relative paths


def is_place(text: Any) -> bool:
  """Whether a text is an address on the Hub."""
  return f'{text}'.startswith(SCHEME)


def place(text: str, name: str = '') -> Place:
  """Parses the address of a model; a UserError names the flag `name`."""
  if not (match := _PLACE.fullmatch(text)):
    called = f'{name}{"=" if name else ""}{text}'
    raise UserError(
      f'{called}; allowed: hf://ORG/NAME or hf://ORG/NAME@REVISION'
    )
  return Place(match[1], match[2])


def dataset(text: str, name: str) -> Place:
  """Parses the address of a data set; a UserError names the key `name`."""
  if not (match := _DATASET.fullmatch(text)):
    raise UserError(
      f'{name} is {text}; allowed: hf://datasets/ORG/NAME, optionally '
      'with @REVISION and /FOLDER'
    )
  return Place(match[1], match[2], 'dataset', match[3] or '')


def snapshot(
  where: Place, choose: Callable[[list[str]], Sequence[str]]
) -> Snapshot:
  """Downloads files of a repository, unless the cache has them.

  `choose` selects from the files of the repository or, if the Hub cannot be
  reached, from the cached files. UserError: the repository does not exist or
  cannot be read, or a file is damaged.
  """
  client = opened(where)
  with translating_errors(client, where):
    names = None if client.is_offline_mode() else _list(client, where)
    cached_only = names is None
    if names is None:
      # This pattern matches no file: it only locates the cached folder.
      root = _download(client, where, ['/'], cached_only)
      paths = (x for x in root.rglob('*') if x.is_file())
      names = [x.relative_to(root).as_posix() for x in paths]
    chosen = [*choose(sorted(names))]
    patterns = [*map(glob.escape, chosen)]
    folder = _download(client, where, patterns, cached_only)
  for name in chosen:
    _check(folder / name, where)
  named = where._replace(revision=folder.name)
  return Snapshot(folder, f'{named}', chosen)


def api(client: Any) -> Any:
  """The HfApi of a client, with txl_jax as its user agent."""
  version = txl_jax.__version__
  return client.HfApi(library_name='txl_jax', library_version=version)


def _download(client, where, patterns, cached_only):
  """Downloads the files that match a pattern; returns their folder."""
  folder = api(client).snapshot_download(
    repo_id=where.repository,
    revision=where.revision,
    repo_type=where.kind,
    etag_timeout=SECONDS,
    allow_patterns=patterns,
    local_files_only=cached_only,
  )
  return pathlib.Path(folder)


def _list(client: Any, where: Place) -> list[str] | None:
  """The files of a repository; None, with a warning, if there is no answer.

  If the Hub refuses, this raises; snapshot_download would use the cache.
  """
  errors = client.errors
  try:
    info = api(client).repo_info(
      where.repository,
      revision=where.revision,
      repo_type=where.kind,
      timeout=SECONDS,
    )
  except errors.HfHubHTTPError:
    raise
  except errors.HfHubHTTPError.__mro__[1] as e:  # of its HTTP library
    print(f'warning: using cached {where}: {reason(e)}', file=sys.stderr)
    return None
  return [x.rfilename for x in info.siblings or ()]


def opened(where: Place) -> Any:
  """The library huggingface_hub; UserError without it."""
  try:
    client = extra('hub', 'huggingface_hub', f'{where}')
    importlib.import_module('huggingface_hub.errors')
    return client
  except ValueError as e:  # a bad environment variable
    raise UserError(f'{where}: huggingface_hub: {reason(e)}') from e


@contextlib.contextmanager
def translating_errors(client: Any, where: Place) -> Iterator[None]:
  """Turns the errors of huggingface_hub into UserErrors."""
  errors = client.errors
  # The base error of its HTTP library, if there was no answer; errors of an
  # upload; invalid names and addresses.
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
  except errors.LocalEntryNotFoundError as e:
    offline = client.is_offline_mode()
    why = 'HF_HUB_OFFLINE is set' if offline else reason(e.__cause__ or e)
    raise UserError(
      f'{where} is not in the cache, and the Hub is unreachable: {why}'
    ) from e
  except errors.HfHubHTTPError as e:
    code = e.response.status_code
    refused = f'; allowed: {_LOG_IN}' if code in (401, 403) else ''
    message = ' '.join((e.server_message or '').split())[:200]
    answer = f'{code}: {message}' if message else f'{code}'
    raise UserError(f'{where}: the Hub answers {answer}{refused}') from e
  except others as e:
    raise UserError(f'{where}: {reason(e.__cause__ or e)}') from e


def _check(path: pathlib.Path, where: Place) -> None:
  """Raises a UserError, and deletes the file, if its hash is not the Hub's.

  The cache names large files by their SHA-256 and others by their git hash.
  """
  blob = pathlib.Path(os.path.realpath(path))
  named = {40: 'sha1', 64: 'sha256'}.get(len(blob.name))
  if blob == path or not named or not re.fullmatch('[0-9a-f]+', blob.name):
    return  # the cache has no links, as on Windows
  header = b'blob %d\0' % blob.stat().st_size if named == 'sha1' else b''
  with blob.open('rb') as f:
    found = hashlib.file_digest(f, lambda: hashlib.new(named, header))
  if found.hexdigest() != blob.name:
    with contextlib.suppress(OSError):  # the cache may be read-only
      blob.unlink()
      path.unlink()
    raise UserError(
      f'{where}: {path.name} has {named} {found.hexdigest()}, expected '
      f'{blob.name}; try again, and if that fails, delete {blob}'
    )
