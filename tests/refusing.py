"""Calls that raise a UserError."""

import pytest

from txl_jax.program.errors import UserError


def refused(call, *args, **more):
  """Returns the one-line message of the UserError that a call raises."""
  with pytest.raises(UserError) as e:
    call(*args, **more)
  assert '\n' not in str(e.value)
  return str(e.value)
