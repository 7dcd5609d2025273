"""What the programs have in common."""

import jax
import pytest
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


@pytest.mark.parametrize(
  'error, line',
  [
    (MemoryError('Unable to allocate 7 GiB'), 'Unable to allocate 7 GiB'),
    (MemoryError(), 'MemoryError'),
    (
      jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory\nmore'),
      'RESOURCE_EXHAUSTED: Out of memory',
    ),
    (
      jax.errors.JaxRuntimeError('INTERNAL: Out of memory allocating 9 bytes.'),
      'INTERNAL: Out of memory allocating 9 bytes.',
    ),
  ],
)
def test_out_of_memory(capsys, error, line):
  with pytest.raises(SystemExit) as e, command_line.told():
    raise error
  assert e.value.code == 1
  said = capsys.readouterr().err
  assert said.startswith(f'error: out of memory: {line}; allowed: a smaller ')
  assert said.count('\n') == 1


def test_another_error_of_xla_is_not_told():
  with pytest.raises(jax.errors.JaxRuntimeError), command_line.told():
    raise jax.errors.JaxRuntimeError('INTERNAL: what is this')


def test_paths_of_flags(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  assert command_line.Path().parse('~/a~') == '/home/me/a~'
  assert command_line.Path().parse('a/~') == 'a/~'
