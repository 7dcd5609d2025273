"""Errors as a program tells them."""

import functools

import jax
import pytest

from txl_jax.program import errors

XLA = 'RESOURCE_EXHAUSTED: Out of memory', 'INTERNAL: Out of memory allocating'


@pytest.mark.parametrize(
  'error, line',
  [
    (MemoryError('Unable to allocate 7 GiB'), 'Unable to allocate 7 GiB'),
    (MemoryError(), 'MemoryError'),
    *((jax.errors.JaxRuntimeError(f'{x}\nmore'), x) for x in XLA),
  ],
)
def test_out_of_memory(capsys, error, line):
  with pytest.raises(SystemExit) as e, errors.reporting():
    raise error
  assert e.value.code == 1
  said = capsys.readouterr().err
  assert said.startswith(f'error: out of memory: {line}; allowed: a smaller ')
  assert said.count('\n') == 1


def test_another_error_of_xla_is_not_told():
  with pytest.raises(jax.errors.JaxRuntimeError), errors.reporting():
    raise jax.errors.JaxRuntimeError('INTERNAL: what is this')


def test_a_long_name_is_cut(capsys):
  with pytest.raises(SystemExit), errors.reporting():
    raise errors.UserError(f'data.path: {"x" * 5000} does not exist; allowed')
  said = capsys.readouterr().err
  assert said == f'error: data.path: {"x" * 199}… does not exist; allowed\n'


def test_a_list_that_is_shown():
  assert errors.listed(['a']) == 'a'
  assert errors.listed([*'abcde']) == 'a, b, c, d, e'
  assert errors.listed([*'abcdefg']) == 'a, b, c, d, e and 2 more'
  long = errors.listed(['x' * 75_111, 'y'])
  assert long == 'x' * 199 + '…'
  assert len(errors.shown('x' * 75_111)) == 200
  assert errors.shorten('x' * 200) == 'x' * 200
  assert errors.shown(10**5000) == 'a very long int'
  deep = functools.reduce(lambda x, _: [x], range(100_000), [])
  assert errors.shown(deep) == 'a very long list'


def test_a_reader_that_has_enough_ends_the_program(monkeypatch):
  ended = []
  monkeypatch.setattr(errors.signals, 'end', ended.append)
  with errors.reporting():
    raise BrokenPipeError
  assert ended == [1]


HINT = 'TXL_JAX_TRACEBACK=1 in the environment prints the traceback'


@pytest.mark.parametrize(
  'error, line',
  [
    (errors.UserError('seed is -1'), 'seed is -1'),
    (OSError(5, 'Input/output error'), '[Errno 5] Input/output error; ' + HINT),
    (MemoryError('Unable'), 'out of memory: Unable; allowed: a smaller batch'),
  ],
)
def test_a_traceback_that_is_asked_for(capsys, monkeypatch, error, line):
  """The cause of the error is named before the line that is always last."""

  def said():
    with pytest.raises(SystemExit) as e, errors.reporting():
      try:
        [][7]  # the line of a maintainer's interest
      except IndexError as cause:
        raise error from cause
    assert e.value.code == 1
    return capsys.readouterr().err.splitlines()

  monkeypatch.delenv('TXL_JAX_TRACEBACK', raising=False)
  (alone,) = said()
  assert alone.startswith(f'error: {line}')
  monkeypatch.setenv('TXL_JAX_TRACEBACK', '1')
  *before, last = said()
  assert last == alone
  assert 'IndexError: list index out of range' in before
  assert 'Traceback (most recent call last):' in before
  line = "[][7]  # the line of a maintainer's interest"
  assert any(line in x for x in before)
