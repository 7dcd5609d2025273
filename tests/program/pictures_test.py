"""Pictures: whole or not at all, and their legends."""

import sys

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


def test_the_legend_has_the_order_of_the_lines(tmp_path):
  def plot(figure):
    axes = figure.subplots()
    ends = {'a': 1, 'b': 3, 'c': 2}
    pictures.lines(axes, {name: ([0, 1], [0, y]) for name, y in ends.items()})
    (legend,) = figure.legends
    assert [x.get_text() for x in legend.get_texts()] == ['b', 'c', 'a']
    drawn = [line.get_color() for line in legend.get_lines()]
    assert drawn == [axes.lines[i].get_color() for i in (1, 2, 0)]

  assert pictures.draw(tmp_path / 'a.png', plot)


def test_a_name_is_no_formula(tmp_path):
  """As that of a folder, which may be anything."""
  plot = lambda figure: figure.subplots().set_title('a$b_{$')
  assert pictures.draw(tmp_path / 'x.png', plot)
