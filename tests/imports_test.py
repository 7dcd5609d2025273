"""Imports point one way, by package; each may import itself besides."""

import ast
import pathlib

import pytest

from txl_jax import main

ROOT = pathlib.Path(__file__).parents[1]

# Every package may import program; prepare and __main__ stand on top.
_CORE = 'models data parallel runs evaluation generation training'
_EXPERIMENT = f'{_CORE} corpora ops experiment shell'
RULES = {
  'program': '',
  'attention': '',
  'ops': 'attention matmul',
  'matmul': 'attention',
  'kernels': 'attention matmul',
  'parallel': 'ops kernels',
  'ring': 'attention matmul',
  'models': 'attention matmul ring ops kernels parallel',
  'data': '',
  'corpora': 'data',
  'runs': 'models data parallel',
  'evaluation': 'models data parallel',
  'generation': 'models data parallel',
  'training': 'models data parallel runs evaluation',
  'experiment': f'{_CORE} corpora',
  'shell': 'experiment configs',
  'configs': '',
  'report': _EXPERIMENT,
  'convert': f'{_EXPERIMENT} attention report',
  'pretrained': f'{_EXPERIMENT} convert',
  'job': f'{_EXPERIMENT} pretrained',
  'analysis': f'{_EXPERIMENT} job',
  'modes': f'{_EXPERIMENT} kernels job analysis',
  'api': f'{_EXPERIMENT} convert job modes',
  'main': f'{_EXPERIMENT} job',  # a mode is imported when it is asked for
}
INNER = {
  'kernels',
  'matmul',
  'ring',
  'corpora',
  'pretrained',
  'job',
  'analysis',
}  # with a rule of their own
# Libraries that a package must not import.
BANNED = {
  'attention': {'flax', 'numpy', 'optax', 'orbax'},
  'ring': {'flax', 'numpy', 'optax', 'orbax'},
  'kernels': {'flax', 'numpy', 'optax', 'orbax'},
  'ops': {'flax', 'optax', 'orbax'},
  'parallel': {'flax', 'optax', 'orbax'},
  'data': {'jax', 'flax', 'optax', 'orbax'},
}
TFDS = {'tensorflow', 'tensorflow_datasets'}  # in corpora alone


def imports(path):
  """Every module that a file imports; `from a import b` is a.b."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: a relative import'
      yield from (f'{node.module}.{name.name}' for name in node.names)


def room(parts):
  """The package of a module whose rule counts: corpora of data/corpora/x.py."""
  return parts[1] if INNER.intersection(parts[1:2]) else parts[0]


def violations(package, names):
  """What a file of a package of txl_jax imports against the rules."""
  names = [name.split('.') for name in names]
  ours = {room(name[1:]) for name in names if name[0] == 'txl_jax' and name[1:]}
  wrong = {name[0] for name in names} & BANNED.get(package, set())
  wrong |= {name[0] for name in names} & {'benchmarks', 'configs', 'tests'}
  if package != 'corpora':
    wrong |= {name[0] for name in names} & TFDS
  if package in RULES:
    wrong |= ours - {'program', package, *RULES[package].split()}
  return sorted(wrong)


FILES = sorted((ROOT / 'txl_jax').rglob('*.py'))


@pytest.mark.parametrize(
  'path', FILES, ids=lambda p: str(p.relative_to(ROOT / 'txl_jax'))
)
def test_imports_point_one_way(path):
  package = room([*path.relative_to(ROOT / 'txl_jax').with_suffix('').parts])
  assert not violations(package, imports(path))


def test_configs_import_little():
  for path in (ROOT / 'configs').glob('*.py'):
    for name in imports(path):
      assert name.split('.')[0] in ('ml_collections', 'txl_jax')


def test_modes_are_modes_and_nothing_else():
  modes = ROOT / 'txl_jax/modes'
  there = {p.relative_to(modes).with_suffix('') for p in modes.rglob('*.py')}
  files = {'.'.join(x.parts) for x in there if x.name != '__init__'}
  assert files == {*main.MODES.values()}


def test_no_rule_without_a_package():
  inner = '.', 'ops', 'data', 'experiment'
  there = {p.stem for x in inner for p in (ROOT / 'txl_jax' / x).iterdir()}
  assert RULES.keys() <= there
  packages = (ROOT / 'txl_jax').glob('*/__init__.py')
  assert {p.parent.name for p in packages} <= RULES.keys()


@pytest.mark.parametrize(
  'package, name',
  [
    ('attention', 'flax.linen'),
    ('attention', 'txl_jax.ops.softmax'),
    ('ops', 'txl_jax.parallel.mesh'),
    ('parallel', 'flax.struct'),
    ('models', 'configs.common'),
    ('runs', 'txl_jax.configs'),
    ('data', 'jax.numpy'),
    ('data', 'txl_jax.data.corpora.builders'),
    ('evaluation', 'txl_jax.training.step'),
    ('training', 'txl_jax.modes.summary'),
    ('training', 'tensorflow_datasets'),
    ('modes', 'benchmarks.compiled_step'),
    ('program', 'txl_jax.models.base'),
    ('experiment', 'txl_jax.experiment.job'),
    ('modes', 'txl_jax.api.text_model'),
    ('main', 'txl_jax.modes.train'),
  ],
)
def test_the_checker_finds_what_it_is_for(package, name):
  assert violations(package, [name])


def test_the_checker_allows_what_is_allowed():
  assert not violations('attention', ['jax.numpy'])
  assert not violations('models', ['txl_jax.models.base', 'flax.struct'])
  assert not violations(
    'corpora', ['tensorflow_datasets', 'txl_jax.program.errors']
  )
  assert not violations('api', ['txl_jax.modes.train'])
