"""The public names, what importing them costs, and the page on them."""

import re
import subprocess
import sys

import pytest

import txl_jax
from tests import pages, programs
from tests.modes import runs
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.modes import export

PAGE = programs.ROOT / 'docs/python.md'


def python(code):
  done = subprocess.run(
    [sys.executable, '-c', code],
    capture_output=True,
    text=True,
    check=True,
    cwd=programs.ROOT,
    env=programs.environment(),
  )
  return done.stdout


def test_all_names_are_there():
  for name in txl_jax.__all__:
    assert getattr(txl_jax, name).__doc__, name
    assert name in dir(txl_jax)
  with pytest.raises(AttributeError, match="has no attribute 'lod'"):
    _ = txl_jax.lod
  stable = PAGE.read_text().partition('## Names')[2]
  assert {*re.findall(r'`(\w+)`', stable)} == {*txl_jax.__all__}


def test_the_package_is_imported_fast():
  code = 'import time; t = time.perf_counter(); import txl_jax; '
  code += 'print(time.perf_counter() - t)'
  assert min(float(python(code)) for _ in range(3)) < 0.1


@pytest.mark.thorough
@pytest.mark.parametrize(
  'name, not_with',
  [
    ('UserError', {'jax', 'flax', 'numpy'}),
    ('attention', {'flax', 'optax', 'orbax', 'tensorflow'}),
    ('load', {'tensorflow', 'tensorflow_datasets', 'matplotlib'}),
  ],
)
def test_a_name_brings_no_more_than_it_needs(name, not_with):
  code = f'import sys, txl_jax; txl_jax.{name}; print(*sys.modules)'
  assert not not_with & {*python(code).split()}


def folder_of_a_run(there, name):
  """Writes a run of bytes into runs/NAME of a folder, and what it exports."""
  folder = there / 'runs' / name
  folder.mkdir(parents=True)
  runs.write(folder, vocabulary=Bytes.all_bytes(), init_std=0.5)
  path = str(there / 'model.npz')
  export.run(runs.job(runs.config(), folder, export_file=path))


@pytest.mark.thorough
def test_the_page(tmp_path, monkeypatch, capsys):
  """Its blocks, one after the other, as a reader would type them."""
  folder_of_a_run(tmp_path, 'x')
  (tmp_path / 'book.txt').write_text('A text of a few words.\n' * 9)
  monkeypatch.chdir(tmp_path)
  blocks = pages.python(PAGE)
  assert len(blocks) == 6
  names = {}
  for block in blocks:
    exec(block, names)
  assert 'a token id of text is 99999999' in capsys.readouterr().out
  assert len(names['four']) == 4 and len(names['several']) == 3
  assert isinstance(names['data'], bytes) and names['looks'].ndim == 4


def test_the_readme(tmp_path, monkeypatch):
  folder_of_a_run(tmp_path, 'enwik8')
  monkeypatch.chdir(tmp_path)
  (block,) = pages.python(programs.ROOT / 'README.md')
  names = {}
  exec(block, names)
  assert names['probabilities'].ndim == 4


@pytest.mark.thorough
def test_the_first_page(tmp_path, monkeypatch, capsys):
  folder_of_a_run(tmp_path, 'book')
  monkeypatch.chdir(tmp_path)
  (block,) = pages.python(programs.ROOT / 'docs/start.md')
  exec(block, {})
  assert float(capsys.readouterr().out.splitlines()[-1]) > 0


@pytest.mark.thorough
def test_the_page_on_trouble(tmp_path, monkeypatch, capsys):
  folder_of_a_run(tmp_path, 'x')
  monkeypatch.chdir(tmp_path)
  capsys.readouterr()
  (block,) = pages.python(programs.ROOT / 'docs/troubleshooting.md')
  exec(block, {})
  found = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert [layer for layer, _ in found] == [str(i) for i in range(len(found))]
  assert len(found) > 1 and all(0 < float(x) < 1 for _, x in found)
