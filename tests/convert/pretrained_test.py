"""A run that begins with another model's weights."""

import json
import os
import pathlib
import shutil

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests import programs
from tests.convert import program
from tests.data.corpora import books
from tests.modes import runs
from tests.programs import assert_refused
from tests.refusing import refused
from txl_jax.configs import common
from txl_jax.convert import pretrained, read_weights
from txl_jax.data.corpora import preparation
from txl_jax.data.vocabularies import subwords
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.data.vocabularies.words import Words
from txl_jax.experiment import sections
from txl_jax.modes import summary
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.runs import weights_file
from txl_jax.training import step as step_lib

STEPS = 'train.batch_size=8', 'train.steps=6'
STEPS += tuple(f'train.{what}_every=2' for what in ('log', 'eval', 'save'))
# At such a rate what is saved are the weights that it began with.
STILL = 'optim.lr=1e-12'


def use(folder, *overrides, flags=(), **options):
  """In this process."""
  where = dict(config=f'{programs.ROOT}/configs/common.py', flags=flags)
  command = programs.command(folder, *STEPS, *overrides, **where)
  return programs.here(command, **options)


def succeed(folder, *overrides, **options):
  done = use(folder, *overrides, **options)
  assert done.returncode == 0, done.stderr
  assert 'warning' not in done.stderr
  return done


def arrays(folder, step, item='params'):
  """What a checkpoint holds, as numpy arrays."""
  path = folder / f'run/checkpoints/{step}/{item}'
  with ocp.StandardCheckpointer() as reader:
    return jax.tree.map(np.asarray, reader.restore(path))


def near(one, other):
  """The same but for what a still run changes."""
  for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def read(folder, name='config.json'):
  return json.loads((folder / 'run' / name).read_text())


@pytest.fixture(scope='module')
def old(tmp_path_factory):
  """A folder with a finished run, and its export."""
  folder = tmp_path_factory.mktemp('old')
  programs.write_corpus(folder)
  succeed(folder, 'optim.lr=1e-2')
  file = f'--export_file={folder}/model.npz'
  succeed(folder, 'checkpoint=latest', flags=['--mode=export', file])
  return folder


@pytest.fixture
def new(tmp_path):
  """A folder with another text."""
  folder = tmp_path / 'new'
  folder.mkdir()
  programs.write_corpus(folder, 15_000)
  return folder


@pytest.mark.slow
def test_a_run_begins_with_the_weights_of_another(old, new):
  """On another mesh, with another rate, batch, memory and dropout."""
  copy = new.parent / 'copy'
  shutil.copytree(old / 'run', copy)
  options = STILL, f'train.init_from={copy}', 'checkpoint=latest'
  options += 'train.batch_size=16', 'model.mem_len=4', 'model.dropout=0.3'
  options += 'mesh.fsdp=2', 'mesh.tensor=2'
  done = succeed(new, *options, 'train.steps=2', devices=8)
  assert f' parameters from {copy}, step 6, with ' in done.stderr
  fresh = 'its vocabulary; fresh: optimiser, memory (empty), step, schedule'
  assert fresh in done.stderr
  near(arrays(new, 2), arrays(old, 6))
  assert arrays(new, 2, 'training')['step'] == 2
  origin = read(new)['origin']
  sha256 = json.loads((copy / 'checkpoints/6/seal.json').read_text())['sha256']
  assert origin == f'{copy}, step 6, sha256 {sha256}'
  assert f'c.origin = {origin!r}' in (new / 'run/config.py').read_text()

  # It goes on without the other one, and knows it still.
  shutil.rmtree(copy)
  done = succeed(new, *options, 'train.steps=4', devices=8)
  assert 'continuing from step 2' in done.stderr and 'loaded' not in done.stderr
  assert read(new)['origin'] == origin
  host = new / 'run/checkpoints/4/host/metadata'
  assert json.loads(host.read_text())['config']['origin'] == origin
  other = 'train.init_from=/elsewhere', *options[2:]
  done = use(new, STILL, *other, 'train.steps=4', devices=8)
  assert_refused(done, f"train.init_from = '{copy}', this command has '/elsewh")
  flags = ['--mode=eval']
  done = succeed(new, *options, 'train.steps=4', flags=flags, devices=8)
  record = json.loads((new / 'run/analysis/eval_validation.json').read_text())
  assert record['origin'] == origin


