"""What setup.cfg cannot say: a wheel has configs/ and launch/ in txl_jax."""

import pathlib
import shutil

import setuptools
from setuptools.command import build_py

# In a clone, and so where that is installed as editable, they are at the top.
INSIDE = {'configs': 'configs', 'launch': 'launchers'}


class Build(build_py.build_py):
  """Copies them besides the modules."""

  def run(self):
    """Builds txl_jax."""
    super().run()
    for name, there in {} if self.editable_mode else INSIDE.items():
      shutil.copytree(
        name,
        pathlib.Path(self.build_lib, 'txl_jax', there),
        ignore=shutil.ignore_patterns('__pycache__'),
        dirs_exist_ok=True,
      )


setuptools.setup(cmdclass={'build_py': Build})
