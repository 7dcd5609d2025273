"""Writes `Weights` as a workdir, an export, or files of other code bases.

Each function `to_…` writes a new file or folder; UserError if the name is taken
or writing fails.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from txl_jax.convert import vocabularies
from txl_jax.convert.formats import safe_file, torch_file
from txl_jax.convert.hub import client, model_card, repository
from txl_jax.convert.versions import hugging_face, layout, original
from txl_jax.convert.versions.sources import SOURCES
from txl_jax.convert.weights import Weights
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words
from txl_jax.experiment import sections
from txl_jax.program import files, hub, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import checkpoint, metrics_log, weights_file, workdir
from txl_jax.training import host_state

WORDS = 'vocabulary.txt'
_TEXT = 'text.txt'  # the default path of the user's own text
FORMATS = ('auto', 'workdir', 'original', 'hugging_face', 'export', 'hub')
# {file name extension: format}; any other name is a workdir.
ENDINGS = {'.pt': 'original', '.pth': 'original', '.npz': 'export'}


def hold_new(to: pathlib.Path, form: str) -> None:
  """UserError if `to` exists; folder formats allow an empty one."""
  is_file = form in ENDINGS.values()
  with files.writing(f'--to={to}'):
    if not os.path.lexists(to) or (
      not is_file and to.is_dir() and not any(to.iterdir())
    ):
      return
  kind = 'name' if is_file else 'folder'
  raise UserError(f'--to={to} exists; choose a new {kind}')


@contextlib.contextmanager
def _new_folder(to: pathlib.Path) -> Iterator[pathlib.Path]:
  """A temporary folder, renamed to `to` once the block has succeeded."""
  hold_new(to, 'workdir')
  with files.writing(f'--to={to}'), files.new_folder(to) as folder:
    yield folder


@contextlib.contextmanager
def _new_file(to: pathlib.Path, form: str) -> Iterator[None]:
  """Makes the parent folders of a new file."""
  hold_new(to, form)
  with files.writing(f'--to={to}'):
    to.parent.mkdir(parents=True, exist_ok=True)
    yield


def state_dict(weights: Weights, target: str) -> dict[str, Any]:
  """The state dict in the original's form, in the target's order of tails.

  The target is a key of SOURCES.
  """
  section = weights.section
  V = len(weights.vocabulary)
  state = original.from_params(weights.params, section, V)
  if section.tail_order != SOURCES[target].tail_order:
    state = original.turn_tails(state)
  return state


def to_original(path: pathlib.Path, weights: Weights) -> None:
  """Writes a state dict for the original PyTorch code."""
  state = state_dict(weights, 'original')
  with _new_file(path, 'original'):
    torch_file.write(path, state)


def arguments(weights: Weights, segment_len: int) -> dict[str, Any]:
  """Arguments of the original MemTransformerLM that fit the state dict."""
  c = weights.section
  T, M = segment_len, c.mem_len
  if hasattr(c, 'table_len'):  # table_len = T + M
    M = min(M, c.table_len - 1)
    T = c.table_len - M
  return {
    'n_token': len(weights.vocabulary),
    **layout.arguments(c),
    'tie_weight': c.tie_weights,
    'tgt_len': T,
    'ext_len': 0,
    'mem_len': M,
  }


def to_hub(folder: pathlib.Path, weights: Weights, card: str) -> None:
  """Writes the folder that `push` uploads, with `card` as its README.md."""
  with _new_folder(folder) as made:
    repository.write(made, weights)
    files.write(made / repository.CARD, card)


def push(
  where: hub.Place,
  weights: Weights,
  run: pathlib.Path | None,
  private: bool,
  transformers: bool,
) -> str:
  """Pushes a model to the Hub and returns the address of the commit.

  The model card shows the results of `run`, the folder of the model's run, if
  any. `private` applies to a new repository; `transformers` writes files for
  Hugging Face's TransfoXL. UserError: see `client.upload`.
  """
  card = model_card.card(weights, f'{where}', transformers, run)
  with tempfile.TemporaryDirectory(prefix='txl_jax-') as parent:
    folder = pathlib.Path(parent) / 'model'
    (to_hugging_face if transformers else to_hub)(folder, weights, card)
    return client.upload(folder, where, private)


def to_hugging_face(
  folder: pathlib.Path, weights: Weights, card: str = ''
) -> None:
  """Writes a folder for TransfoXLLMHeadModel.from_pretrained.

  It holds config.json, model.safetensors and our vocabulary.json; the files of
  TransfoXLTokenizer, if it supports the vocabulary; and `card`, if not empty,
  as README.md. Raises UserError also if Hugging Face has no such model.
  """
  vocabulary = weights.vocabulary
  config = hugging_face.config_of(
    weights.section, len(vocabulary), vocabulary.eos_id
  )
  state = state_dict(weights, 'hugging_face')
  state = hugging_face.from_original(state, weights.section)
  with _new_folder(folder) as made:
    # transformers rejects files without this metadata.
    safe_file.write(made / 'model.safetensors', state, format='pt')
    files.write(made / 'config.json', json.dumps(config, indent=1) + '\n')
    # safetensors may give only the owner read access.
    shutil.copymode(made / 'config.json', made / 'model.safetensors')
    files.write(made / workdir.VOCABULARY, workdir.vocabulary_text(vocabulary))
    if vocabularies.has_tokenizer(vocabulary):
      vocabularies.write(made, vocabulary)
    if card:
      files.write(made / repository.CARD, card)


def to_workdir(folder: pathlib.Path, weights: Weights) -> Any:
  """Writes a workdir that every --mode can use; returns its config.

  Its checkpoint, of step 0, holds only parameters: training starts from them
  with a new optimiser state. For a vocabulary of words, vocabulary.txt lists
  them, one per line, for training on the user's own text.
  """
  config = config_of(folder, weights)
  text = workdir.vocabulary_text(weights.vocabulary)
  unstarted = host_state.Progress(), metrics_log.Mark()
  host = host_state.HostState.of(*unstarted, config, corpus='')
  with _new_folder(folder) as made:
    checkpoints = checkpoint.Checkpoints(
      workdir.checkpoints(made), texts={workdir.VOCABULARY: text}
    )
    checkpoints.save(0, dataclasses.asdict(host), params=weights.params)
    files.write(made / workdir.VOCABULARY, text)
    files.write(made / workdir.CONFIG, settings.to_json(config))
    command = workdir.command(folder)
    files.write(made / 'config.py', settings.to_python(config, command))
    if isinstance(weights.vocabulary, Words):
      # Without counts: the list need not begin with the most frequent word.
      words = dataclasses.replace(weights.vocabulary, counts=())
      (made / WORDS).write_bytes(words.text())
  return config


def config_of(folder: pathlib.Path, weights: Weights) -> sections.Config:
  """The config of a run in `folder`; UserError if a key is invalid."""
  data = _data(folder, weights.vocabulary)
  changes = {
    'experiment': 'converted',
    'origin': weights.origin,
    **settings.flatten({'model': weights.fields, 'data': data}),
    **weights.keys,
  }
  if data['corpus'] != 'lm1b':
    changes.pop('data.boundaries', None)
  return sections.changed(sections.defaults(weights.fields['name']), changes)


def _data(folder, vocabulary):
  """The section `data`: the published corpus of a vocabulary, or a text."""
  V = len(vocabulary)
  folder = folder.absolute()
  text = {'corpus': 'text', 'path': f'{folder / _TEXT}'}
  path = f'{folder / workdir.VOCABULARY}'
  if isinstance(vocabulary, Subwords):
    return {**text, 'level': 'subword', 'tokenizer': path}
  if isinstance(vocabulary, Ids):
    return {**text, 'level': 'id', 'vocab_file': path}
  if not isinstance(vocabulary, Words):
    if V in (204, 205):
      return {'corpus': 'enwik8', 'newline': 'drop' if V == 204 else 'keep'}
    letters = {ord(' '), *range(ord('a'), ord('z') + 1)}
    return {'corpus': 'text8'} if {*vocabulary.symbols} == letters else text
  known = {267_735: 'wt103', 793_471: 'lm1b', 33_278: 'wt2', 10_000: 'ptb'}
  if V in known and vocabulary.symbols != vocabularies.of_ids(V).symbols:
    return {'corpus': known[V]}
  return {
    **text,
    'level': 'word',
    'vocab_file': f'{folder / WORDS}',
    'eos': vocabulary.eos == '<eos>',
    'lower': vocabulary.lower,
  }


def to_export(path: pathlib.Path, weights: Weights) -> None:
  """Writes the same file as --mode=export; see `weights_file.save`."""
  vocabulary = weights.vocabulary.to_json()
  with _new_file(path, 'export'):
    weights_file.save(
      path, weights.params, weights.fields, vocabulary, flag='--to'
    )


def differences(weights: Weights, target: str) -> Iterator[str]:
  """Lines naming the keys of the model that a target does not implement.

  The target is a key of SOURCES. Each difference changes the model's results.
  """
  c = weights.section
  version = SOURCES[target]
  title = version.title
  transformers = target == 'hugging_face'
  if c.mem_len and c.memory_init != version.memory_init:
    starts = {'empty': 'empty', 'zeros': 'as zeros, which are attended to'}
    advice = '; start with mems of length 0' if transformers else ''
    yield (
      f'model.memory_init is {c.memory_init}: in {title} the memory starts '
      f'{starts[version.memory_init]}{advice}'
    )
  if transformers:
    return
  if c.ln_eps != version.ln_eps:
    yield f'model.ln_eps is {c.ln_eps}: {title} has {version.ln_eps}'
  if c.span is not None and c.same_length != version.span:
    yield f'model.same_length is {c.same_length}: {title} has {version.span}'
  if getattr(c, 'untie_biases', False):
    yield (
      f'model.untie_biases: {title} has one pair of biases for all layers and '
      'cannot load a pair per layer; Hugging Face can'
    )
  if c.pre_norm and c.norm_queries and c.name in ('vaswani', 'al_rfou'):
    yield f'model.norm_queries: {title} does not normalise the queries'
