r"""Converts published weights into a workdir, and our models back.

python -m txl_jax.convert --from=transfo-xl-wt103 --to=runs/wt103
python -m txl_jax.convert --from=LM-TFM/model.pt --to=runs/mine \
  --vocabulary=data/cache.pt
python -m txl_jax.convert --from=tf_enwik8/model/model.ckpt-0 \
  --to=runs/enwik8 --vocabulary=tf_enwik8/data/cache.pkl
python -m txl_jax.convert --from=runs/mine --to=model.pt
python -m txl_jax.convert --from=runs/mine --to=mine --format=hugging_face
python -m txl_jax.convert --from=hf://ORG/NAME --to=runs/theirs
python -m txl_jax.convert --from=runs/mine --to=hf://ORG/NAME

--from is a file or folder from the original PyTorch code (a state dict or a
whole model.pt), the original TensorFlow code (the prefix of a checkpoint),
Hugging Face (a folder, .safetensors or .bin) or NVIDIA's code; or one of our
workdirs or exports; or hf://ORG/NAME[@REVISION] on the Hugging Face Hub. --to
is a new workdir; a name ending in .pt writes a state dict for the original
PyTorch code, one ending in .npz an export; hf://ORG/NAME pushes the model to
the Hub, privately unless --public is set.

Settings that the tensors do not determine (the number of heads of attention
type 2, mem_len) come from a config beside the weights or from flags, named like
the original code's arguments. See docs/weights.md.
"""

from txl_jax.program import signals

if __name__ == '__main__':
  signals.begin()  # the other imports take a second

import contextlib
import dataclasses
import json
import math
import pathlib
import shlex
import sys

import jax
from absl import flags

from txl_jax.convert import read_weights, write_weights
from txl_jax.convert.convert_options import Options
from txl_jax.convert.hub import client, model_card
from txl_jax.convert.versions import sources
from txl_jax.parallel import hardware
from txl_jax.program import command_line, errors, hub
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file, workdir

_PATH = command_line.Path(hub.SCHEME)
_FROM = flags.DEFINE(_PATH, 'from', '', 'Weights to convert.')
_TO = flags.DEFINE(
  _PATH, 'to', '', 'Destination; must not exist, except on the Hub.'
)
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  write_weights.FORMATS,
  'Format of --to. auto: original for .pt and .pth, export for .npz, hub for '
  'hf://… (hugging_face is allowed too), and workdir for any other name.',
)
_PUBLIC = flags.DEFINE_bool(
  'public', False, 'Makes a new repository of --to=hf://… public.'
)
_VOCABULARY = flags.DEFINE(
  command_line.Path(),
  'vocabulary',
  '',
  'Vocabulary file of --from: cache.pkl, cache.pt, a list of words, or the '
  "vocabulary.json of a workdir; or 'bytes' for all 256 byte values. "
  'Without a vocabulary each token is written as its id.',
)
_NOT_FLAGS = 'n_layer', 'untie_r', 'dropout', 'dropatt'  # read from files only
_OPTIONS = {
  field.name: command_line.define(field, field.name, None)
  for field in dataclasses.fields(Options)
  if field.name not in _NOT_FLAGS
}


def _options():
  """The options set by flags; `convert_options.known` checks them."""
  values = {name: flag.value for name, flag in _OPTIONS.items()}
  for name in 'cutoffs', 'tie_projs':
    with contextlib.suppress(ValueError):
      values[name] = json.loads(f'[{values[name]}]')
  return values


def main(_: list[str]) -> None:
  """Converts --from to --to and prints a summary."""
  for flag in _FROM, _TO:
    if not flag.value:
      raise UserError(f'--{flag.name} is missing; see --help')
  to, form = _target()
  hardware.check()
  source = pathlib.Path(_FROM.value)
  name = ''
  if hub.is_place(_FROM.value):
    source, name, _ = client.download(hub.place(_FROM.value, '--from'))
  weights = read_weights.read(source, _options(), _VOCABULARY.value)
  if name:
    weights = weights._replace(origin=f'{name}: {weights.origin}')
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  name = weights.fields['name']
  V = len(weights.vocabulary)
  print(f'{name}, {count:,} parameters, {V:,} symbols ({weights.origin})')
  _warn(*weights.warnings)
  run = source if workdir.checkpoints(source).is_dir() else None
  if isinstance(to, hub.Place):
    transformers = form == 'hugging_face'
    private = not _PUBLIC.value
    address = write_weights.push(to, weights, run, private, transformers)
    print(f'written: {address}')
  else:
    _write(form, to, run, weights)
    print(f'written: {to}')
  if form in sources.SOURCES:
    _warn(*write_weights.differences(weights, form))


def _target():
  """The destination, a path or a `hub.Place`, and its format."""
  if hub.is_place(_TO.value):
    form = 'hub' if _FORMAT.value == 'auto' else _FORMAT.value
    if form not in (allowed := ('hub', 'hugging_face')):
      names = ' or '.join(allowed)
      errors.refuse('--format', form, f'{names} with --to=hf://…')
    return hub.place(_TO.value, '--to'), form
  if _PUBLIC.value:
    raise UserError(f'--public with --to={_TO.value}; allowed: --to=hf://…')
  to = pathlib.Path(_TO.value)
  if to.name in ('', '..'):  # from --to=.
    to = to.resolve()
  form = _FORMAT.value
  ending = write_weights.ENDINGS.get(to.suffix.lower())
  if form == 'auto':
    form = ending or 'workdir'
  if ending not in (None, form):
    allowed = f'{ending} with --to={to}, or another --to'
    errors.refuse('--format', form, allowed)
  if form == 'export':
    weights_file.check_name(to, '--to')
  write_weights.hold_new(to, form)
  return to, form


def _write(form, to, run, weights):
  """Writes a file or folder and prints the commands that use it."""
  if form == 'workdir':
    config = write_weights.to_workdir(to, weights)
    command = workdir.command(to)
    print(f'corpus: {config.data.corpus} {config.data.path}'.rstrip())
    if config.data.corpus == 'text':
      print('text:      put your text at this path or set --config.data.path')
    print(f'evaluate:  {command} --mode=eval')
    print(f"sample:    {command} --mode=generate --config.generate.prompt='…'")
    print(f'continue:  {command}')
    if weights.vocabulary.kind == 'words':
      text = '--config.data.corpus=text --config.data.path=FILE'
      words = shlex.quote(f'{to / write_weights.WORDS}')
      level = f'--config.data.level=word --config.data.vocab_file={words}'
      print(f'your text: add {text} {level}')
  elif form == 'export':
    write_weights.to_export(to, weights)
  elif form == 'hub':
    card = model_card.card(weights, f'{to}', run=run)
    write_weights.to_hub(to, weights, card)
  elif form == 'original':
    write_weights.to_original(to, weights)
    T = weights.keys.get('train.segment_len', 512)
    arguments = write_weights.arguments(weights, T).items()
    text = ', '.join(f'{k}={x!r}' for k, x in arguments)
    print(f'MemTransformerLM({text})')
  else:
    write_weights.to_hugging_face(to, weights)


def _warn(*lines):
  for line in lines:
    print(f'warning: {line}', file=sys.stderr)


if __name__ == '__main__':
  command_line.run(main)
