"""A workdir with converted weights: `--mode=eval`, generate, export and train.

Besides what every run has (see `runs.workdir`) there are

origin.json     where the weights are from, and each switch of the model
vocabulary.txt  words, a line each, which a text of one's own is read with

The checkpoint is of step 0 and has parameters alone: training begins with them,
its optimiser new.
"""

import dataclasses
import json
import pathlib
import shlex
from typing import Any

from txl_jax.convert import vocabularies, writing
from txl_jax.convert.weights import Weights
from txl_jax.data.vocabularies.subwords import Subwords
from txl_jax.data.vocabularies.words import Words
from txl_jax.modes import sections
from txl_jax.program import files, settings
from txl_jax.runs import checkpoint, metrics_log, workdir
from txl_jax.training import resume

_ORIGIN, _WORDS = 'origin.json', 'vocabulary.txt'
_TEXT = 'text.txt'  # which the user may put there


def write(folder: pathlib.Path, weights: Weights) -> Any:
  """Writes a new workdir, whole or not at all; the config of the run.

  UserError: something is there already, or it cannot be written.
  """
  config = config_of(folder, weights)
  with writing.new_folder(folder) as made:
    _write(made, folder, config, weights)
  return config


def config_of(folder: pathlib.Path, weights: Weights) -> Any:
  """The config of the run that will be in a folder; UserError if it is none."""
  c = sections.compose(weights.fields['name'])
  for name, value in weights.fields.items():
    c.model[name] = value
  c.experiment = 'converted'
  c.origin = weights.origin
  data = _data(folder, weights.vocabulary)
  lm1b = data['corpus'] == 'lm1b'
  c.data.update(data)
  for name, value in weights.keys.items():
    if name != 'data.boundaries' or lm1b:
      c.update_from_flattened_dict({name: value})
  sections.check(c)
  return c


def _data(folder, vocabulary):
  """The section `data`: a published corpus by its symbols, or a text."""
  V, beside = len(vocabulary), folder.absolute()
  text = {'corpus': 'text', 'path': f'{beside / _TEXT}'}
  if isinstance(vocabulary, Subwords):
    tokenizer = f'{beside / workdir.VOCABULARY}'
    return {**text, 'level': 'subword', 'tokenizer': tokenizer}
  if not isinstance(vocabulary, Words):
    if V in (204, 205):
      return {'corpus': 'enwik8', 'newline': 'drop' if V == 204 else 'keep'}
    letters = {ord(' '), *range(ord('a'), ord('z') + 1)}
    return {'corpus': 'text8'} if {*vocabulary.symbols} == letters else text
  known = {267_735: 'wt103', 793_471: 'lm1b', 33_278: 'wt2', 10_000: 'ptb'}
  if V in known and not vocabularies.is_of_ids(vocabulary):
    return {'corpus': known[V]}
  return {
    **text,
    'level': 'word',
    'vocab_file': f'{beside / _WORDS}',
    'eos': vocabulary.eos == '<eos>',
    'lower': vocabulary.lower,
  }


def _write(made, folder, config, weights):
  text = workdir.vocabulary_text(weights.vocabulary)
  saved = checkpoint.Checkpoints(
    workdir.checkpoints(made), texts={workdir.VOCABULARY: text}
  )
  nothing = resume.Progress(), metrics_log.Mark()
  host = resume.Host.of(*nothing, config, corpus='')
  saved.save(0, dataclasses.asdict(host), params=weights.params)
  quoted = shlex.quote(f'{folder}')
  command = (
    f'python -m txl_jax.main --config={quoted}/config.py --workdir={quoted}'
  )
  notes = dict(weights.notes)
  switches = {
    name: {'value': value, 'from': notes[name]}
    for name, value in settings.flatten(config).items()
    if name in notes
  }
  origin = {'origin': weights.origin, 'switches': switches}
  texts = {
    workdir.VOCABULARY: text,
    workdir.CONFIG: settings.to_json(config),
    'config.py': settings.to_python(config, command, {}, notes),
    _ORIGIN: json.dumps(origin, indent=1) + '\n',
  }
  for name, contents in texts.items():
    files.write(made / name, contents)
  if isinstance(weights.vocabulary, Words):
    # Without counts: the list need not begin with the most frequent word.
    words = dataclasses.replace(weights.vocabulary, counts=())
    (made / _WORDS).write_bytes(words.text())
