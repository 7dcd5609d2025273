"""The runs that measurements measure: those of tests/modes."""

from tests.modes.conftest import *  # noqa: F403
