"""The public names, what importing them costs, and the page on them."""

import re
import sys

import pytest

import txl_jax
from tests import pages, programs
from tests.modes import runs
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.modes import export

PAGE = programs.ROOT / 'docs/python.md'


def python(code):
  done = programs.run([sys.executable, '-c', code])
  assert done.returncode == 0, done.stderr
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


@pytest.fixture
def supposed(tmp_path, monkeypatch):
  """The Python of a page, in a folder with the run and export that it names."""

  def of(page, name):
    folder = tmp_path / 'runs' / name
    folder.mkdir(parents=True)
    runs.write(folder, vocabulary=Bytes.all_bytes(), init_std=0.5)
    path = str(tmp_path / 'model.npz')
    export.run(runs.job(runs.config(), folder, export_file=path))
    monkeypatch.chdir(tmp_path)
    return pages.python(programs.ROOT / page)

  return of


@pytest.mark.thorough
def test_the_page(supposed, tmp_path, capsys):
  """Its blocks, one after the other, as a reader would type them."""
  blocks = supposed('docs/python.md', 'x')
  (tmp_path / 'book.txt').write_text('A text of a few words.\n' * 9)
  assert len(blocks) == 6
  names = {}
  for block in blocks:
    exec(block, names)
  assert 'a token id of text is 99999999' in capsys.readouterr().out
  assert len(names['four']) == 4 and len(names['several']) == 3
  assert isinstance(names['data'], bytes) and names['looks'].ndim == 4


def test_the_readme(supposed):
  (block,) = supposed('README.md', 'enwik8')
  names = {}
  exec(block, names)
  assert names['probabilities'].ndim == 4


@pytest.mark.thorough
def test_the_first_page(supposed, capsys):
  (block,) = supposed('docs/start.md', 'book')
  exec(block, {})
  assert float(capsys.readouterr().out.splitlines()[-1]) > 0


@pytest.mark.thorough
def test_the_page_on_trouble(supposed, capsys):
  (block,) = supposed('docs/troubleshooting.md', 'x')
  capsys.readouterr()
  exec(block, {})
  found = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert [layer for layer, _ in found] == [str(i) for i in range(len(found))]
  assert len(found) > 1 and all(0 < float(x) < 1 for _, x in found)
