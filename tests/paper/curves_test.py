"""Learning curves of runs, in one plot for each unit."""

import types
from typing import Any

import matplotlib.figure

from txl_jax.paper import curves


def drawn(unit='bpc', **by_split) -> Any:
  """A run with these curves."""
  curve = lambda split: by_split.get(split, {})
  return types.SimpleNamespace(unit=unit, curve=curve)


def axes_of(rows, tmp_path, monkeypatch):
  """The panels of a plot of learning curves."""
  figure = matplotlib.figure.Figure()

  def draw(path, plot, size):
    figure.set_size_inches(size)
    return not plot(figure)

  monkeypatch.setattr(curves.pictures, 'draw', draw)
  assert len([*curves.learning(rows, tmp_path / 'x')]) == bool(figure.axes)
  return figure.axes


def test_curves_of_several_seeds_meet():
  """Where all of them have a figure."""
  x = [1_000_000, 2_000_000, 3_000_000]
  seeds = [4.0, 3.0, 2.0], [6.0, 5.0], []  # the last was not evaluated
  runs = [drawn(validation=dict(zip(x, y))) for y in seeds]
  band = curves._band(runs, 'validation')
  assert band == ([1, 2], [5.0, 4.0], [4.0, 3.0], [6.0, 5.0])


def test_curves_that_do_not_meet(tmp_path, monkeypatch):
  """Are left out: of two seeds, each was evaluated at another step."""
  seeds = {1: 4.0, 2: 3.0}, {5: 2.0}
  rows = {'a': [drawn(validation=x) for x in seeds]}
  assert not axes_of(rows, tmp_path, monkeypatch)


def test_training_and_validation_in_one_plot(tmp_path, monkeypatch):
  """From the first line of the log on, also of a run without validation."""
  rows = {
    'long': [drawn(train={10: 5.0, 20: 4.0}, validation={20: 3.5})],
    'short': [drawn(train={10: 34.0})],
    'words': [drawn('ppl', validation={10: x, 20: 0.1}) for x in (1, 1.1)],
  }
  axes, words = axes_of(rows, tmp_path, monkeypatch)
  found = {
    (x.get_label(), bool(x.get_alpha())): (x.get_color(), len(x.get_xdata()))
    for x in axes.lines
  }
  first, second = curves.pictures.COLOURS[:2]
  assert found == {
    ('long', True): (first, 2), ('long', False): (first, 1),
    ('short', True): (second, 1), ('short', False): (second, 0),
  }  # fmt: skip
  assert (axes.get_yscale(), words.get_yscale()) == ('linear', 'log')
  assert [len(x.collections) for x in (axes, words)] == [2, 1]
  assert [*axes.figure.figure.get_size_inches()] == [7.5, 4 + 4]
  rows = {
    f'{i}{60 * "x"}': [drawn(train={10: 3.0, 20: 0.0})] for i in range(20)
  }
  tenfold = {'a': [drawn(train={10: 3.0, 20: 0.3})]}
  assert axes_of(tenfold, tmp_path, monkeypatch)[0].get_yscale() == 'linear'
  (axes,) = axes_of(rows, tmp_path, monkeypatch)
  assert axes.get_yscale() == 'linear'
  wide, high = axes.figure.figure.get_size_inches()
  assert (round(wide, 2), round(high, 2)) == (8.84, 7.0)  # room for the labels
