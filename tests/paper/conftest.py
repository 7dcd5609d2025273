"""The runs that the evaluation programs measure."""

from tests.modes.subjects import (
  absolute,
  corpus,
  folder,
  naive,
  plain,
  without_matplotlib,
)

__all__ = [
  'absolute',
  'corpus',
  'folder',
  'naive',
  'plain',
  'without_matplotlib',
]
