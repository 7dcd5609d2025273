import pytest

from txl_jax.program import files


def names(folder):
  return sorted(p.name for p in folder.iterdir())


def test_it_lies_beside_and_goes(tmp_path):
  path = tmp_path / 'new' / 'corpus'
  with pytest.raises(KeyError), files.new_folder(path) as made:
    assert made.parent.parent == path.parent
    assert made.parent.name.startswith('corpus.tmp-')
    (made / 'file').write_text('')
    raise KeyError
  assert names(path.parent) == []


@pytest.mark.parametrize('replace', [True, False])
def test_a_name_that_is_taken(tmp_path, replace):
  path = tmp_path / 'corpus'
  path.mkdir()
  (path / 'old').touch()
  if replace:
    with files.new_folder(path, replace) as made:
      (made / 'new').touch()
  else:
    taken = pytest.raises(FileExistsError, match='corpus')
    with taken, files.new_folder(path):
      pass
  assert names(path) == (['new'] if replace else ['old'])
  assert names(tmp_path) == ['corpus']
