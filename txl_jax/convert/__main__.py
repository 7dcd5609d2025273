r"""Converts published weights into a workdir, and a model of ours back.

python -m txl_jax.convert --from=transfo-xl-wt103 --to=runs/wt103
python -m txl_jax.convert --from=LM-TFM/model.pt --to=runs/mine \
  --vocabulary=data/cache.pt
python -m txl_jax.convert --from=tf_enwik8/model/model.ckpt-0 \
  --to=runs/enwik8 --vocabulary=tf_enwik8/data/cache.pkl
python -m txl_jax.convert --from=runs/mine --to=model.pt
python -m txl_jax.convert --from=runs/mine --to=mine --format=hugging_face

--from is a file or folder of any version: the original PyTorch code (a state
dict or a whole model.pt), the original TensorFlow code (the prefix of a
checkpoint), Hugging Face (a folder, .safetensors or .bin), NVIDIA's version; or
a workdir or an export of ours. --to is a new workdir; a name that ends in .pt
is a state dict for the original PyTorch code, in .npz an export.

What weights do not say (attention type 2 has no number of heads, a state dict
no mem_len) is said by a config beside them or by a flag, which has the name of
the original code's argument. See docs/weights.md.
"""

from txl_jax.program import terminal

if __name__ == '__main__':
  terminal.begin()  # the other imports take a second

import math
import pathlib
import sys
from collections.abc import Iterator

import jax
from absl import app, flags

from txl_jax.convert import options, reading, run, targets, writing
from txl_jax.convert.sources import SOURCES
from txl_jax.convert.weights import Weights
from txl_jax.program import command_line
from txl_jax.program.errors import UserError

_FROM = flags.DEFINE(command_line.Path(), 'from', '', 'What to convert.')
_TO = flags.DEFINE(
  command_line.Path(), 'to', '', 'What to write; it must be new.'
)
_SOURCE = flags.DEFINE_enum(
  'source',
  'auto',
  ['auto', *SOURCES],
  'Which version --from comes from; auto decides by names.',
)
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  targets.FORMATS,
  'What --to is; auto: original for a name in .pt or .pth, export for .npz, '
  'otherwise a workdir.',
)
_VOCABULARY = flags.DEFINE(
  command_line.Path(),
  'vocabulary',
  '',
  'File with the vocabulary of --from: cache.pkl, cache.pt, vocab.json, a list '
  'of words, or the vocabulary.json of a workdir; or bytes, for all 256. '
  'Without one, tokens are their ids, written as words of digits.',
)


def _define() -> dict[str, flags.FlagHolder]:
  """The flags of options, by their names."""
  integers = {
    'attn_type': '0 Transformer-XL, 1 Shaw et al., 2 Vaswani et al., 3 Al-Rfou',
    'n_head': 'Number of heads, which attention type 2 does not tell.',
    'tgt_len': 'T: tokens per segment.',
    'mem_len': 'M: states in the memory.',
    'clamp_len': 'Larger distances count as this one; 0 is off.',
    'div_val': 'How many times narrower each bin is than the one before; by '
    'default as their widths tell.',
  }
  switches = {
    'same_length': 'Whether all queries see the same number of keys.',
    'pre_lnorm': 'Whether norms come before the sublayers.',
    'tie_weight': 'Whether the softmax shares the weights of the embedding; '
    'needed if a file has them only once.',
  }
  made: dict[str, flags.FlagHolder] = {
    'cutoffs': flags.DEFINE_list(
      'cutoffs', None, 'First ids of the tails, such as 20000,40000,200000.'
    ),
    'tie_projs': flags.DEFINE_list(
      'tie_projs',
      None,
      'Whether the softmax shares each projection of the embedding: true or '
      'false for each bin.',
    ),
    'layer_norm_epsilon': flags.DEFINE_float(
      'layer_norm_epsilon', None, 'Epsilon of the layer norms.'
    ),
  }
  for name, what in integers.items():
    made[name] = flags.DEFINE_integer(name, None, what)
  for name, what in switches.items():
    made[name] = flags.DEFINE_bool(name, None, what)
  return made


