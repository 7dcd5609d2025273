"""Implicit promotion of ranks and dtypes, as strict programs forbid it."""

import contextlib

import jax


@contextlib.contextmanager
def forbidden():
  with jax.numpy_rank_promotion('raise'), jax.numpy_dtype_promotion('strict'):
    yield