@pytest.mark.slow
def test_the_best_checkpoint_is_taken(old, new):
  scored = [r for r in programs.record(old) if r['split'] == 'validation']
  best = min(scored, key=lambda r: r['nats'])
  begin = f'train.init_from={old}/run'
  done = succeed(new, STILL, begin, 'train.steps=2')
  assert f'from {old}/run, step {best["step"]}, with ' in done.stderr
  new.joinpath('run').rename(new / 'before')
  done = succeed(new, STILL, begin, 'train.steps=2', 'checkpoint=4')
  assert f'from {old}/run, step 4, with ' in done.stderr
  near(arrays(new, 2), arrays(old, 4))
  # The step is that of the other run, and not of this one.
  assert read(new)['checkpoint'] == 'best'
  host = new / 'run/checkpoints/2/host/metadata'
  assert json.loads(host.read_text())['config']['checkpoint'] == 'best'
  file = new / 'run/config.py'
  flags = f'--config={file}', f'--workdir={new}/run', '--mode=eval'
  done = programs.here(['python', '-m', 'txl_jax.main', *flags])
  assert done.returncode == 0 and 'step 2' in done.stderr, done.stderr
  done = succeed(new, STILL, begin, 'train.steps=4', 'checkpoint=4')
  host = new / 'run/checkpoints/4/host/metadata'
  assert json.loads(host.read_text())['config']['checkpoint'] == 'best'


@pytest.mark.slow
def test_the_other_run_by_a_relative_path(old, new, monkeypatch):
  """It is written whole, and may be spelled otherwise when the run goes on."""
  monkeypatch.chdir(old)
  succeed(new, STILL, 'train.init_from=run', 'train.steps=2')
  assert read(new)['train']['init_from'] == f'{old}/run'
  assert read(new)['origin'].startswith(f'{old}/run, step ')
  python = (new / 'run/config.py').read_text()
  assert f"c.train.init_from = '{old}/run'" in python
  monkeypatch.chdir(new)
  relative = os.path.relpath(f'{old}/run')
  for steps, path in (4, f'{old}/run/'), (6, relative):
    begin = STILL, f'train.init_from={path}', f'train.steps={steps}'
    done = succeed(new, *begin)
    assert f'continuing from step {steps - 2}' in done.stderr
  succeed(new, STILL, f'train.init_from={relative}', flags=['--mode=eval'])


@pytest.mark.thorough
def test_a_run_begins_with_an_export(old, new):
  file = old / 'model.npz'
  done = succeed(new, STILL, f'train.init_from={file}', 'train.steps=2')
  assert f' parameters from {file}, with its vocabulary' in done.stderr
  near(arrays(new, 2), arrays(old, 6))
  assert read(new)['origin'].startswith(f'{file}, sha256 ')
  scored = [r for r in programs.record(new) if r['split'] == 'validation']
  assert [r['step'] for r in scored] == [0, 2]  # before training, too
  assert scored[0]['nats'] == pytest.approx(scored[1]['nats'], rel=1e-4)


WORDS = Words(('<eos>', 'one', '<unk>'), (), '<eos>', '<unk>', True)


