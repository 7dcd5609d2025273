"""What the tests of the Hub share."""

import pytest

from txl_jax.program.errors import UserError

# For `pytestmark`.
WARNINGS = pytest.mark.filterwarnings(
  'ignore:Use .content=',  # of the client's own
  'ignore:not specified, guessed',  # T, which no file of Hugging Face has
)


def refused(function, *arguments, **more):
  with pytest.raises(UserError) as e:
    function(*arguments, **more)
  assert '\n' not in f'{e.value}'
  return f'{e.value}'
