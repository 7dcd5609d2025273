"""What the tests of the launchers share."""

import pytest

from tests.launch import launchers


@pytest.fixture
def tools(tmp_path):
  """A folder of tools that write down how they were called, each a line."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  for name in launchers.TOOLS:
    launchers.write_tool(folder, name)
  return folder