@pytest.mark.thorough
@pytest.mark.parametrize('kind', ['byte', 'word', 'subword'])
def test_a_config_gets_the_shape_and_the_tokens_of_the_model(tmp_path, kind):
  vocabulary = {'byte': runs.VOCABULARY, 'word': WORDS}.get(kind)
  if vocabulary is None:
    pytest.importorskip('tokenizers')
    vocabulary = subwords.learn([b'one and one and one'], 260)
  runs.write(tmp_path, vocabulary=vocabulary, d_ff=12)
  c = common.get_config()
  c.data.update(corpus='text', level='subword', max_size=300, path='x')
  c.data.dir = f'{tmp_path}/of/{kind}'
  c.train.init_from = str(tmp_path)
  c.model.update(n_layer=3, mem_len=7)
  given = sections.read(c), tmp_path / 'new', ['model.n_layer'], True
  c, (line,) = pretrained.adopt(*given)
  assert (c.model.d_ff, c.model.d_model) == (12, 8) and 'model.d_ff 12' in line
  assert (c.model.n_layer, c.model.mem_len) == (3, 7)
  assert (c.data.level, c.data.max_size) == (kind, 0)
  assert c.data.lower == (kind == 'word')
  if kind == 'subword':
    listed, _ = preparation._read_list(c.data)
    assert listed.symbols == vocabulary.symbols
    tokenizer = pathlib.Path(c.data.tokenizer)
    tokenizer.unlink()  # its folder stays, as if other corpora were there
    pretrained.adopt(*given)
    assert tokenizer.exists()
  assert 'model.n_layer is 3, not 1; allowed' in refused(pretrained.find, c)


OF_WORDS = {'level': 'word'}
PLAIN = Words(('one', 'two'))
BYTES = runs.VOCABULARY
TOKENS = 'level', 'eos', 'lower', 'unk', 'raw'


@pytest.mark.parametrize(
  'given, vocabulary, changed, expected',
  [
    ({}, WORDS, (), ('word', True, True, True, False)),
    ({'raw': True}, WORDS, (), ('word', True, True, True, False)),
    ({'raw': True}, BYTES, (), ('byte', True, False, False, True)),
    (OF_WORDS, PLAIN, (), ('word', False, False, False, False)),
    (OF_WORDS | {'unk': True}, PLAIN, (), ('word', False, False, True, False)),
    (OF_WORDS | {'lower': True}, PLAIN, ['data.lower'],
     ('word', False, True, False, False)),
    ({'corpus': 'enwik8', 'path': ''}, WORDS, (), None),
    ({'corpus': 'wt103', 'path': ''} | OF_WORDS, PLAIN, (), None),
    ({}, WORDS, ['data.level'], None),
    (OF_WORDS | {'unk': True}, BYTES, ['data.level'], None),
    ({'level': 'id'}, WORDS, (), None),
    ({}, Ids(('a',)), (), None),
  ],
)  # fmt: skip
def test_the_tokens_of_a_text(
  given, vocabulary, changed, expected, monkeypatch
):
  name = 'lstm' if changed else 'vaswani'  # whose sizes are not taken
  sizes = {'model.name': name, 'model.d_model': 3}
  model = pretrained.Pretrained('x', 'x', vocabulary, sizes)
  monkeypatch.setattr(pretrained, '_read', lambda _: model)
  c = common.get_config()
  c.data.update({'corpus': 'text', 'path': 'x', **given})
  c = sections.read(c)
  found, _ = pretrained.adopt(c, pathlib.Path('nothing'), changed, True)
  of = lambda c: tuple(getattr(c.data, x) for x in TOKENS)
  assert of(found) == (expected or of(c)) and found.model == c.model
  assert pretrained.adopt(c, pathlib.Path('nothing'), (), False) == (c, [])


def test_a_state_dict_of_the_original(tmp_path):
  program.write_state(tmp_path, 'default')
  c = common.get_config()
  c.train.init_from = f'{tmp_path}/state.pt'
  model = pretrained._read(sections.read(c))
  assert (model.name, model.config['model.d_ff']) == (c.train.init_from, 10)


