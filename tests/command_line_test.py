"""What the programs have in common."""

import sys
import types

from absl import logging

from txl_jax import command_line


def echo(text):
  """An exception that nothing could catch."""
  sys.unraisablehook(
    types.SimpleNamespace(
      exc_type=RuntimeError,
      exc_value=RuntimeError(text),
      exc_traceback=None,
      err_msg=None,
      object=None,
    )
  )


def log(folder, message):
  """A line of the log, as from a file of a library."""
  code = compile(f'log({message!r})', f'/lib/{folder}/x.py', 'exec')
  exec(code, {'log': logging.error})


def test_echoes_alone_are_left_out(monkeypatch, caplog):
  heard = []
  monkeypatch.setattr(sys, 'unraisablehook', lambda e: heard.append(e))
  before = sys.unraisablehook, logging.get_verbosity()
  with command_line.without_echoes():
    echo('Event loop is closed')
    echo('another')
    log('orbax/checkpoint', 'pages')
    log('other', 'a line')
  assert [str(e.exc_value) for e in heard] == ['another']
  assert [r.getMessage() for r in caplog.records] == ['a line']
  assert (sys.unraisablehook, logging.get_verbosity()) == before
  log('orbax/checkpoint', 'pages')
  assert caplog.records[-1].getMessage() == 'pages'
