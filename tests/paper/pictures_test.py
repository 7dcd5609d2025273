"""Pictures: whole or not at all, and labels that can be read."""

import struct
import sys

import pytest
from matplotlib.figure import Figure

from txl_jax.paper import pictures
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


def test_lines_have_a_legend_in_the_order_of_their_ends(tmp_path):
  labels = []

  def plot(figure):
    series = {name: ([0, 1], [1, y]) for name, y in zip('abc', (0, 2, 1))}
    series['none'] = [], []
    pictures.lines(figure.subplots(), series)
    (legend,) = figure.legends
    labels.extend(text.get_text() for text in legend.get_texts())

  assert pictures.draw(tmp_path / 'a.png', plot)
  assert labels == ['b', 'c', 'none', 'a']


def test_a_line_changes_its_style_when_the_colours_repeat():
  axes = Figure().subplots()
  pictures.lines(axes, {f'{n}': ([1, 2], [2, 1]) for n in range(19)})
  styles = ['-'] * 6 + ['--'] * 6 + [':'] * 6 + ['-']
  assert [x.get_linestyle() for x in axes.lines] == styles
  assert len({x.get_color() for x in axes.lines}) == 6


def test_the_size_of_a_picture(tmp_path):
  for given, pixels in ((), (700, 400)), (((5, 6.5),), (500, 650)):
    pictures.draw(path := tmp_path / 'a.png', lambda figure: None, *given)
    assert struct.unpack('>II', path.read_bytes()[16:24]) == pixels


def test_short_lines_show_their_points():
  axes = Figure().subplots()
  series = {f'{n}': (range(n), range(n)) for n in (1, 9, 10)}
  pictures.lines(axes, series)
  assert [x.get_marker() for x in axes.lines] == ['o', 'o', '']


def test_a_name_is_no_formula(tmp_path):
  """As that of a folder, which may be anything."""
  plot = lambda figure: figure.subplots().set_title('a$b_{$')
  assert pictures.draw(tmp_path / 'x.png', plot)
