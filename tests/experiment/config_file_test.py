"""What a file of --config may do wrong: each is one line, and its place."""

import os
import pathlib
import sys

import pytest

from tests import refusing
from txl_jax import configs
from txl_jax.experiment import config_file, sections

FOLDER = pathlib.Path(__file__).parents[2] / 'configs'
CONFIGS = sorted(FOLDER.glob('*.py'))

HEAD = 'from txl_jax.configs import common\n\n\ndef get_config():\n'
LINE_6 = '/mine.py, line 6, '


def refused(path):
  parse = config_file.Parser().parse
  return refusing.refused(lambda: sections.read(parse(str(path))))


@pytest.fixture
def mine(tmp_path):
  """Writes mine.py and returns what is said of it."""

  def write(text):
    path = tmp_path / 'mine.py'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return refused(path)

  return write


def test_a_name_is_ours_wherever_it_is_said(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  decoys = tmp_path / 'configs', tmp_path / 'enwik8_24l'
  for folder in decoys:
    folder.mkdir()
    for name in '__init__', 'common', 'enwik8_24l':
      (folder / f'{name}.py').write_text('raise SystemExit("a decoy")')
  assert list(configs.paths()) == [p.stem for p in CONFIGS]
  for path in CONFIGS:
    by_name = config_file.load(path.stem)
    assert by_name.to_dict() == config_file.load(str(path)).to_dict()
  ours, theirs = 'enwik8_24l', 'configs/enwik8_24l.py'
  assert config_file.load(ours).experiment == ours
  assert 'a decoy' in refused(theirs)  # a path is a path
  assert config_file.load('wt103_128m:shaw').model.name == 'shaw'
  (tmp_path / 'mine.py').write_text(
    HEAD + '  c = common.get_config()\n  c.seed = 3\n  return c\n'
  )
  for path in 'mine.py', './mine.py', f'{tmp_path}/mine.py':
    assert config_file.load(path).seed == 3


@pytest.mark.parametrize('name', ['mine', 'configs', '__init__'])
def test_names_that_are_unknown(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'mine').touch()
  names = ', '.join(p.stem for p in CONFIGS)
  assert refused(name) == f'--config={name} is unknown; allowed: {names}, ' + (
    'or a file, such as ./mine.py'
  )


@pytest.mark.parametrize(
  'line, words',
  [
    ('c.model.layers = 3', 'Did you mean "n_layer" instead of "layers"?'),
    ('c.optim.lrr *= 2', 'Did you mean "lr" instead of "lrr"?'),
    ('c.optim.update(lrr=3)', 'Did you mean "lr" instead of "lrr"?'),
    ('c.eval.model.n_layer = 3', 'Key "n_layer" does not exist'),
    ('c.train = 5', 'c.train = 5: TypeError: '),
    ('del c.seed', 'del c.seed: AttributeError: '),
    ("c.update({'train': {'varlen': 'no'}})", 'TypeError: '),
    ("c.model.tie_weights = 'no'", 'TypeError: '),
    ("raise SystemExit('x')", 'SystemExit: x'),
    ('exit(3)', 'exit(3): '),
    ('raise GeneratorExit', ': GeneratorExit'),
    ('1 / 0', 'ZeroDivisionError: division by zero'),
    ("raise KeyError('x')", "KeyError: 'x'"),
    ('get_config()', 'RecursionError'),
    ("common.get_config('x')", "model.name is 'x'; allowed: transformer_xl"),
    ("common.with_model(c, 'x')", "model.name is 'x'; allowed: "),
  ],
)
def test_a_line_that_fails(mine, line, words):
  said = mine(f'{HEAD}  c = common.get_config()\n  {line}\n  return c\n')
  if 'Recursion' not in words:
    assert LINE_6 in said
  assert words in said
  assert 'Other fields' not in said
  assert r'\n' not in said


@pytest.mark.parametrize(
  'line, words',
  [
    ('c.train = None', 'train is None; allowed: a section'),
    ('c.train = dict()', 'train.steps is missing from the config'),
    ('c.eval.model = None', 'eval.model is None; allowed: a section'),
    ('c.model = None', 'model.name is None; allowed: transformer_xl'),
    ("c.model.name = ['a', {}]", 'model.name is '),
    (
      "c.model.name = 'lstm'",
      "'lstm'; allowed: transformer_xl, which has these",
    ),
    ('c.train.more = 3', 'train.more = 3: there is no such key'),
    ('c.optim.lr.x = 3', 'AttributeError'),
    ('c.optim.lr = dict(x=3)', 'optim.lr.x = 3: there is no such key'),
    ('c[3] = 5', 'mine.py: TypeError'),
    ('c.data.me = c', 'RecursionError'),
    ("c.train.steps = '60'", "train.steps is '60'; allowed: a whole number"),
    ('c.optim.lr = 1j', 'optim.lr is 1j; allowed: a number'),
    ("c.model.cutoffs = ('5',)", "model.cutoffs is ('5',); allowed: whole"),
    ('c.data.dir = None', 'data.dir is None; allowed: text'),
    ('c.data.corpus = print', 'data.corpus is <built-in function print>'),
    ("c.eval.model.mem_len = '3'", "eval.model.mem_len is '3'; allowed: a wh"),
  ],
)
def test_a_config_that_is_none(mine, line, words):
  """By `unlock` and `ignore_type`, with which ml_collections checks nothing."""
  parts = 'c', 'c.train', 'c.data', 'c.optim', 'c.model', 'c.eval'
  freely = [f'{x}.unlocked(), {x}.ignore_type()' for x in parts]
  block = f'with {", ".join(freely)}, c.eval.model.ignore_type()'
  text = f'{HEAD}  c = common.get_config()\n  {block}:\n    {line}\n'
  assert words in mine(f'{text}  return c\n')


@pytest.mark.parametrize(
  'text, words',
  [
    ('', "has no attribute 'get_config'"),
    ('def get_config(x): pass', 'TypeError: get_config() missing 1 required'),
    ('def get_config(): pass', 'get_config() returned None, not a Config'),
    ('def get_config(): return {}', 'get_config() returned {}, not a Config'),
    ('\n\n1 +', 'SyntaxError: invalid syntax (mine.py, line 3)'),
    ('import nothing', 'mine.py, line 1, import nothing: ModuleNotFoundError'),
    ('import sys\nsys.exit(0)', 'mine.py, line 2, sys.exit(0): SystemExit: 0'),
    ('def f(): 1/0\ndef get_config(): f()', 'mine.py, line 1, def f(): 1/0:'),
    (bytes(range(256)), 'mine.py: '),
    (b'\xff\xfe', 'mine.py: SyntaxError'),
    (b'x = "\0"', 'cannot contain null bytes'),
    ('(' * 5000, 'mine.py: '),
    (
      HEAD + '  from ml_collections import ConfigDict\n  return ConfigDict()',
      'model.name is None',
    ),
  ],
)
def test_a_file_without_a_config(mine, text, words):
  assert words in mine(text)


def test_a_variant_of_a_file_without_any():
  path = f'{FOLDER}/wt103_base.py'
  assert refused(f'{path}:large') == (
    f"--config={path}: the variant is 'large'; allowed: none, as the file has "
    'no variants'
  )


@pytest.mark.parametrize(
  'name, words',
  [
    ('own_text:bytez', "own_text.py: the variant is 'bytez'; allowed: byt"),
    ('own_txt:bytes', '=own_txt:bytes is unknown; the nearest: own_text:bytes'),
    ('own_text-bytes', 'the nearest: own_text; a variant is NAME:VARIANT'),
    ('enwik8', 'the nearest: enwik8_24l, enwik8_18l, enwik8_12l'),
  ],
)
def test_names_that_are_nearly_right(name, words):
  assert words in refused(name)


def test_what_is_no_file(tmp_path):
  said = refused(tmp_path / 'none.py')
  assert said == f'--config={tmp_path}/none.py cannot be read: ' + (
    'No such file or directory'
  )
  assert 'it is a folder' in refused(tmp_path)
  os.mkfifo(tmp_path / 'pipe')
  assert 'it is a pipe or device' in refused(tmp_path / 'pipe')
  assert 'it is a pipe or device' in refused('/dev/null')


def test_the_home_folder_and_an_argument(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  text = HEAD.replace('()', '(seed)') + '  c = common.get_config()\n'
  text += '  c.seed = int(seed)\n  return c\n'
  (tmp_path / 'mine.py').write_text(text)
  assert config_file.load('~/mine.py:7').seed == 7
  assert config_file._parts('gs://b/c:d/x.py') == ('gs://b/c:d/x.py', [])
  assert config_file._parts('./a:b/x.py:y:z') == ('./a:b/x.py', ['y:z'])
  # What was written within the same second is read, not an older version.
  (tmp_path / 'mine.py').write_text(text.replace('int(seed)', '123456789'))
  assert config_file.load('~/mine.py:7').seed == 123456789
  assert not list(tmp_path.glob('__pycache__'))


def test_an_experiment_has_the_name_of_its_file(tmp_path, monkeypatch):
  text = "VARIANTS = 'a', 'b'\n\n\n" + HEAD.replace('()', '(variant)')
  text += '  c = common.get_config()\n  return c\n'
  (tmp_path / 'mine.py').write_text(text)
  assert config_file.load(f'{tmp_path}/mine.py').experiment == 'mine:a'
  assert config_file.load(f'{tmp_path}/mine.py:b').experiment == 'mine:b'
  own = text.replace('return c', "c.experiment = 'x'\n  return c")
  (tmp_path / 'own.py').write_text(own)
  assert config_file.load(f'{tmp_path}/own.py').experiment == 'x'

  def parsed(*overrides):
    monkeypatch.setattr(sys, 'argv', ['main', *overrides])
    return config_file.Parser().parse(f'{tmp_path}/mine.py').experiment

  same = '--config.seed=3', '--config.data.dir=d', '--config.eval.window=2'
  assert parsed(*same) == 'mine:a'
  for other in 'optim.lr=1', 'model.dropout=0.5', 'train.batch_size=3':
    assert parsed(*same, f'--config.{other}') == 'mine:a+'


def test_interrupted(tmp_path):
  (tmp_path / 'mine.py').write_text('raise KeyboardInterrupt')
  with pytest.raises(KeyboardInterrupt):
    config_file.load(f'{tmp_path}/mine.py')


def test_a_variant_that_fails(tmp_path):
  path, own = tmp_path / 'mine.py', "VARIANTS = 'a', 'b'"
  unknown = "the variant is 'c'; allowed: a, b"
  for head, variant, said in (own, 'a', ''), (own, 'c', unknown), ('', 'c', ''):
    path.write_text(f'{head}\ndef get_config(x): return eval(x)')
    said = said or f"NameError: name '{variant}' is not defined"
    assert refused(f'{path}:{variant}').endswith(f': {said}')
