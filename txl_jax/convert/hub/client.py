"""The Hugging Face Hub: models by the name hf://ORG/NAME[@REVISION].

huggingface_hub does the work, with its cache, its token, its progress bars and
its switch HF_HUB_OFFLINE. Of what it downloads it compares sizes alone (2.4.0),
so `download` also compares the hashes, by which its cache names the files.
"""

import contextlib
import hashlib
import importlib
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from txl_jax.convert import vocabularies
from txl_jax.program.errors import UserError, first_line

SCHEME = 'hf://'
_PLACE = re.compile(r'hf://([^/@\s]+/[^/@\s]+)(?:@((?!\.)\S+))?')
_AGENT: Any = {'library_name': 'txl_jax'}
_SECONDS = 10.0  # until a Hub that does not answer is out of reach
# What a model is read from, besides its weights.
_BESIDE = 'config.json', vocabularies.TOKENIZER, *vocabularies.NAMES
# The first of these that a repository has; others hold the same once more.
_WEIGHTS = 'model.safetensors', 'pytorch_model.bin'
_LOG_IN = 'a token of an account that may: hf auth login, or HF_TOKEN'


class Place(NamedTuple):
  """A repository and a revision of it; None is its main branch."""

  repository: str
  revision: str | None

  def __str__(self) -> str:
    at = f'@{self.revision}' if self.revision else ''
    return f'{SCHEME}{self.repository}{at}'


class Snapshot(NamedTuple):
  """A local folder with the files of a revision, and which it is."""

  folder: pathlib.Path
  name: str  # hf://ORG/NAME@COMMIT


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


def download(where: Place) -> Snapshot:
  """Downloads what a model needs, unless the cache has it.

  UserError: it is not there, out of reach, not allowed, or damaged.
  """
  client = _client(where)
  with _told(client, where):
    reached = client.is_offline_mode() or _reach(client, where)
    for name in _WEIGHTS:
      shards = name.replace('.', '-*-of-*.')
      weights = name, f'{name}.index.json'
      folder = pathlib.Path(
        client.snapshot_download(
          where.repository,
          revision=where.revision,
          allow_patterns=[*_BESIDE, *weights, shards],
          etag_timeout=_SECONDS,
          local_files_only=not reached,
          **_AGENT,
        )
      )
      if any((folder / x).exists() for x in weights):
        break
    else:
      allowed = 'a model of Hugging Face (transfo-xl), or one that was pushed'
      raise UserError(f'{where} has no weights; allowed: {allowed}')
  for path in sorted(folder.iterdir()):
    _check(path, where)
  return Snapshot(folder, f'{SCHEME}{where.repository}@{folder.name}')


def _reach(client, where):
  """Whether there is an answer; what that refuses is an error.

  Where the Hub refuses, snapshot_download would take what the cache has.
  """
  errors = client.errors
  try:
    client.HfApi(**_AGENT).model_info(
      where.repository, revision=where.revision, timeout=_SECONDS
    )
  except errors.HfHubHTTPError:
    raise
  except errors.HfHubHTTPError.__mro__[1] as e:  # of its HTTP library
    print(f'warning: {where}, from the cache: {_why(e)}', file=sys.stderr)
    return False
  return True


def upload(folder: pathlib.Path, where: Place, private: bool) -> str:
  """Makes a repository of all files of a folder; the address of the commit.

  A repository that is there keeps its other files, its history and who may see
  it; which of its files are replaced is said before. UserError: see `download`.
  """
  if where.revision:
    raise UserError(f'{where}; allowed: hf://ORG/NAME, whose main is written')
  client = _client(where)
  api = client.HfApi(**_AGENT)
  with _told(client, where):
    api.create_repo(where.repository, private=private, exist_ok=True)
    info = api.model_info(where.repository, timeout=_SECONDS)
    there = {x.rfilename for x in info.siblings or ()}
    seen = 'private' if info.private else 'public'
    replaced = sorted(there & {path.name for path in folder.iterdir()})
    what = f', replacing {", ".join(replaced)}' if replaced else ''
    print(f'pushing to {where} ({seen}){what}', file=sys.stderr, flush=True)
    message = f'{"Replace" if replaced else "Add"} model'
    done = api.upload_folder(
      repo_id=where.repository, folder_path=folder, commit_message=message
    )
  return f'{done.commit_url}'


def _client(where):
  try:
    importlib.import_module('huggingface_hub.errors')
    return importlib.import_module('huggingface_hub')
  except ValueError as e:  # of a variable that it reads
    raise UserError(f'{where}: huggingface_hub: {_why(e)}') from e
  except ImportError as e:
    raise UserError(
      f"{where} needs huggingface_hub; run: pip install 'txl_jax[hub]'"
    ) from e


@contextlib.contextmanager
def _told(client, where) -> Iterator[None]:
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
    why = 'HF_HUB_OFFLINE is set' if offline else _why(e.__cause__ or e)
    raise UserError(
      f'{where} is not in the cache, and the Hub is out of reach: {why}'
    ) from e
  except errors.HfHubHTTPError as e:
    code = e.response.status_code
    refused = f'; allowed: {_LOG_IN}' if code in (401, 403) else ''
    said = ' '.join((e.server_message or '').split())[:200]
    answer = f'{code}: {said}' if said else f'{code}'
    raise UserError(f'{where}: the Hub answers {answer}{refused}') from e
  except others as e:
    raise UserError(f'{where}: {_why(e.__cause__ or e)}') from e


def _why(error):
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
