"""`Weights` as files of other versions, and as our own export."""

import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import safetensors.numpy

from txl_jax.convert import (
  hugging_face,
  layout,
  original,
  targets,
  torch_file,
  vocabularies,
)
from txl_jax.convert.sources import SOURCES
from txl_jax.convert.weights import Weights
from txl_jax.data.vocabularies.vocabulary import AnyVocabulary
from txl_jax.data.vocabularies.words import Words
from txl_jax.program import files
from txl_jax.runs import weights_file, workdir


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
  with targets.new_file(path):
    torch_file.write(path, state, new=True)


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


def to_hugging_face(folder: pathlib.Path, weights: Weights) -> None:
  """Writes a folder that TransfoXLLMHeadModel.from_pretrained reads.

  It has config.json, model.safetensors, our vocabulary.json, and where
  `has_tokenizer` the files of TransfoXLTokenizer. UserError: the version has no
  such model, the folder is there, or it cannot be written.
  """
  targets.hold_new(folder, 'hugging_face')
  vocabulary = weights.vocabulary
  config = hugging_face.config_of(
    weights.section, len(vocabulary), vocabulary.eos_id
  )
  state = state_dict(weights, 'hugging_face')
  state = hugging_face.from_original(state, weights.section)
  with targets.new_folder(folder) as made:
    # Its loader refuses files without this.
    safetensors.numpy.save_file(
      state, made / 'model.safetensors', metadata={'format': 'pt'}
    )
    files.write(made / 'config.json', json.dumps(config, indent=1) + '\n')
    # Otherwise only its owner might be able to read it.
    shutil.copymode(made / 'config.json', made / 'model.safetensors')
    text = workdir.vocabulary_text(vocabulary)
    files.write(made / workdir.VOCABULARY, text)
    if has_tokenizer(vocabulary):
      vocabularies.write(made, vocabulary)


def has_tokenizer(vocabulary: AnyVocabulary) -> bool:
  """Whether the tokenizer of Hugging Face can have a vocabulary."""
  return isinstance(vocabulary, Words) and vocabulary.unk in ('<unk>', '<UNK>')


def to_export(path: pathlib.Path, weights: Weights) -> None:
  """Writes the file of --mode=export; see `weights_file.save`."""
  what = weights.fields, weights.vocabulary.to_json()
  with targets.new_file(path):
    weights_file.save(path, weights.params, *what, flag='--to', new=True)


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
  if c.ln_eps != version.ln_eps:
    yield f'model.ln_eps is {c.ln_eps}: {does} has {version.ln_eps}'
  if c.span is not None and c.same_length != version.span:
    yield f'model.same_length is {c.same_length}: {does} has {version.span}'
  if getattr(c, 'untie_biases', False):
    yield (
      f'model.untie_biases: {does} has one pair of biases for all layers, and '
      'cannot load those of each layer; Hugging Face can'
    )
  if c.pre_norm and c.norm_queries and c.name in ('vaswani', 'al_rfou'):
    yield f'model.norm_queries: {does} makes queries of states without norm'