def test_refusals(old, new, tmp_path):
  """In a line each, which leaves nothing."""
  begin = f'train.init_from={old}/run'
  export = f'train.init_from={old}/model.npz'
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'damaged.npz').write_bytes(b'PK')
  for options, words in (
    (
      (begin, 'model.d_ff=48', 'model.n_layer=3', 'model.mem_len=2'),
      ['d_ff is 48, not 32; model.n_layer is 3, not 2; allowed'],
    ),
    ((export, 'model.n_head=1'), ['another model: model.n_head is 1, not 2']),
    ((begin, 'checkpoint=5'), ["checkpoint is '5'; allowed: best, latest"]),
    ((f'train.init_from={tmp_path}/none',), ['none', 'the folder of a run']),
    ((f'train.init_from={tmp_path}/none.npz',), ['none.npz']),
    ((f'train.init_from={tmp_path}/empty',), [f'{tmp_path}/empty has no wei']),
    ((f'train.init_from={tmp_path}/damaged.npz',), ['damaged.npz']),
    ((f'train.init_from={new}/run',), ['the folder of a run']),
    ((begin, 'data.level=word', 'data.unk=True'), ['of words', 'of bytes']),
  ):
    assert_refused(use(new, *options), *words)
    assert not (new / 'run').exists(), options


def test_a_damaged_checkpoint_is_not_taken(old, new, tmp_path):
  shutil.copytree(old / 'run', tmp_path / 'run')
  for step in (tmp_path / 'run/checkpoints').iterdir():
    largest = max((step / 'params').rglob('*'), key=lambda x: x.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
  done = use(new, f'train.init_from={tmp_path}/run')
  assert_refused(done, 'has no usable checkpoint')
  assert not (new / 'run').exists()


def words(folder, names, size=6000, seed=0):
  rng = np.random.default_rng(seed)
  text = [names[i] for i in rng.integers(len(names), size=size)]
  lines = (' '.join(text[i : i + 9]) for i in range(0, size, 9))
  (folder / 'corpus.txt').write_text('\n'.join(lines) + '\n')


def unknown_shares(folder, split):
  """The words of a line, counted in the text: its parts are 90, 5 and 5 %."""
  text = (folder / 'corpus.txt').read_text()
  part = books.split_by_hand(text)[split]
  tokens = books.words_of(part)
  both = [sum(x in unk for x in tokens) / len(tokens) for unk in UNKNOWN]
  return (
    f'{both[0]:.2%} of the {split} tokens are <unk> ({both[1]:.2%} with the '
    "corpus's own vocabulary)"
  )


UNKNOWN = ('six', '<unk>'), ('<unk>',)  # with the other vocabulary, its own


@pytest.mark.slow
def test_words_that_the_model_does_not_know(new, tmp_path):
  """They are <unk>; the run goes on and is evaluated with its vocabulary."""
  old = tmp_path / 'old'
  old.mkdir()
  of_words = 'data.level=word', 'data.unk=True', STILL
  words(old, ['one', 'two', 'three', 'four', '<unk>'])
  words(new, ['four', 'two', 'six', '<unk>'], seed=1)
  done = succeed(old, *of_words, 'train.steps=2')
  assert '<unk>' not in done.stderr
  begin = *of_words, f'train.init_from={old}/run'
  done = succeed(new, *begin, 'train.steps=2')
  shares = ', '.join(unknown_shares(new, x) for x in ('train', 'validation'))
  assert f'with the vocabulary of the model, {shares}\n' in done.stderr
  vocabularies = [read(x, 'vocabulary.json') for x in (old, new)]
  assert vocabularies[0]['symbols'] == vocabularies[1]['symbols']
  near(arrays(old, 2), arrays(new, 2))
  done = succeed(new, *begin, 'train.steps=4')
  assert 'continuing from step 2' in done.stderr
  done = succeed(new, *begin, 'train.steps=4', flags=['--mode=eval'])
  last = programs.record(new)[-1]['ppl']
  assert f'of the model, {unknown_shares(new, "validation")}\n' in done.stderr
  found = float(done.stdout.split('validation: ')[1].split(' ppl')[0])
  assert found == pytest.approx(last, rel=0.05)
  words(new, ['four', 'two', 'five', '<unk>'], seed=1)
  done = use(new, *begin, 'train.steps=4')
  assert_refused(done, 'holds a run on another corpus')


@pytest.mark.thorough
def test_averaged_weights_are_taken(tmp_path):
  runs.write(tmp_path, averaged=3, ones=True)
  c = runs.config()
  c.train.update(init_from=str(tmp_path), batch_size=8, segment_len=8)
  c.optim.average = 'ema'
  c, mesh = sections.read(c), mesh_lib.make_mesh()
  found = pretrained.find(c)
  built = step_lib.build(c, len(found.vocabulary), mesh)
  state = placement.create(built.create, built.abstract)
  state, said = found.into(state, c, mesh)
  for x in jax.tree.leaves(state.params):
    np.testing.assert_array_equal(x, 2)
  assert said.endswith(
    f', averaged over 3 steps from {tmp_path}, step 7, with its vocabulary; '
    'fresh: optimiser, average, memory (empty), step, schedule, log'
  )
  for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(built.abstract)):
    assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


