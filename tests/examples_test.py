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
  segments = bare.score(weights, tokens)
  bare.T = 13
  np.testing.assert_allclose(
    segments, bare.score(weights, tokens), rtol=1e-5, atol=1e-5
  )
