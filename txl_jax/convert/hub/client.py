"""Downloads models from the Hugging Face Hub and pushes them."""

import fnmatch
import pathlib
import sys

from txl_jax.convert import vocabularies
from txl_jax.program import hub
from txl_jax.program.errors import UserError
from txl_jax.program.hub import Place, Snapshot

# Files that a model needs besides its weights.
_BESIDE = 'config.json', vocabularies.TOKENIZER, *vocabularies.NAMES
# Only the first of these is downloaded; the other holds the same weights.
_WEIGHTS = 'model.safetensors', 'pytorch_model.bin'


def download(where: Place) -> Snapshot:
  """Downloads the files of a model; UserError: see `hub.snapshot`."""

  def chosen(names):
    for name in _WEIGHTS:
      weights = {name, f'{name}.index.json'}
      if weights.intersection(names):
        wanted = {*_BESIDE, *weights}
        shards = fnmatch.filter(names, name.replace('.', '-*-of-*.'))
        return [x for x in names if x in wanted] + shards
    allowed = 'a transfo-xl model of Hugging Face, or one pushed by txl_jax'
    raise UserError(f'{where} has no weights; allowed: {allowed}')

  return hub.snapshot(where, chosen)


def upload(folder: pathlib.Path, where: Place, private: bool) -> str:
  """Pushes all files of a folder and returns the address of the commit.

  An existing repository keeps its other files, its history and its visibility;
  the names of replaced files are printed first. Raises UserError if the Hub
  refuses, or if `where` has a revision.
  """
  if where.revision:
    raise UserError(f'{where}; allowed: hf://ORG/NAME; pushes go to main')
  client = hub.opened(where)
  api = hub.api(client)
  with hub.translating_errors(client, where):
    api.create_repo(where.repository, private=private, exist_ok=True)
    info = api.model_info(where.repository, timeout=hub.SECONDS)
    existing = {x.rfilename for x in info.siblings or ()}
    replaced = sorted(existing & {path.name for path in folder.iterdir()})
    line = f'pushing to {where} ({"private" if info.private else "public"})'
    line += f', replacing {", ".join(replaced)}' if replaced else ''
    print(line, file=sys.stderr)
    commit = api.upload_folder(
      repo_id=where.repository,
      folder_path=folder,
      commit_message=f'{"Replace" if replaced else "Add"} model',
    )
  return f'{commit.commit_url}'
