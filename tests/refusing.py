"""What is refused, and in which words."""

import pytest

from txl_jax.program.errors import UserError


def refused(call, *args, **more):
  """What a call is told by a UserError, in one line."""
  with pytest.raises(UserError) as e:
    call(*args, **more)
  assert '\n' not in str(e.value)
  return str(e.value)
