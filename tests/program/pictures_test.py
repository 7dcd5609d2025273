"""Pictures: whole or not at all, and labels that can be read."""

import sys

import numpy as np
import pytest

from txl_jax.program import pictures
from txl_jax.program.errors import UserError


def test_a_picture_is_whole_or_not_there(tmp_path):
  path = tmp_path / 'a.png'

  def fails(figure):
    raise ValueError('in the middle')

  with pytest.raises(ValueError, match='in the middle'):
    pictures.draw(path, fails)
  assert not list(tmp_path.iterdir())
  assert pictures.draw(path, lambda figure: figure.subplots())
  assert path.read_bytes().startswith(b'\x89PNG')
  with pytest.raises(UserError, match='cannot be written'):
    pictures.draw(tmp_path / 'none/a.png', lambda figure: None)
  assert [x.name for x in tmp_path.iterdir()] == ['a.png']


def test_without_matplotlib(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  plot = lambda figure: pytest.fail('there is no figure')
  assert not pictures.draw(tmp_path / 'a.png', plot)
  assert not list(tmp_path.iterdir())


def test_labels_are_apart(tmp_path):
  """Three lines that end at the same place."""
  heights = []

  def plot(figure):
    axes = figure.subplots()
    series = {name: ([0, 1], [y, 0.5]) for name, y in zip('abc', (0, 1, 2))}
    pictures.lines(axes, series)
    low, high = axes.get_ylim()
    heights.extend((t.xy[1] - low) / (high - low) for t in axes.texts)
    assert sorted(t.get_text() for t in axes.texts) == ['a', 'b', 'c']
    colours = {t.get_text(): t.get_color() for t in axes.texts}
    for line, name in zip(axes.lines, 'abc'):
      assert line.get_color() == colours[name]

  assert pictures.draw(tmp_path / 'a.png', plot)
  assert min(np.diff(sorted(heights))) > 0.05


def test_a_name_is_no_formula(tmp_path):
  """As that of a folder, which may be anything."""
  plot = lambda figure: figure.subplots().set_title('a$b_{$')
  assert pictures.draw(tmp_path / 'x.png', plot)
