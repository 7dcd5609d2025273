"""`Weights` as files of other versions, and as our own export.

What is written is a new folder or file: a name that is taken is refused before.
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
from txl_jax.training import resume

WORDS = 'vocabulary.txt'
_TEXT = 'text.txt'  # which the user may put there
FORMATS = ('auto', 'workdir', 'original', 'hugging_face', 'export', 'hub')
_ENDINGS = {'.pt': 'original', '.pth': 'original', '.npz': 'export'}


def format_of(to: pathlib.Path, chosen: str) -> str:
  """The chosen format, or, if auto, the one that the name implies."""
  implied = _ENDINGS.get(to.suffix.lower(), 'workdir')
  return implied if chosen == 'auto' else chosen


def hold_new(to: pathlib.Path, form: str) -> None:
  """UserError if the name is taken; a folder may be there if it is empty."""
  is_file = form in _ENDINGS.values()
  with files.writing(f'--to={to}'):
    if not os.path.lexists(to) or (
      not is_file and to.is_dir() and not any(to.iterdir())
    ):
      return
  what = 'name' if is_file else 'folder'
  raise UserError(f'--to={to} exists; choose a new {what}')


@contextlib.contextmanager
def _new_folder(to: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder that gets its name at the end, whole or not at all.

  UserError: it cannot be written, or is there already.
  """
  hold_new(to, 'workdir')
  with files.writing(f'--to={to}'), files.new_folder(to) as made:
    yield made


@contextlib.contextmanager
def _new_file(to: pathlib.Path, form: str) -> Iterator[None]:
  """Makes the folders of a new file; UserError if its name is taken."""
  hold_new(to, form)
  with files.writing(f'--to={to}'):
    to.parent.mkdir(parents=True, exist_ok=True)
    yield


def state_dict(weights: Weights, target: str) -> dict[str, Any]:
  """The state dict in the original's form, its tails as the target has them.

  The target is one of SOURCES.
  """
  section, V = weights.section, len(weights.vocabulary)
  state = original.from_params(weights.params, section, V)
  if section.cutoffs and section.tail_order != SOURCES[target].tail_order:
    state = original.turn_tails(state)
  return state


def to_original(path: pathlib.Path, weights: Weights) -> None:
  """Writes a state dict for the original PyTorch code; UserError if not."""
  state = state_dict(weights, 'original')
  with _new_file(path, 'original'):
    torch_file.write(path, state)


def arguments(weights: Weights, segment_len: int) -> dict[str, Any]:
  """Arguments with which the original code makes a model for the state dict."""
  c = weights.section
  T, M = segment_len, c.mem_len
  if hasattr(c, 'table_len'):  # which is as long as both
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
  """Writes a folder as `push` uploads it, with that README.md.

  UserError: it is there, or cannot be written.
  """
  with _new_folder(folder) as made:
    repository.write(made, weights)
    files.write(made / repository.CARD, card)


def push(
  where: hub.Place,
  weights: Weights,
  run: pathlib.Path | None = None,
  private: bool = True,
  theirs: bool = False,
) -> str:
  """Writes a repository on the Hub; the address of its commit.

  It is private unless it was there already. The run is the folder of the run
  that the weights are of, if any, whose figures are in the model card; `theirs`
  is the form of Hugging Face. UserError: see `client.upload`.
  """
  card = model_card.card(weights, f'{where}', theirs, run)
  with tempfile.TemporaryDirectory(prefix='txl_jax-') as made:
    folder = pathlib.Path(made) / 'model'
    (to_hugging_face if theirs else to_hub)(folder, weights, card)
    return client.upload(folder, where, private)


def to_hugging_face(
  folder: pathlib.Path, weights: Weights, card: str = ''
) -> None:
  """Writes a folder that TransfoXLLMHeadModel.from_pretrained reads.

  It has config.json, model.safetensors, our vocabulary.json, and the files of
  TransfoXLTokenizer where that can have the vocabulary; and a card, if one is
  given, as README.md. UserError: the version has no such model, the folder is
  there, or it cannot be written.
  """
  vocabulary = weights.vocabulary
  config = hugging_face.config_of(
    weights.section, len(vocabulary), vocabulary.eos_id
  )
  state = state_dict(weights, 'hugging_face')
  state = hugging_face.from_original(state, weights.section)
  with _new_folder(folder) as made:
    # Its loader refuses files without this.
    safe_file.write(made / 'model.safetensors', state, format='pt')
    files.write(made / 'config.json', json.dumps(config, indent=1) + '\n')
    # Otherwise only its owner might be able to read it.
    shutil.copymode(made / 'config.json', made / 'model.safetensors')
    text = workdir.vocabulary_text(vocabulary)
    files.write(made / workdir.VOCABULARY, text)
    if vocabularies.has_tokenizer(vocabulary):
      vocabularies.write(made, vocabulary)
    if card:
      files.write(made / repository.CARD, card)


