"""Our own format of a model on the Hub: a folder of portable files.

The format of the library transformers is `convert.versions.hugging_face`.

model.safetensors  a float32 array per parameter, named by its path
                   ('layers_0/ff/w1/kernel')
config.json        {'model_type': 'txl_jax', 'model': section `model`, 'keys':
                   see `used`, 'origin': the source of the weights}
vocabulary.json    the symbols of the token ids
README.md          the model card
"""

import dataclasses
import json
import pathlib
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from txl_jax.convert.formats import safe_file
from txl_jax.convert.weights import Weights
from txl_jax.experiment import sections
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file, workdir

WEIGHTS, CONFIG, CARD = 'model.safetensors', 'config.json', 'README.md'
KIND = 'txl_jax'  # in place of a model_type of transformers
_LARGEST = 1 << 20  # bytes of a config


def write(folder: pathlib.Path, weights: Weights) -> None:
  """Writes all files but the card; raises UserError if it cannot."""
  params: Any = flax.traverse_util.flatten_dict(
    jax.tree.map(np.ascontiguousarray, weights.params), sep='/'
  )
  known = used(sections.defaults(weights.fields['name']))
  keys = {k: x for k, x in weights.keys.items() if k in known}
  config = {'model_type': KIND, 'model': weights.fields, 'keys': keys}
  config['origin'] = weights.origin
  files.write(folder / CONFIG, json.dumps(config, indent=1) + '\n')
  text = workdir.vocabulary_text(weights.vocabulary)
  files.write(folder / workdir.VOCABULARY, text)
  safe_file.write(folder / WEIGHTS, params)


def used(config: sections.Config) -> dict[str, Any]:
  """The flat keys of `eval` and `generate`, and train.segment_len.

  Prompts and paths are left out: they are private when a model is pushed, and a
  downloaded model must not name files on this machine.
  """
  flat = settings.flatten(config)
  return {
    name: flat[name]
    for name, entry in settings.all_keys(config).items()
    if name == 'train.segment_len'
    or (
      name.startswith(('eval.', 'generate.'))
      and not (entry.is_path or name.startswith('generate.prompt'))
    )
  }


def is_one(folder: pathlib.Path) -> bool:
  """Whether a folder has this format; UserError if its config is damaged."""
  path = folder / CONFIG
  if not path.is_file() or not (folder / WEIGHTS).exists():
    return False
  return files.read_json(path, _LARGEST).get('model_type') == KIND


def read(folder: pathlib.Path) -> Weights:
  """Reads a folder made by `write`; raises UserError if it is damaged."""
  config = files.read_json(folder / CONFIG, _LARGEST)
  symbols = files.read_json(folder / workdir.VOCABULARY)
  try:
    header = {'model': config['model'], 'vocabulary': symbols}
    model, vocabulary = weights_file.described(header)
    known = used(sections.defaults(config['model']['name']))
    keys = {k: x for k, x in config['keys'].items() if k in known}
  except files.ODD as e:
    raise UserError(f'{folder} is damaged: {type(e).__name__}: {e}') from e
  arrays = safe_file.read(folder / WEIGHTS)
  try:
    params = weights_file.checked(model, arrays, lambda name, _: arrays[name])
  except ValueError as e:
    raise UserError(f'{folder / WEIGHTS}: {e}') from e
  fields = dataclasses.asdict(model.config)
  origin = f'{KIND}, {WEIGHTS}, sha256 {files.sha256(folder / WEIGHTS)}'
  if before := config.get('origin'):
    origin += f'; before: {" ".join(str(before).split())[:1000]}'
  return Weights(fields, params, vocabulary, origin, keys)
