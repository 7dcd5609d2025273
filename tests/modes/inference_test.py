"""Which parameters of a checkpoint are used; the modes in main_test."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common
from txl_jax import models as models_lib
from txl_jax import settings
from txl_jax.data.vocabulary import Vocabulary
from txl_jax.errors import UserError
from txl_jax.modes import inference
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.runs import checkpoint, seal, weights_file
from txl_jax.runs import console as console_lib
from txl_jax.training import averaging, optim
from txl_jax.training import state as state_lib

VOCABULARY = Vocabulary((32, 97, 98), (5, 3, 2), (10,))
B = 8


def config():
  c = common.get_config()
  c.model.update(n_layer=1, d_model=8, n_head=2, d_head=3, d_ff=10, mem_len=4)
  c.checkpoint = 'latest'
  return c


def write(folder, averaged):
  """A run whose parameters are 1 and their average 2."""
  c = config()
  model = models_lib.build(c.model, len(VOCABULARY))
  averager = None if averaged is None else averaging.Averager(1.0, 0)
  state = jax.jit(
    lambda: state_lib.create(
      model, optim.optimiser(c.optim), B, jax.random.key(0), averager
    )
  )()
  fill = lambda tree, x: jax.tree.map(lambda a: jnp.full_like(a, x), tree)
  state = state.replace(params=fill(state.params, 1))
  if averaged is not None:
    average = fill(state.average, 2).replace(count=jnp.int32(averaged))
    state = state.replace(average=average)
  folder.joinpath('config.json').write_text(settings.to_json(c))
  folder.joinpath('vocabulary.json').write_text(
    json.dumps(VOCABULARY.to_json())
  )
  checkpoint.Checkpoints(folder / 'checkpoints').save(
    7, host={}, **state_lib.split(state)
  )


@pytest.mark.parametrize(
  'averaged, expected', [(None, 1), (0, 1), (1, 2), (30, 2)]
)
def test_load(tmp_path, averaged, expected):
  write(tmp_path, averaged)
  mesh = mesh_lib.make_mesh()
  step, params, count, vocabulary = inference.load(config(), tmp_path, mesh)
  assert (step, count, vocabulary) == (7, averaged or 0, VOCABULARY)
  assert params['vocabulary']['table'].shape == (3, 8)
  for x in jax.tree.leaves(params):
    np.testing.assert_array_equal(x, expected)


@pytest.fixture
def kept(tmp_path):
  """Steps 1, 2 and 3, of which 1 is the best."""
  checkpoints = checkpoint.Checkpoints(tmp_path / 'checkpoints')
  for step in 1, 2, 3:
    host = {'progress': {'best_step': 1}}
    checkpoints.save(step, host, (1,), params={'x': jnp.ones(9)})
  return checkpoint.Checkpoints(checkpoints.folder)


def damage(checkpoints, step):
  path = max((checkpoints.folder / f'{step}/params').rglob('d/*'))
  data = bytearray(path.read_bytes())
  data[0] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
  'which, damaged, step, read',
  [
    ('best', [], 1, {1}),
    ('latest', [], 3, {3}),
    ('2', [], 2, {2}),
    ('best', [3], 1, {1}),  # though the newest says which is the best
    ('best', [1], 3, {1, 3}),
    ('best', [1, 3], 2, {1, 3, 2}),
    ('latest', [3], 2, {3, 2}),
  ],
)
def test_only_what_is_used_is_verified(
  kept, monkeypatch, capfd, which, damaged, step, read
):
  for other in damaged:
    damage(kept, other)
  seen, fingerprint = set(), seal.fingerprint

  def note(path):
    number, item, *_ = path.relative_to(kept.folder).parts
    if item != 'host':
      seen.add(int(number))
    return fingerprint(path)

  monkeypatch.setattr(seal, 'fingerprint', note)
  assert inference._choose(kept, which) == step
  assert seen == read
  err = capfd.readouterr().err
  gone = f'the best checkpoint, 1, is gone; using {step}'
  assert (gone in err) == (which == 'best' and 1 in damaged)
  for other in read - {step}:
    assert err.count(f'checkpoint {other} is damaged') == 1


@pytest.mark.parametrize('which', ['2', '4'])
def test_a_step_that_cannot_be_used(kept, which):
  damage(kept, 2)
  with pytest.raises(UserError) as e:
    inference._choose(kept, which)
  allowed = 'best, latest or one of [3, 2, 1]'
  assert str(e.value) == f"checkpoint is '{which}'; allowed: {allowed}"


def test_no_step_can_be_used(kept, tmp_path):
  for step in 1, 2, 3:
    damage(kept, step)
  for which in 'best', 'latest':
    with pytest.raises(UserError, match=r'can be used; found: \[3, 2, 1\]'):
      inference._choose(kept, which)
    none = checkpoint.Checkpoints(tmp_path / 'none')
    with pytest.raises(UserError, match='can be used; found: nothing'):
      inference._choose(none, which)


@pytest.mark.parametrize('mode', ['evaluate', 'sample', 'write_params'])
def test_another_model(tmp_path, mode):
  write(tmp_path, None)
  c = config()
  c.model.pre_norm = True
  arguments = dict(
    evaluate=[console_lib.Console(silent=True)],
    sample=[],
    write_params=['model.npz'],
  )
  with pytest.raises(UserError, match='pre_norm = False, this command'):
    getattr(inference, mode)(c, tmp_path, *arguments[mode])


def test_another_vocabulary_of_the_same_size(tmp_path):
  write(tmp_path, None)
  (tmp_path / 'text').write_text('x y\n' * 99)
  c = config()
  c.data.update(corpus='text', level='word', path=str(tmp_path / 'text'))
  c.data.dir = str(tmp_path / 'data')
  with pytest.raises(UserError, match=r'\(3 symbols\) than the run in .*\(3\)'):
    inference.evaluate(c, tmp_path, console_lib.Console(silent=True))


def test_no_unk_to_forbid(tmp_path):
  write(tmp_path, None)
  c = config()
  c.generate.update(prompt='a', forbid_unk=True)
  with pytest.raises(UserError, match='forbid_unk is True; allowed: '):
    inference.sample(c, tmp_path)


class Sentences:
  """A corpus of the run's vocabulary."""

  name = digest = 'made here'
  vocabulary = VOCABULARY

  def tokens(self, split):
    del split
    return np.arange(30, dtype=np.uint8) % 3


