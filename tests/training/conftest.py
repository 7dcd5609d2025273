"""The Trainer of tests of the training loop."""

from tests.training.fragile import cache, make

__all__ = ['cache', 'make']
