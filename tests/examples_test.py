import importlib.util
import math
import re
import sys

import jax
import numpy as np
import pytest

from tests import programs

FRAMEWORKS = {'jax': 'jax', 'nnx': 'flax', 'equinox': 'equinox'}
FRAMEWORKS |= {'haiku': 'haiku'}  # of dm-haiku


def test_quickstart():
  done = programs.run([sys.executable, 'examples/quickstart.py'])
  assert done.returncode == 0, done.stderr
  score, text = done.stdout.splitlines()
  nats = float(re.match(r'([\d.]+) nats per byte', score)[1])
  assert abs(nats - math.log(256)) < 0.2  # untrained
  assert text.startswith(("b'", 'b"'))


def example(name):
  """The module examples/attention_in_NAME.py."""
  path = programs.ROOT / f'examples/attention_in_{name}.py'
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(x, marks=() if x == 'jax' else pytest.mark.slow)
    for x in FRAMEWORKS
  ],
)
def test_attention_in_other_models(name, capsys):
  """All compute the same, and learn what only a memory tells."""
  pytest.importorskip(FRAMEWORKS[name])
  bare, module = example('jax'), example(name)
  weights = bare.init(jax.random.key(3))
  tokens = jax.random.randint(jax.random.key(4), (2, 23), 0, bare.V)
  expected = bare.score(weights, tokens)
  found = module.score(module.from_weights(weights), tokens)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  module.main()
  first, _, last = re.findall(r': ([\d.]+) nats', capsys.readouterr().out)
  assert float(first) > 2 and float(last) < 0.05


def test_memory_of_the_example():
  """Segments and their memory are as one long segment that sees as far."""
  bare = example('jax')
  weights = bare.init(jax.random.key(3))
  tokens = jax.random.randint(jax.random.key(4), (2, 14), 0, bare.V)
  segments = jax.jit(bare.score)(weights, tokens)
  bare.T = 13
  whole = jax.jit(lambda *x: bare.score(*x))(weights, tokens)
  np.testing.assert_allclose(segments, whole, rtol=1e-5, atol=1e-5)


def test_music(tmp_path):
  """Pieces come back from their ids; both files are written."""
  path = programs.ROOT / 'examples/music.py'
  spec = importlib.util.spec_from_file_location('music', path)
  music = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(music)
  soprano = [(72, 0, 2), (72, 2, 4), (74, 5, 6)]  # repeated; a rest
  parts = [soprano, [(67, 0, 6)], [(60, 0, 6)], [(48, 1, 6)]]
  ids = music.to_ids(parts)
  assert ids[:8] == [72, 67, 60, 0, 200, 195, 188, 48]
  assert music.to_parts(ids) == parts
  assert music.to_parts(music.transpose(ids, 2))[3] == [(50, 1, 6)]
  assert music.to_parts([200, 0, 0, 0, 9])[0] == [(72, 0, 1)]
  pytest.importorskip('matplotlib')
  music.save_picture(parts, tmp_path / 'x.png', given=2)
  assert (tmp_path / 'x.png').stat().st_size > 1000
  mido = pytest.importorskip('mido')
  music.save_midi(parts, tmp_path / 'x.mid', quarters_per_minute=60)
  assert mido.MidiFile(tmp_path / 'x.mid').length == pytest.approx(1.5)
