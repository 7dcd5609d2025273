"""Models on the Hugging Face Hub, downloaded and pushed."""

import fnmatch
import pathlib
import sys

from txl_jax.convert import vocabularies
from txl_jax.program import hub
from txl_jax.program.errors import UserError
from txl_jax.program.hub import Place, Snapshot

# What a model is read from, besides its weights.
_BESIDE = 'config.json', vocabularies.TOKENIZER, *vocabularies.NAMES
# The first of these that a repository has; others hold the same once more.
_WEIGHTS = 'model.safetensors', 'pytorch_model.bin'


def download(where: Place) -> Snapshot:
  """Downloads what a model needs; UserError as of `hub.snapshot`."""

  def chosen(there):
    for name in _WEIGHTS:
      weights = {name, f'{name}.index.json'}
      if weights.intersection(there):
        wanted = {*_BESIDE, *weights}
        shards = fnmatch.filter(there, name.replace('.', '-*-of-*.'))
        return [x for x in there if x in wanted] + shards
    allowed = 'a model of Hugging Face (transfo-xl), or one that was pushed'
    raise UserError(f'{where} has no weights; allowed: {allowed}')

  return hub.snapshot(where, chosen)


def upload(folder: pathlib.Path, where: Place, private: bool) -> str:
  """Makes a repository of all files of a folder; the address of the commit.

  An existing repository keeps its other files, its history and its visibility;
  the names of replaced files are printed first. UserError: see
  `hub.translating_errors`.
  """
  if where.revision:
    raise UserError(f'{where}; allowed: hf://ORG/NAME, whose main is written')
  client = hub.opened(where)
  api = hub.api(client)
  with hub.translating_errors(client, where):
    api.create_repo(where.repository, private=private, exist_ok=True)
    info = api.model_info(where.repository, timeout=hub.SECONDS)
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
