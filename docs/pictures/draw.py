"""Draws pictures of README.md and docs/mathematics.md; needs the extra `plot`.

python docs/pictures/draw.py            writes them anew
python docs/pictures/draw.py --output=X  writes them into the folder X
"""

import pathlib
from typing import Any

import jax.numpy as jnp
import matplotlib
import numpy as np
from absl import app, flags
from matplotlib.patches import FancyArrowPatch, Rectangle

from txl_jax import attention
from txl_jax.paper import pictures

_OUTPUT = flags.DEFINE_string(
  'output', str(pathlib.Path(__file__).parent), 'Folder of the pictures.'
)
T, M = 4, 3  # of the shift
S = M + T
BLUE, ORANGE, GREEN = pictures.COLOURS[:3]


def shift(figure: Any) -> None:
  """Scores of distances, before and after the shift, as the code makes them."""
  # Column c of x is the distance S - 1 - c.
  d = np.broadcast_to(np.arange(S)[::-1], (T, S))
  shifted = np.asarray(attention.relative_shift(jnp.asarray(d)))
  seen = np.arange(S) <= np.arange(T)[:, None] + M
  assert (
    shifted[seen] == (np.arange(T)[:, None] + M - np.arange(S))[seen]
  ).all()
  before, after = figure.subplots(1, 2)
  _grid(before, d, np.ones_like(seen))
  _grid(after, shifted, seen)
  before.set_title('(q + v)·r, a product: columns are distances')
  after.set_title('row i moved left by T − 1 − i: columns are keys')
  before.set_xticks(range(S), [f'r{n}' for n in d[0]])
  keys = [*(f'm{n}' for n in range(M)), *(f'x{n}' for n in range(T))]
  after.set_xticks(range(S), keys)


def _grid(axes, d, seen):
  for (i, j), n in np.ndenumerate(d):
    strength = 1 - 0.8 * n / (S - 1)
    colour = (*matplotlib.colors.to_rgb(BLUE), strength)
    face = colour if seen[i, j] else 'none'
    style: Any = dict(facecolor=face, edgecolor=pictures.PALE, linewidth=0.7)
    axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **style))
    if seen[i, j]:
      ink = 'white' if strength > 0.6 else pictures.INK
      axes.text(j, i, f'{n}', ha='center', va='center', color=ink)
  axes.set(xlim=(-0.6, S - 0.4), ylim=(T - 0.4, -0.6), aspect='equal')
  axes.set_yticks(range(T), [f'q{i}' for i in range(T)])
  _bare(axes)


def memory(figure: Any) -> None:
  """Two segments: what a layer reads, and where gradients stop."""
  axes, layers, n = figure.subplots(), 3, 4
  for layer in range(layers + 1):
    for x in range(3 * n):
      segment = x // n
      colour = (pictures.PALE, ORANGE, BLUE)[segment]
      axes.plot(x, layer, 'o', color=colour, markersize=9, zorder=3)
  for layer in range(layers):
    for x, colour in (2 * n - 1, ORANGE), (3 * n - 1, BLUE):
      for key in range(x - 2 * n + 1, x + 1):
        _arrow(axes, (key, layer), (x, layer + 1), colour, key <= x - n)
  for edge in n, 2 * n:
    axes.axvline(edge - 0.5, color=pictures.PALE, linestyle='--', zorder=0)
  for segment, name in enumerate(
    ('segment τ − 1', 'segment τ', 'segment τ + 1')
  ):
    axes.text((segment + 0.5) * n - 0.5, -0.7, name, ha='center')
  names = ['embeddings', *(f'layer {i + 1}' for i in range(layers))]
  axes.set_yticks(range(layers + 1), names)
  axes.set(xticks=[], xlim=(-0.8, 3 * n - 0.2), ylim=(-1, layers + 0.5))
  axes.set_title(
    'What the last state of a segment reads, T = M = 4: '
    'dashed from memory, into which no gradient goes'
  )
  _bare(axes)


def _arrow(axes, start, end, colour, dashed):
  style: Any = dict(
    arrowstyle='-|>',
    mutation_scale=8,
    shrinkA=6,
    shrinkB=6,
    color=colour,
    linewidth=1.1,
    linestyle=(0, (3, 2)) if dashed else 'solid',
  )
  axes.add_patch(FancyArrowPatch(start, end, **style))


def _bare(axes):
  axes.grid(False)
  axes.tick_params(length=0)
  for side in axes.spines.values():
    side.set_visible(False)


# Our speed as a multiple of transformers 4.35.2, lowest to highest: the rows of
# the table in docs/benchmarks.md.
SPEEDS = {
  'training, 2 CPU cores': (1.37, 2.31),
  'training, H100': (4.10, 4.15),
  'scoring, H100': (6.73, 6.90),
  'scoring, memory 1,600, 2 CPU cores': (5.7, 9.9),
  'generation, memory 1,600, 2 CPU cores': (30.8, 36.0),
}


def speed(figure: Any) -> None:
  """Bars of SPEEDS, on a logarithmic axis."""
  axes = figure.subplots()
  for i, (low, high) in enumerate(SPEEDS.values()):
    axes.barh(i, low - 1, left=1, color=BLUE, height=0.6)
    axes.barh(i, high - low, left=low, color=BLUE, alpha=0.4, height=0.6)
    axes.text(high * 1.04, i, f'{low:g} to {high:g} ×', va='center')
  axes.set(xscale='log', xlim=(1, 60))
  axes.set_yticks(range(len(SPEEDS)), SPEEDS)
  axes.set_xticks(ticks := (1, 2, 5, 10, 20, 50), [f'{x} ×' for x in ticks])
  axes.minorticks_off()
  axes.invert_yaxis()
  axes.grid(axis='y', visible=False)
  axes.set_title('tokens per second, as a multiple of transformers 4.35.2')


def main(_: list[str]) -> None:
  """Writes shift.png, memory.png and speed.png."""
  folder = pathlib.Path(_OUTPUT.value)
  sizes = (shift, (9, 3)), (memory, (9, 3.4)), (speed, (9, 2.4))
  for plot, size in sizes:
    pictures.draw(folder / f'{plot.__name__}.png', plot, size)


if __name__ == '__main__':
  app.run(main)
