"""Fixtures of the tests of models."""

import jax
import pytest

from tests.models import every


@pytest.fixture
def x64():
  with jax.enable_x64(True):
    yield


@pytest.fixture(params=every.some(every.NAMES))
def name(request, x64):
  return request.param
