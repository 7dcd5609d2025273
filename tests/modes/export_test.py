import jax
import numpy as np

from tests.modes import runs
from txl_jax.modes import export
from txl_jax.runs import weights_file


def test_an_export_tells_how_the_model_was_trained(tmp_path):
  params = runs.write(tmp_path)
  config = runs.config(mem_len=9, clamp_len=3, same_length='M')
  path = tmp_path / 'model.npz'
  export.run(runs.job(config, tmp_path, export_file=path))
  model, found, vocabulary = weights_file.load(path)
  then = runs.config().model
  for key in 'mem_len', 'clamp_len', 'same_length':
    assert getattr(model.config, key) == then[key]
  assert vocabulary == runs.VOCABULARY
  jax.tree.map(np.testing.assert_array_equal, found, params)
