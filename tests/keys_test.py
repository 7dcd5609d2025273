"""Every declared key is read, and every key that is read is declared.

The sources are followed by name: `config` is a config or, where a parameter
is annotated with the dataclass of a section, that section; in models/ it is
the section `model`.
"""

import ast
import functools
import pathlib

import pytest

from txl_jax import models
from txl_jax.experiment import sections
from txl_jax.models import stack, transformer_xl
from txl_jax.models.baselines import gcnn
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import settings
from txl_jax.training import averaging, optim

PACKAGE = pathlib.Path(__file__).parents[1] / 'txl_jax'
SECTIONS = settings.sections(sections.defaults())
CLASSES = {
  type(c).__name__: name for name, c in SECTIONS.items() if '.' not in name
}
CLASSES |= {'ConfigDict': ''}
# The keys of a model may be declared in several classes.
CLASSES |= {
  c.__name__: 'model'
  for model in models.MODELS.values()
  for c in model.Config.__mro__[:-1]
}
# Names that are used otherwise, too.
del CLASSES['Sizes'], CLASSES['Config']
METHODS = {'items', 'to_dict', 'update', 'get', 'get_type', 'lock'}
METHODS |= {
  'copy_and_resolve_references',
  'update_from_flattened_dict',
  'ignore_type',
}
# Read as the items of a mapping.
MAPPED = {'model.name', *(f'mesh.{axis}' for axis in mesh_lib.AXES)}


class Reads(ast.NodeVisitor):
  """Collects (section, attribute, whether it is read) of a source file."""

  def __init__(self, default):
    """`config` stands for the section of that name, '' for a whole config."""
    self.found = []
    self._default = default
    self._classes = CLASSES | {'Config': default}
    self._names = {}  # of variables, and the section that each stands for

  def section(self, node):
    """The section that an expression stands for, None for none."""
    match node:
      case ast.Name(id=name) if name in self._names:
        return self._names[name]
      case ast.Name(id='config') | ast.Attribute(attr='config'):
        return self._default
      case ast.Attribute(value=value, attr=attr):
        outer = self.section(value)
        inner = f'{outer}.{attr}'.lstrip('.')
        return inner if outer is not None and inner in SECTIONS else None
      case ast.Call(
        func=ast.Attribute(value=ast.Name(id='settings'), attr='read'),
        args=[declared, _],
      ):
        # The Config of a model, where it is no name.
        return CLASSES.get(getattr(declared, 'id', ''), 'model')
    return None

  def visit_Attribute(self, node):
    section = self.section(node.value)
    if section is not None and self.section(node) is None:
      read = isinstance(node.ctx, ast.Load)
      self.found.append((section, node.attr, read))
    self.generic_visit(node)

  def visit_Assign(self, node):
    self.generic_visit(node)
    for target in node.targets:
      pairs = [(target, node.value)]
      if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = zip(target.elts, node.value.elts)
      for name, value in pairs:
        if isinstance(name, ast.Name):
          self._name(name.id, self.section(value))

  def visit_ImportFrom(self, node):
    self._names |= {a.asname or a.name: None for a in node.names}

  def visit_FunctionDef(self, node):
    if node.name == 'problems':  # a part of the declaration
      return
    before = dict(self._names)
    for arg in (*node.args.args, *node.args.kwonlyargs):
      note = arg.annotation
      name = getattr(note, 'attr', getattr(note, 'id', ''))
      if arg.arg != 'self':
        self._name(arg.arg, self._classes.get(name))
    self.generic_visit(node)
    self._names = before

  def visit_ClassDef(self, node):
    before = dict(self._names)
    self._name('self', self._classes.get(node.name))
    self.generic_visit(node)
    self._names = before

  def _name(self, name, section):
    self._names.pop(name, None)
    if section is not None:
      self._names[name] = section


def reads(source, default=''):
  visitor = Reads(default)
  visitor.visit(ast.parse(source))
  return visitor.found


def declared(model):
  return {*settings.all_keys(sections.defaults(model))}


def file_of(name):
  """That of a class, as a path within the package."""
  return PACKAGE.parent / f'{name.__module__.replace(".", "/")}.py'


@functools.cache
def every_read():
  """(path, section, attribute) of the whole package, and of it what is read."""
  found, read = set(), set()
  for path in PACKAGE.rglob('*.py'):
    in_models = (
      'models' in path.relative_to(PACKAGE).parts and path.stem != '__init__'
    )
    default = 'model' if in_models else ''
    for section, attr, is_read in reads(path.read_text(), default):
      found.add((path, section, attr))
      if is_read:
        read.add((path, section, attr))
  return found, read


def allowed(section, attr):
  """Whether a section has it, or in some model the section `model`."""
  own = [SECTIONS[section], *(m.Config for m in models.MODELS.values())]
  there = own if section == 'model' else own[:1]
  return attr in METHODS or any(hasattr(x, attr) for x in there)


def test_every_key_that_is_read_is_declared():
  known = set().union(*map(declared, models.MODELS))
  for path, section, attr in every_read()[0]:
    name = f'{section}.{attr}'.lstrip('.')
    assert name in known or allowed(section, attr), (path, name)


@pytest.mark.parametrize('model', models.MODELS)
def test_every_key_is_read(model):
  """By files of all models, or by those of this one."""
  own = {file_of(c) for c in models.MODELS[model].__mro__}
  others = set(map(file_of, models.MODELS.values())) - own
  read = {
    f'{section}.{attr}'.lstrip('.')
    for path, section, attr in every_read()[1]
    if path not in others
  }
  assert declared(model) - {*MAPPED, *overridden(model)} <= read


def overridden(model):
  """Keys of the model that evaluation and generation override."""
  keys = settings.keys(sections.defaults(model).eval.model)
  return {
    f'{mode}.model.{key}' for mode in ('eval', 'generate') for key in keys
  }


def choices(name):
  section, own = name.split('.')
  return set(settings.keys(SECTIONS[section])[own].choices)


def test_choices_are_those_of_the_code():
  for name, model in models.MODELS.items():
    assert settings.keys(model.Config)['name'].choices.keys() == {name}
  gates = settings.keys(gcnn.Config)['gate'].choices
  assert gates.keys() == gcnn.PLAIN.keys() | gcnn.GATED.keys()
  assert choices('model.remat') == {'none', *stack.POLICIES}
  spans = [
    transformer_xl.Config(same_length=x, mem_len=7).span
    for x in choices('model.same_length')
  ]
  assert sorted(spans, key=str) == [7, 8, None]
  rates = {
    float(optim.schedule(optim.Optim(schedule=x), 1000)(900))
    for x in choices('optim.schedule')
  }
  assert len(rates) == 5  # plateau is constant but for its scale
  averagers = {
    averaging.averager(optim.Optim(average=x, average_start=9))
    for x in choices('optim.average')
  }
  assert len(averagers) == 4
