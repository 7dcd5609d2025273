"""The runs that the evaluation programs measure."""

from tests.modes.subjects import *  # noqa: F403
