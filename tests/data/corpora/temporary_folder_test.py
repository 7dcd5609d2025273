import pytest

from txl_jax.data.corpora import temporary_folder


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_folder_lies_beside_and_goes(tmp_path):
  path = tmp_path / 'new' / 'corpus'
  with pytest.raises(KeyError), temporary_folder.beside(path) as folder:
    assert folder.parent == path.parent
    assert folder.name.startswith('corpus.tmp-')
    (folder / 'half').mkdir()
    (folder / 'half' / 'file').write_text('')
    raise KeyError
  assert names(path.parent) == []
