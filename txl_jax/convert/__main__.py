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

import contextlib
import json
import math
import pathlib
import sys

import jax
from absl import app, flags

from txl_jax.convert import reading, vocabularies, writing
from txl_jax.convert.weights import Weights
from txl_jax.program import command_line
from txl_jax.program.errors import UserError

_FROM = flags.DEFINE(command_line.Path(), 'from', '', 'What to convert.')
_TO = flags.DEFINE(
  command_line.Path(), 'to', '', 'What to write; it must be new.'
)
_FORMAT = flags.DEFINE_enum(
  'format',
  'auto',
  writing.FORMATS,
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


# What weights do not say; the names are those of `options`.
_INTEGERS = {
  'attn_type': '0 Transformer-XL, 1 Shaw et al., 2 Vaswani et al., 3 Al-Rfou',
  'n_head': 'Number of heads, which attention type 2 does not tell.',
  'tgt_len': 'T: tokens per segment.',
  'mem_len': 'M: states in the memory.',
  'clamp_len': 'Larger distances count as this one; 0 is off.',
  'div_val': 'How many times narrower each bin is than the one before; by '
  'default as their widths tell.',
}
_SWITCHES = {
  'same_length': 'Whether all queries see the same number of keys.',
  'pre_lnorm': 'Whether norms come before the sublayers.',
  'tie_weight': 'Whether the softmax shares the weights of the embedding; '
  'needed if a file has them only once.',
}
_LISTS = {
  'cutoffs': 'First ids of the tails, such as 20000,40000,200000.',
  'tie_projs': 'Whether the softmax shares each projection of the embedding: '
  'true or false for each bin.',
}
for _define, _named in (
  (flags.DEFINE_integer, _INTEGERS),
  (flags.DEFINE_bool, _SWITCHES),
  (flags.DEFINE_string, _LISTS),
  (flags.DEFINE_float, {'layer_norm_epsilon': 'Epsilon of the layer norms.'}),
):
  for _name, _help in _named.items():
    _define(_name, None, _help)


def _told():
  """The options that flags say."""
  names = *_INTEGERS, *_SWITCHES, *_LISTS, 'layer_norm_epsilon'
  found = {name: flags.FLAGS[name].value for name in names}
  for name in _LISTS:
    with contextlib.suppress(TypeError, ValueError):  # which `options` refuses
      found[name] = json.loads(f'[{found[name]}]')
  return found


def main(_: list[str]) -> None:
  """Converts what the flags say, and prints what was made."""
  for flag in _FROM, _TO:
    if not flag.value:
      raise UserError(f'--{flag.name} is missing; see --help')
  to = pathlib.Path(_TO.value)
  if to.name in ('', '..'):  # as of --to=.
    to = to.resolve()
  form = writing.format_of(to, _FORMAT.value)
  writing.hold_new(to, form)
  source = pathlib.Path(_FROM.value)
  weights = reading.read(source, _told(), _VOCABULARY.value)
  count = sum(math.prod(x.shape) for x in jax.tree.leaves(weights.params))
  name, V = weights.fields['name'], len(weights.vocabulary)
  print(f'{name}, {count:,} parameters, {V:,} symbols ({weights.origin})')
  _warn(*weights.warnings)
  if form == 'workdir':
    config = writing.to_workdir(to, weights)
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
    if not vocabularies.has_tokenizer(weights.vocabulary):
      _warn(
        "Hugging Face's tokenizer needs words, <unk> among them; this "
        f'vocabulary is in {to}/vocabulary.json alone'
      )
  _warn(*writing.left_out(weights, form))


def _warn(*lines):
  for line in lines:
    print(f'warning: {line}', file=sys.stderr)


def entry() -> None:
  """The program: a mistake of the user is one line and status 1."""
  with command_line.without_echoes(), command_line.told():
    app.run(main, flags_parser=command_line.parse)


if __name__ == '__main__':
  entry()
