"""Command lines."""

import sys
import types

from absl import logging

from txl_jax.program import command_line


def log(folder, message):
  """A line of the log, as from a file of a library."""
  code = compile(f'log({message!r})', f'/lib/{folder}/x.py', 'exec')
  exec(code, {'log': logging.error})


def test_echoes_alone_are_left_out(caplog):
  before = logging.get_verbosity()
  with command_line.without_echoes():
    log('orbax/checkpoint', 'pages')
    log('other', 'a line')
  assert [r.getMessage() for r in caplog.records] == ['a line']
  assert logging.get_verbosity() == before
  log('orbax/checkpoint', 'pages')
  assert caplog.records[-1].getMessage() == 'pages'


def test_what_a_failed_save_says_later_is_left_out(monkeypatch):
  shown = []
  show = lambda unraisable: shown.append(f'{unraisable.exc_value}')
  monkeypatch.setattr(sys, '__unraisablehook__', show)
  monkeypatch.setattr(sys, 'unraisablehook', show)
  with command_line.without_echoes():
    pass
  for text in 'Event loop is closed', 'another':
    sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(text)))
  assert shown == ['another']


def test_paths_of_flags(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  assert command_line.Path().parse('~/a~') == '/home/me/a~'
  assert command_line.Path().parse('a/~') == 'a/~'
