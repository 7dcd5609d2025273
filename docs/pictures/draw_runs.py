"""Draws docs/pictures/runs.png: two runs of own_text, and where one looks.

python docs/pictures/draw_runs.py --bytes=runs/bytes --subwords=runs/subwords

The runs are those of docs/own_text.md. Needs the extra `plot`.
"""

import math
import pathlib
from typing import Any

import numpy as np
from absl import app, flags, logging

import txl_jax
from txl_jax.paper import pictures
from txl_jax.runs import metrics_log

_BYTES = flags.DEFINE_string('bytes', 'runs/bytes', 'Run of own_text:bytes.')
_SUBWORDS = flags.DEFINE_string(
  'subwords', 'runs/subwords', 'Run of own_text:subwords.'
)
_LAYER = flags.DEFINE_integer('layer', 3, 'Layer that is shown, from 1.')
_HEAD = flags.DEFINE_integer('head', 4, 'Head of it, from 1.')
TEXT = (
  'Prince Andrew looked at Natasha. She was silent, and he thought that '
  'Natasha was'
)


def curve(folder: str) -> tuple[list[int], list[float]]:
  """Steps of the evaluations of a run, and bits per byte."""
  path = pathlib.Path(folder) / metrics_log.NAME
  found = [r for r in metrics_log.read(path) if r['split'] == 'validation']
  bits = [r.get('bpb', r['nats'] / math.log(2)) for r in found]
  return [r['step'] for r in found], bits


def plot(figure: Any) -> None:
  """The curves on the left, the probabilities of a head on the right."""
  left, right = figure.subplots(1, 2, width_ratios=(3, 4))
  runs = {'bytes': _BYTES.value, 'subwords': _SUBWORDS.value}
  pictures.lines(left, {name: curve(x) for name, x in runs.items()})
  left.set(xlabel='step', title='War and Peace: bits per byte, validation')
  run = txl_jax.load(_SUBWORDS.value)
  ids = run.encode(TEXT)
  looks = run.attention(TEXT, segment_len=len(ids)).probabilities
  right.imshow(
    np.asarray(looks[_LAYER.value - 1, _HEAD.value - 1]), cmap='Blues'
  )
  tokens = [run.decode([i]).strip() or '␣' for i in ids]
  right.set_xticks(range(len(ids)), tokens, rotation=90, fontsize=7)
  right.set_yticks(range(len(ids)), tokens, fontsize=7)
  right.grid(False)
  right.set_title(
    f'layer {_LAYER.value}, head {_HEAD.value}: a row looks at columns'
  )


def main(_: list[str]) -> None:
  """Writes runs.png beside this file."""
  logging.set_verbosity(logging.WARNING)
  pictures.draw(pathlib.Path(__file__).parent / 'runs.png', plot, (11, 4.6))


if __name__ == '__main__':
  app.run(main)
