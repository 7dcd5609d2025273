"""What setup.cfg cannot say: a wheel has configs/ in txl_jax."""

import pathlib
import shutil

import setuptools
from setuptools.command import build_py


class Build(build_py.build_py):
  """Copies them besides the modules."""

  def run(self):
    """Builds txl_jax."""
    super().run()
    # In a clone, also an editable one, they are at the top.
    if not self.editable_mode:
      shutil.copytree(
        'configs',
        pathlib.Path(self.build_lib, 'txl_jax/configs'),
        ignore=shutil.ignore_patterns('__pycache__'),
        dirs_exist_ok=True,
      )


setuptools.setup(cmdclass={'build_py': Build})