@pytest.mark.thorough
def test_what_an_export_lacks_is_fresh(tmp_path):
  """The classifiers of the layers of al_rfou, which training alone needs."""
  c = runs_of('al_rfou')
  built = step_lib.build(c, 3, mesh := mesh_lib.make_mesh())
  state = placement.create(built.create, built.abstract)
  file = tmp_path / 'model.npz'
  kept = built.model.inference_params(state.params)
  zeros = jax.tree.map(np.zeros_like, jax.device_get(kept))
  fields, symbols = c.model.to_dict(), runs.VOCABULARY.to_json()
  weights_file.save(file, zeros, fields, symbols)
  made = read_weights.read(file).fields  # none of them is trained now
  assert (made['layer_losses'], made['second_target']) == (False, 0)
  c.train.init_from = str(file)
  c = sections.read(c)
  new, said = pretrained.find(c).into(state, c, mesh)
  flat = pretrained._flat(new.params)
  for name, x in flat.items():
    taken = name in pretrained._flat(kept)
    assert taken == (not np.any(x)) or 'bias' in name
    assert taken != (name in said)


def runs_of(model):
  c = common.get_config(model)
  c.model.update(n_layer=2, d_model=8, n_head=2, d_head=3, d_ff=10)
  c.train.update(batch_size=8, segment_len=8)
  return c


def test_the_table_of_shaw_has_its_length(tmp_path):
  c = runs_of('shaw')
  c.model.update(table_len=16, mem_len=8)
  built = step_lib.build(c, 3, None)
  shapes = built.abstract.params
  zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  fields, symbols = c.model.to_dict(), runs.VOCABULARY.to_json()
  weights_file.save(tmp_path / 'model.npz', zeros, fields, symbols)
  c.train.init_from = f'{tmp_path}/model.npz'
  c.model.mem_len = 4
  pretrained.find(sections.read(c))
  c.model.table_len = 12
  said = refused(pretrained.find, sections.read(c))
  assert 'model.table_len is 12, not 16;' in said


def test_summary_has_its_vocabulary(tmp_path, capsys):
  vocabulary = Bytes(tuple(range(9)))
  runs.write(tmp_path, vocabulary=vocabulary)
  c = runs.config()
  c.train.init_from = str(tmp_path)
  summary.run(runs.job(c, tmp_path / 'new'))
  lines = capsys.readouterr().out.splitlines()
  assert any('(9, 8)' in x for x in lines)
  assert not (tmp_path / 'new').exists()


@pytest.mark.slow
def test_a_fresh_run_has_no_origin_and_is_not_begun_again(old, new):
  """Though the config that it uses is that of converted weights."""
  succeed(new, 'origin=elsewhere', 'train.steps=2')
  assert read(new)['origin'] == ''
  done = use(new, f'train.init_from={old}/run', 'train.steps=2')
  assert_refused(done, "holds a run with train.init_from = ''")
