r"""Converts published weights into a workdir, and a model of ours back.

python -m txl_jax.convert --from=transfo-xl-wt103 --to=runs/wt103
python -m txl_jax.convert --from=LM-TFM/model.pt --to=runs/mine \
  --vocabulary=data/cache.pt
python -m txl_jax.convert --from=tf_enwik8/model/model.ckpt-0 \
  --to=runs/enwik8 --vocabulary=tf_enwik8/data/cache.pkl
python -m txl_jax.convert --from=runs/mine --to=model.pt
python -m txl_jax.convert --from=runs/mine --to=mine --format=hugging_face
python -m txl_jax.convert --from=hf://ORG/NAME --to=runs/theirs
python -m txl_jax.convert --from=runs/mine --to=hf://ORG/NAME

--from is a file or folder of any version: the original PyTorch code (a state
dict or a whole model.pt), the original TensorFlow code (the prefix of a
checkpoint), Hugging Face (a folder, .safetensors or .bin), NVIDIA's version; or
a workdir or an export of ours; or, as hf://ORG/NAME[@REVISION], a repository of
the Hugging Face Hub. --to is a new workdir; a name that ends in .pt is a state
dict for the original PyTorch code, in .npz an export; to hf://ORG/NAME a model
is pushed, privately without --public.

What weights do not say (attention type 2 has no number of heads, a state dict
no mem_len) is said by a config beside them or by a flag, which has the name of
the original code's argument. See docs/weights.md.
"""

from txl_jax.program import errors, hub, terminal

if __name__ == '__main__':
  terminal.begin()  # the other imports take a second

import contextlib
import dataclasses
import json
import math
import pathlib
import shlex
import sys

import jax
from absl import flags

from txl_jax.convert import reading, writing
from txl_jax.convert.hub import client, model_card
from txl_jax.convert.options import Options
from txl_jax.convert.versions import sources
from txl_jax.parallel import hardware
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir
from txl_jax.shell import command_line

_PATH = command_line.Path(hub.SCHEME)
_FROM = flags.DEFINE(_PATH, 'from', '', 'What to convert.')
_TO = flags.DEFINE(
  _PATH, 'to', '', 'What to write; it must be new, unless on the Hub.'
)
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  writing.FORMATS,
  'What --to is; auto: original for a name in .pt or .pth, export for .npz, '
  'hub for hf://…, which may also be hugging_face, otherwise a workdir.',
)
_PUBLIC = flags.DEFINE_bool(
  'public', False, 'Whether all may see the repository that --to=hf://… makes.'
)
_VOCABULARY = flags.DEFINE(
  command_line.Path(),
  'vocabulary',
  '',
  'File with the vocabulary of --from: cache.pkl, cache.pt, a list '
  'of words, or the vocabulary.json of a workdir; or bytes, for all 256. '
  'Without one, tokens are their ids, written as words of digits.',
)


# What weights do not say; the rest of the options is in files alone.
_OF_FILES = 'n_layer', 'untie_r', 'dropout', 'dropatt'
_TOLD = {
  field.name: command_line.define(field, field.name, None)
  for field in dataclasses.fields(Options)
  if field.name not in _OF_FILES
}


def _told():
  """The options that flags say."""
  found = {name: flag.value for name, flag in _TOLD.items()}
  for name in 'cutoffs', 'tie_projs':
    with contextlib.suppress(ValueError):  # which `options` refuses
      found[name] = json.loads(f'[{found[name]}]')
  return found


def main(_: list[str]) -> None:
  """Converts what the flags say, and prints what was made."""
  for flag in _FROM, _TO:
    if not flag.value:
      raise UserError(f'--{flag.name} is missing; see --help')
  to, form = _target()
  hardware.check()
  source, name = pathlib.Path(_FROM.value), ''
  if hub.is_place(_FROM.value):
    source, name, _ = client.download(hub.place(_FROM.value, '--from'))
  weights = reading.read(source, _told(), _VOCABULARY.value)
  if name:
    weights = weights._replace(origin=f'{name}: {weights.origin}')
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  name, V = weights.fields['name'], len(weights.vocabulary)
  print(f'{name}, {count:,} parameters, {V:,} symbols ({weights.origin})')
  _warn(*weights.warnings)
  run = source if workdir.checkpoints(source).is_dir() else None
  if isinstance(to, hub.Place):
    theirs, private = form == 'hugging_face', not _PUBLIC.value
    address = writing.push(to, weights, run, private, theirs)
    print(f'written: {address}')
  else:
    _write(form, to, run, weights)
    print(f'written: {to}')
  if form in sources.SOURCES:
    _warn(*writing.left_out(weights, form))


def _target():
  """Where to, a path or a `hub.Place`, and in which format."""
  if hub.is_place(_TO.value):
    form = 'hub' if _FORMAT.value == 'auto' else _FORMAT.value
    if form not in (allowed := ('hub', 'hugging_face')):
      names = ' or '.join(allowed)
      errors.refuse('--format', form, f'{names} with --to=hf://…')
    return hub.place(_TO.value, '--to'), form
  if _PUBLIC.value:
    raise UserError(f'--public with --to={_TO.value}; allowed: --to=hf://…')
  to = pathlib.Path(_TO.value)
  if to.name in ('', '..'):  # as of --to=.
    to = to.resolve()
  form = writing.format_of(to, _FORMAT.value)
  writing.hold_new(to, form)
  return to, form


def _write(form, to, run, weights):
  """Writes a file or folder, and says how it is used."""
  if form == 'workdir':
    config = writing.to_workdir(to, weights)
    of_run = workdir.command(to)
    print(f'corpus: {config.data.corpus} {config.data.path}'.rstrip())
    if config.data.corpus == 'text':
      print('text:      put your text there, or add --config.data.path=FILE')
    print(f'evaluate:  {of_run} --mode=eval')
    print(f"sample:    {of_run} --mode=generate --config.generate.prompt='…'")
    print(f'train on:  {of_run}')
    if weights.vocabulary.kind == 'words':
      text = '--config.data.corpus=text --config.data.path=FILE'
      words = shlex.quote(f'{to / writing.WORDS}')
      level = f'--config.data.level=word --config.data.vocab_file={words}'
      print(f'your text: add {text} {level}')
  elif form == 'export':
    writing.to_export(to, weights)
  elif form == 'hub':
    writing.to_hub(to, weights, model_card.card(weights, f'{to}', False, run))
  elif form == 'original':
    writing.to_original(to, weights)
    T = weights.keys.get('train.segment_len', 512)
    arguments = writing.arguments(weights, T).items()
    text = ', '.join(f'{k}={x!r}' for k, x in arguments)
    print(f'MemTransformerLM({text})')
  else:
    writing.to_hugging_face(to, weights)


def _warn(*lines):
  for line in lines:
    print(f'warning: {line}', file=sys.stderr)


if __name__ == '__main__':
  command_line.run(main)
