"""Preparing a corpus by the names of its options, as the flags do."""

import pathlib

from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import Data


def prepare(corpus, data_dir, manual_dir=None, force=False, **options):
  """The prepared corpus; options may be paths."""
  options = {
    k: str(x) if isinstance(x, pathlib.Path) else x for k, x in options.items()
  }
  return preparation.prepare(
    Data(corpus, str(data_dir), **options), manual_dir=manual_dir, force=force
  )
