"""Imports point one way.

  attention <- kernels <- models <- train_state, steps
            <- train, generate, evaluation <- main

metrics, optim, averaging, sharding, checkpoint, log, settings and data are
leaves, or nearly so. A module that RULES does not name is an error: name it
here first.
"""

import ast
import fnmatch
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# What every program is made of.
PARTS = (
  'errors',
  'settings',
  'attention',
  'softmax',
  'vocab_parallel',
  'kernels*',
  'models*',
  'data*',
  'optim',
  'averaging',
  'metrics',
  'sharding',
  'checkpoint',
  'log',
  'train_state',
  'steps',
  'distributed',
)

# Module of txl_jax (or pattern): modules of txl_jax that it may import. The
# first line that fits holds; 'models*' is the package and all below it.
RULES = {
  '__init__': (),
  'errors': (),
  'witness': (),
  'distributed': ('errors', 'witness'),
  'watch': ('errors', 'distributed'),
  'attention': (),
  'rows': (),
  'softmax': ('rows',),
  'sampled_softmax': (),
  'vocab_parallel': ('softmax', 'sharding'),
  'kernels*': ('errors', 'attention', 'kernels*'),
  'models*': (
    'errors',
    'attention',
    'softmax',
    'sampled_softmax',
    'vocab_parallel',
    'kernels*',
    'models*',
  ),
  'data*': ('errors', 'data*'),
  'convert*': ('errors', 'convert*'),
  'settings': ('errors',),
  'optim': ('errors',),
  'averaging': ('errors',),
  'program': ('errors',),
  'progress': ('errors', 'optim', 'averaging'),
  'metrics': ('errors',),
  'profiling': ('errors', 'distributed'),
  'resume': ('errors', 'distributed', 'settings'),
  'sharding': ('errors',),
  'checkpoint': ('errors', 'distributed', 'sharding'),
  'log': ('errors', 'metrics'),
  'train_state': ('errors', 'models*', 'optim', 'metrics', 'sharding'),
  'workdir': ('errors', 'settings', 'data*'),
  'export': ('errors', 'models*', 'data*'),
  'report': (*PARTS, 'evaluation*'),
  'inference': (*PARTS, 'evaluation*', 'generate', 'export', 'workdir'),
  'steps': (
    'errors',
    'attention',
    'averaging',
    'models*',
    'optim',
    'metrics',
    'sharding',
    'train_state',
  ),
  'evaluation*': (*PARTS, 'evaluation*'),
  'generate': PARTS,
  'train': (
    *PARTS,
    'evaluation*',
    'lines',
    'profiling',
    'progress',
    'resume',
    'watch',
    'workdir',
  ),
  'summary': PARTS,
  'lines': (*PARTS, 'profiling', 'summary'),
  'prepare': (*PARTS, 'program'),
  'bench*': (
    *PARTS,
    'bench*',
    'evaluation*',
    'generate',
    'profiling',
    'program',
    'summary',
    'train',
  ),
  'main': ('*',),
}

# Packages that a module must not import; '*' is all but the named ones.
ATTENTION = {'jax'}
CONFIGS = {'ml_collections', 'configs.common'}
# Only preparing a corpus needs these: training starts without them.
HEAVY = {'tensorflow', 'tensorflow_datasets'}
HEAVY_ALLOWED = ('data*', 'prepare')


def fits(module, patterns):
  """'models*' fits models and models.base, not modelsmith."""
  return any(
    module == p.removesuffix('*') or fnmatch.fnmatchcase(module, stem)
    for p in patterns
    for stem in [p.replace('*', '.*') if len(p) > 1 else p]
  )


def imports(path):
  """Every module that a file of the repository imports, full names.

  `from a import b` is a.b where that is a module of this repository.
  """
  package = path.relative_to(ROOT).parent.parts
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
      base = package[: len(package) + 1 - node.level] if node.level else ()
      base = '.'.join([*base, *([node.module] if node.module else [])])
      for name in node.names:
        whole = f'{base}.{name.name}'
        yield whole if is_module(whole) else base


def is_module(name):
  path = ROOT.joinpath(*name.split('.'))
  return path.with_suffix('.py').exists() or (path / '__init__.py').exists()


def modules(folder):
  """(name, file) of every module below a folder of the repository."""
  for path in sorted((ROOT / folder).rglob('*.py')):
    parts = path.relative_to(ROOT).with_suffix('').parts
    if parts[-1] == '__init__' and len(parts) > 2:
      parts = parts[:-1]
    yield '.'.join(parts), path


def found(folder):
  """{module: the set of what it imports}, names without 'txl_jax.'."""
  return {name: set(imports(path)) for name, path in modules(folder)}


OURS = {
  name.removeprefix('txl_jax.'): what for name, what in found('txl_jax').items()
}


def own(names):
  """Those of txl_jax, without the prefix; the bare package is '__init__'."""
  return {
    name.removeprefix('txl_jax').lstrip('.') or '__init__'
    for name in names
    if name.split('.')[0] == 'txl_jax'
  }


def violations(module, names):
  """What a module of txl_jax imports against the rules, as lines of text."""
  rule = next((RULES[p] for p in RULES if fits(module, [p])), None)
  if rule is None:
    return [f'{module} is not in the table of imports_test.py']
  lines = [
    f'{module} must not import txl_jax.{name}'
    for name in sorted(own(names))
    if name != '__init__' and not fits(name, rule)
  ]
  tops = {name.split('.')[0] for name in names}
  if module == 'attention':
    banned = {name for name in tops if name not in ATTENTION}
  elif fits(module, ['kernels*']):
    banned = tops & {'flax', 'configs'}
  else:
    banned = tops & {'configs'}
  if not fits(module, HEAVY_ALLOWED):
    banned |= tops & HEAVY
  return lines + [f'{module} must not import {x}' for x in sorted(banned)]


@pytest.mark.parametrize('module', OURS)
def test_imports_point_one_way(module):
  assert not violations(module, OURS[module])


def test_configs_import_little():
  for name, names in found('configs').items():
    assert names <= CONFIGS, name


def test_checker():
  """The checker finds what it is for."""
  bad = {
    'attention': {'numpy'},
    'kernels.pallas': {'flax.linen'},
    'models.base': {'txl_jax.data.streams'},
    'models.layers': {'configs.common'},
    'metrics': {'txl_jax.log'},
    'steps': {'txl_jax.train'},
    'train': {'tensorflow_datasets'},
    'unheard_of': set(),
    'models_of_wax': set(),
  }
  for module, names in bad.items():
    assert len(violations(module, names)) == 1, module
  good = {
    'attention': {'jax.numpy'},
    'models.base': {'txl_jax.attention', 'txl_jax.models', 'flax.struct'},
    'main': {'txl_jax.train', 'txl_jax'},
    'data.builders': {'tensorflow_datasets', 'txl_jax.errors'},
  }
  for module, names in good.items():
    assert not violations(module, names), module
  here = set(imports(pathlib.Path(__file__)))
  assert here == {'ast', 'fnmatch', 'pathlib', 'pytest'}