_OPTIONS = _define()


def _told():
  """The options that flags say."""
  told = {name: flag.value for name, flag in _OPTIONS.items()}
  found = {name: x for name, x in told.items() if x is not None}
  if cutoffs := found.get('cutoffs'):
    if not all(x.isascii() and x.isdecimal() for x in cutoffs):
      raise UserError(f'--cutoffs={",".join(cutoffs)}; allowed: whole numbers')
    found['cutoffs'] = [*map(int, cutoffs)]
  if tied := found.get('tie_projs'):
    if not {*tied} <= {'true', 'false'}:
      raise UserError(f'--tie_projs={",".join(tied)}; allowed: true and false')
    found['tie_projs'] = [x == 'true' for x in tied]
  return found


def main(_: list[str]) -> None:
  """Converts what the flags say, and prints what was made."""
  for flag in _FROM, _TO:
    if not flag.value:
      raise UserError(f'--{flag.name} is missing; see --help')
  to = pathlib.Path(_TO.value)
  if to.name in ('', '..'):  # as of --to=.
    to = to.resolve()
  form = targets.format_of(to, _FORMAT.value)
  targets.hold_new(to, form)
  given = _SOURCE.value, _told(), _VOCABULARY.value
  weights = reading.read(pathlib.Path(_FROM.value), *given)
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  name, V = weights.fields['name'], len(weights.vocabulary)
  print(f'{name}, {count:,} parameters, {V:,} symbols ({weights.origin})')
  for key, note in weights.notes.items():
    own = weights.fields.get(key.removeprefix('model.'))
    value = weights.keys.get(key, own)
    print(f'  {key} = {value!r}, {note}')
  for line in (*weights.warnings, *_guessed(weights)):
    print(f'warning: {line}', file=sys.stderr)
  if form == 'workdir':
    config = run.write(to, weights)
    of_run = f'python -m txl_jax.main --config={to}/config.py --workdir={to}'
    print(f'origin: {config.origin}')
    print(f'corpus: {config.data.corpus} {config.data.path}'.rstrip())
    if config.data.corpus == 'text':
      print('text:      put one there, or add --config.data.path=FILE')
    print(f'evaluate:  {of_run} --mode=eval')
    print(f"sample:    {of_run} --mode=generate --config.generate.prompt='…'")
    print(f'train on:  {of_run}')
  elif form == 'export':
    writing.to_export(to, weights)
  else:
    _back(form, to, weights)
  print(f'written: {to}')


def _guessed(weights: Weights) -> Iterator[str]:
  """What is said of values that nothing says."""
  notes = weights.notes.items()
  keys = [key for key, note in notes if note.startswith(options.GUESS)]
  if keys:
    yield f'said by nothing, so guessed: {", ".join(keys)}; see the flags above'


def _back(form: str, to: pathlib.Path, weights: Weights) -> None:
  """Writes for another version, and tells what is otherwise there."""
  if form == 'original':
    writing.to_original(to, weights)
    T = weights.keys.get('train.segment_len', 512)
    arguments = writing.arguments(weights, T).items()
    text = ', '.join(f'{k}={x!r}' for k, x in arguments)
    print(f'MemTransformerLM({text})')
  else:
    writing.to_hugging_face(to, weights)
    if not writing.has_tokenizer(weights.vocabulary):
      print(
        "warning: Hugging Face's tokenizer needs words, <unk> among them; this "
        f'vocabulary is in {to}/vocabulary.json alone',
        file=sys.stderr,
      )
  for line in writing.left_out(weights, form):
    print(f'warning: {line}', file=sys.stderr)


def entry() -> None:
  """The program: a mistake of the user is one line and status 1."""
  with command_line.without_echoes(), command_line.told():
    app.run(main, flags_parser=command_line.parse)


if __name__ == '__main__':
  entry()