def test_an_export_tells_how_the_model_was_trained(tmp_path):
  write(tmp_path, None)
  c = config()
  c.model.update(mem_len=9, clamp_len=3, same_length='M')
  inference.write_params(c, tmp_path, tmp_path / 'model.npz')
  model, _, _ = weights_file.load(tmp_path / 'model.npz')
  trained = config().model
  for key in 'mem_len', 'clamp_len', 'same_length':
    assert getattr(model, key) == trained[key]


@pytest.mark.parametrize('boundaries', [1, 2])
def test_other_boundaries_are_told(tmp_path, monkeypatch, capfd, boundaries):
  write(tmp_path, None)
  monkeypatch.setattr(
    inference.preparation, 'locate_or_prepare', lambda data: Sentences()
  )
  c = config()
  c.data.boundaries = boundaries
  c.eval.update(segment_len=4, mem_len=4, segments_per_call=2)
  c.mesh.data = 1
  monkeypatch.setattr(
    inference.mesh_lib,
    'make_mesh',
    lambda section, make=mesh_lib.make_mesh: make(
      section, devices=jax.devices()[:1]
    ),
  )
  inference.evaluate(c, tmp_path, console_lib.Console())
  told = 'warning: data.boundaries is 2 and was 1 in training' in (
    capfd.readouterr().err
  )
  assert told == (boundaries == 2)
