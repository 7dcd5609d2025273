"""Imports point one way, by package; each may import itself besides."""

import ast
import pathlib

import pytest

from txl_jax import main

ROOT = pathlib.Path(__file__).parents[1]

# {package, or package of data or ops: those below it that it may import}.
# Every package may import program; main, prepare and report stand on top.
_BATCHES = 'models data vocabularies parallel'
_TRAINED = f'{_BATCHES} evaluation generation runs training corpora configs'
_ALL = f'attention ops kernels {_TRAINED} experiment convert paper modes'
RULES = {
  'program': '',
  'attention': '',
  'configs': '',
  'ops': 'attention',
  'parallel': 'ops',
  'kernels': 'attention ops parallel',
  'models': 'attention ops kernels parallel',
  'data': 'vocabularies',
  'vocabularies': '',
  'corpora': 'data vocabularies',
  'runs': _BATCHES,
  'evaluation': _BATCHES,
  'generation': _BATCHES,
  'training': f'kernels {_BATCHES} runs evaluation',
  'experiment': _TRAINED,
  'convert': f'attention {_TRAINED} experiment',
  'paper': f'{_TRAINED} experiment',
  'modes': f'kernels {_TRAINED} experiment convert',
  'api': _ALL,
}
# Libraries that a package must not import.
BANNED = {
  'attention': {'flax', 'numpy', 'optax', 'orbax'},
  'kernels': {'flax', 'numpy', 'optax', 'orbax'},
  'ops': {'flax', 'optax', 'orbax'},
  'parallel': {'flax', 'optax', 'orbax'},
  'data': {'jax', 'flax', 'optax', 'orbax'},
  'vocabularies': {'jax', 'flax', 'optax', 'orbax'},
  'corpora': {'jax', 'flax', 'optax', 'orbax'},
}
# What only those who name it load: other people's files, the paper's figures.
GUESTS = {'convert', 'paper', 'corpora', 'modes'}
TFDS = {'tensorflow', 'tensorflow_datasets'}  # in corpora alone


def imports(path, inner=True):
  """Every module that a file imports; `from a import b` is a.b.

  Without `inner`, only those that it imports when it is imported itself.
  """
  todo = ast.parse(path.read_text()).body
  for node in todo:  # which grows
    if inner or not isinstance(node, ast.FunctionDef):
      todo += [x for x in ast.iter_child_nodes(node) if hasattr(x, 'lineno')]
    if isinstance(node, ast.Import):
      yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: a relative import'
      yield from (f'{node.module}.{name.name}' for name in node.names)


def room(parts):
  """The package of a module whose rule counts: corpora of data/corpora/x.py."""
  inner = parts[0] in ('data', 'ops') and parts[1:2]
  return parts[1] if inner and parts[1] in RULES else parts[0]


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


def test_each_mode_is_a_module_with_run():
  of = '.'.join
  found = {
    of(path.relative_to(ROOT / 'txl_jax').with_suffix('').parts)
    for package in ('modes', 'paper')
    for path in (ROOT / 'txl_jax' / package).glob('*.py')
    if '\ndef run(job: Job)' in path.read_text()
  }
  assert found == {*main.MODES.values()}


def loaded_with(name):
  """The modules of txl_jax that importing one of them loads, by their files."""
  found, todo = set(), [name]
  while todo:
    parts = todo.pop().split('.')
    for n in range(2, len(parts) + 1):
      path = ROOT.joinpath(*parts[:n])
      for file in (path.with_suffix('.py'), path / '__init__.py'):
        if parts[0] == 'txl_jax' and file.exists() and file not in found:
          found.add(file)
          todo += imports(file, inner=False)
  return {x.relative_to(ROOT / 'txl_jax') for x in found}


@pytest.mark.parametrize(
  'name, guests',
  [
    ('api.loading', GUESTS),
    ('training.loop', GUESTS | {'experiment', 'generation'}),
    ('main', GUESTS - {'modes'}),
    ('modes.train', GUESTS - {'modes'}),
  ],
)
def test_guests_are_loaded_when_they_are_named(name, guests):
  loaded = {room([*path.parts]) for path in loaded_with(f'txl_jax.{name}')}
  assert {'models', 'program', 'vocabularies'} <= loaded
  assert not loaded & guests


def test_no_rule_without_a_package():
  inner = '.', 'ops', 'data'
  there = {p.stem for x in inner for p in (ROOT / 'txl_jax' / x).iterdir()}
  assert RULES.keys() <= there
  packages = (ROOT / 'txl_jax').glob('*/__init__.py')
  assert {p.parent.name for p in packages} <= RULES.keys()


def test_the_rules_have_no_cycle():
  order = [*RULES]
  for package, below in RULES.items():
    assert {*below.split()} <= {*RULES} - {package}
  rest = {k: {*x.split()} for k, x in RULES.items()}
  while order:
    free = [k for k in order if not rest[k] & {*order}]
    assert free, order
    order = [k for k in order if k not in free]


def test_the_checker_finds_what_it_is_for():
  for package, name in (
    ('attention', 'flax.linen'),
    ('attention', 'txl_jax.ops.softmax'),
    ('models', 'configs.common'),
    ('data', 'txl_jax.data.corpora.builders'),
    ('training', 'tensorflow_datasets'),
    ('program', 'txl_jax.models.base'),
  ):
    assert violations(package, [name]), name
  assert not violations('models', ['txl_jax.models.base', 'flax.struct'])
  assert not violations('corpora', ['tensorflow_datasets'])
