"""Command lines."""

import sys
import types
from unittest import mock

import pytest
from absl import flags, logging

from tests.refusing import refused
from txl_jax.program import command_line
from txl_jax.program.errors import UserError


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


def test_errors_in_flags(monkeypatch):
  for error, said in (
    (UserError('x is 1'), 'x is 1'),
    (flags.Error('a' * 300), 'a' * 300),
    (flags.Error('a' * 400), 'a' * 400),
    (flags.Error('a' * 201 + 'b' * 200), 'a' * 200 + '…' + 'b' * 200),
    (TypeError('odd'), '--config: TypeError: odd'),
  ):
    monkeypatch.setattr(flags, 'FLAGS', mock.Mock(side_effect=error))
    assert refused(command_line.parse, ['x']) == said
  monkeypatch.setattr(flags, 'FLAGS', mock.Mock(side_effect=SystemExit(1)))
  with pytest.raises(SystemExit) as e:  # after --help
    command_line.parse(['x'])
  assert e.value.code == 0


def test_a_program_takes_no_arguments(monkeypatch, capsys):
  run = lambda main, flags_parser: main(flags_parser(['x', '1']))
  monkeypatch.setattr(command_line.app, 'run', run)
  monkeypatch.setattr(flags, 'FLAGS', lambda argv: argv)
  with pytest.raises(SystemExit):
    command_line.run(print)
  assert "error: argument '1' is not expected" in capsys.readouterr().err
  said = refused(command_line.parse, ['x', '1', '2', '3', '4'], 2)
  assert said == "argument '3' is not expected"


def test_paths_of_flags(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  assert command_line.Path().parse('~/a~') == '/home/me/a~'
  assert command_line.Path().parse('a/~') == 'a/~'