def to_workdir(folder: pathlib.Path, weights: Weights) -> Any:
  """Writes a workdir for every `--mode`; the config of the run.

  Besides what every run has (see `runs.workdir`) there is, for words,
  vocabulary.txt, a word in each line, which a text of one's own is read with.

  The checkpoint is of step 0 and has parameters alone: training begins with
  them, its optimiser new. UserError: something is there already, or it cannot
  be written.
  """
  config = config_of(folder, weights)
  with _new_folder(folder) as made:
    _write_workdir(made, folder, config, weights)
  return config


def config_of(folder: pathlib.Path, weights: Weights) -> sections.Config:
  """The config of the run that will be in a folder; UserError if it is none."""
  data = _data(folder, weights.vocabulary)
  keys = dict(weights.keys)
  if data['corpus'] != 'lm1b':
    keys.pop('data.boundaries', None)
  own = {'experiment': 'converted', 'origin': weights.origin}
  own |= settings.flatten({'model': weights.fields, 'data': data})
  return sections.changed(sections.defaults(weights.fields['name']), own | keys)


def _data(folder, vocabulary):
  """The section `data`: a published corpus by its symbols, or a text."""
  V, beside = len(vocabulary), folder.absolute()
  text = {'corpus': 'text', 'path': f'{beside / _TEXT}'}
  if isinstance(vocabulary, Subwords):
    tokenizer = f'{beside / workdir.VOCABULARY}'
    return {**text, 'level': 'subword', 'tokenizer': tokenizer}
  if isinstance(vocabulary, Ids):
    names = f'{beside / workdir.VOCABULARY}'
    return {**text, 'level': 'id', 'vocab_file': names}
  if not isinstance(vocabulary, Words):
    if V in (204, 205):
      return {'corpus': 'enwik8', 'newline': 'drop' if V == 204 else 'keep'}
    letters = {ord(' '), *range(ord('a'), ord('z') + 1)}
    return {'corpus': 'text8'} if {*vocabulary.symbols} == letters else text
  known = {267_735: 'wt103', 793_471: 'lm1b', 33_278: 'wt2', 10_000: 'ptb'}
  if V in known and vocabulary != vocabularies.of_ids(V):
    return {'corpus': known[V]}
  return {
    **text,
    'level': 'word',
    'vocab_file': f'{beside / WORDS}',
    'eos': vocabulary.eos == '<eos>',
    'lower': vocabulary.lower,
  }


def _write_workdir(made, folder, config, weights):
  text = workdir.vocabulary_text(weights.vocabulary)
  saved = checkpoint.Checkpoints(
    workdir.checkpoints(made), texts={workdir.VOCABULARY: text}
  )
  nothing = resume.Progress(), metrics_log.Mark()
  host = resume.HostState.of(*nothing, config, corpus='')
  saved.save(0, dataclasses.asdict(host), params=weights.params)
  texts = {
    workdir.VOCABULARY: text,
    workdir.CONFIG: settings.to_json(config),
    'config.py': settings.to_python(config, workdir.command(folder)),
  }
  for name, contents in texts.items():
    files.write(made / name, contents)
  if isinstance(weights.vocabulary, Words):
    # Without counts: the list need not begin with the most frequent word.
    words = dataclasses.replace(weights.vocabulary, counts=())
    (made / WORDS).write_bytes(words.text())


def to_export(path: pathlib.Path, weights: Weights) -> None:
  """Writes the file of --mode=export; see `weights_file.save`."""
  what = weights.fields, weights.vocabulary.to_json()
  with _new_file(path, 'export'):
    weights_file.save(path, weights.params, *what, flag='--to')


def left_out(weights: Weights, target: str) -> Iterator[str]:
  """What a version does differently from this model: a line each.

  The target is one of SOURCES; these make its figures differ.
  """
  c, version = weights.section, SOURCES[target]
  does, of_hf = version.title, target == 'hugging_face'
  if c.mem_len and c.memory_init != version.memory_init:
    starts = {'empty': 'empty', 'zeros': 'with zero states that are seen'}
    advice = '; give it mems of length 0 at first' if of_hf else ''
    yield (
      f'model.memory_init is {c.memory_init}: in {does} a memory starts '
      f'{starts[version.memory_init]}{advice}'
    )
  if of_hf:
    return
  has: dict[str, Any] = {'ln_eps': version.ln_eps}
  if c.span is not None:
    has['same_length'] = version.span
  for key, value in has.items():
    if getattr(c, key) != value:
      yield f'model.{key} is {getattr(c, key)}: {does} has {value}'
  if getattr(c, 'untie_biases', False):
    yield (
      f'model.untie_biases: {does} has one pair of biases for all layers, and '
      'cannot load those of each layer; Hugging Face can'
    )
  if c.pre_norm and c.norm_queries and c.name in ('vaswani', 'al_rfou'):
    yield f'model.norm_queries: {does} makes queries of states without norm'
