"""One command makes a workdir, and every mode uses it."""

import json
import pathlib
import shlex
import sys

import jax
import numpy as np
import pytest

from tests import programs
from tests.convert import originals, program
from tests.programs import assert_refused
from txl_jax.convert import read_weights, write_weights
from txl_jax.convert.formats import torch_file
from txl_jax.convert.versions import original
from txl_jax.runs import weights_file

# What each needs flags for, and others whose figures `original_test` has.
OTHERS = 'default', 'adaptive_div4', 'vaswani_pre_norm', 'al_rfou_pre_norm'
OTHERS = (pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)


def make(folder, case='default', name='run'):
  a, state = program.write_state(folder, case)
  done = program.converted(
    folder / 'state.pt', folder / name, *program.flags_for(a)
  )
  program.write_text(folder / name, a['n_token'])
  return a, state, done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize('case', ['adaptive', 'shaw_pre_norm', *OTHERS])
def test_a_state_dict_is_evaluated_by_two_commands(case, tmp_path):
  a, state, _ = make(tmp_path, case)
  nll_file = tmp_path / 'nll.npy'
  run = tmp_path / 'run'
  program.used(run, 'eval', f'eval.nll_file={nll_file}')
  tokens = program.validation(run)
  expected = originals.score(a, state, tokens)
  np.testing.assert_allclose(np.load(nll_file), expected, rtol=0, atol=1e-5)
  record = json.loads((run / 'analysis/eval_validation.json').read_text())
  assert record['origin'].startswith('the original PyTorch code, state.pt')


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('made')
  return folder / 'a run', *make(folder, 'adaptive_div4', 'a run')


def test_what_is_printed_and_recorded(made):
  folder, _, _, printed = made
  config = json.loads((folder / 'config.json').read_text())
  named = 'the original PyTorch code, state.pt, sha256 '
  assert config['origin'].startswith(named)
  assert f'({config["origin"]})' in printed
  text = (folder / 'config.py').read_text()
  assert "  c.model.tail_order = 'descending'\n" in text
  assert f'c.origin = {config["origin"]!r}' in text
  assert [x.name for x in (folder / 'checkpoints').iterdir()] == ['0']


@pytest.mark.thorough
def test_what_is_printed_evaluates_a_text(made, tmp_path):
  folder, *_, printed = made
  lines = dict(x.split(':', 1) for x in printed.splitlines() if ':' in x)
  text = tmp_path / 'mine.txt'
  text.write_text('1 2 3 4\n' * 40)
  more = lines['your text'].removeprefix(' add').replace('FILE', f'{text}')
  command = shlex.split(lines['evaluate'] + more)
  done = programs.here([*command, f'--config.data.dir={tmp_path}/data'])
  assert done.returncode == 0, done.stderr
  record = json.loads((folder / 'analysis/eval_validation.json').read_text())
  assert record['corpus'].startswith('text-mine-')
  assert record['tokens'] == 2 * 4  # of two lines


@pytest.mark.thorough
def test_generating_and_exporting(made, tmp_path):
  folder, a, state, _ = made
  done = program.used(
    folder, 'generate', 'generate.prompt=1 2 3', 'generate.max_new_tokens=4'
  )
  ids = done.stdout.split()
  assert ids[:3] == ['1', '2', '3'] and len(ids) == 7
  assert all(0 <= int(x) < a['n_token'] for x in ids)
  path = tmp_path / 'model.npz'
  program.used(folder, 'export', flags=[f'--export_file={path}'])
  model, params, _ = weights_file.load(path)
  back = original.from_params(params, model.config, a['n_token'])
  for name in state.keys() - {'pos_emb.inv_freq'}:
    np.testing.assert_array_equal(back[name], state[name])


STEPS = (
  'train.steps=4',
  'train.batch_size=8',
  'train.eval_every=2',
  'train.log_every=1',
  'train.eval_tokens=40',
)


def near(found, state):
  """Nearly the tensors of a state dict."""
  V = len(found.vocabulary)
  back = original.from_params(found.params, found.section, V)
  for name in state.keys() - {'pos_emb.inv_freq'}:
    np.testing.assert_allclose(back[name], state[name], atol=1e-6)


@pytest.mark.slow
def test_training_begins_with_them_under_any_options(tmp_path):
  _, state, _ = make(tmp_path, 'adaptive_div4')
  run = tmp_path / 'run'
  # At such a rate what is saved are the weights that it began with.
  options = (*STEPS, 'optim.lr=1e-12', 'model.dropout=0.2', 'optim.average=ema')
  weights = contents(run / 'checkpoints/0')
  done = program.used(run, 'train', *options, 'train.save_every=1')
  assert 'beginning with converted weights' in done.stderr
  assert 'warning' not in done.stderr
  found = read_weights.read(run)
  near(found, state)
  assert found.fields['dropout'] == 0.2
  # They are kept beside the newest steps, to compare with. At such a rate, the
  # best step is 2 or 4 by rounding.
  steps = {x.name for x in (run / 'checkpoints').iterdir()}
  assert steps - {'2'} == {'0', '3', '4'}
  assert contents(run / 'checkpoints/0') == weights
  done = program.use(run, 'eval', 'checkpoint=0')
  assert done.returncode == 0 and 'checkpoint: step 0;' in done.stderr


def contents(folder):
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


@pytest.mark.slow
def test_another_run_begins_with_them(tmp_path):
  _, state, _ = make(tmp_path)
  run, new = tmp_path / 'run', tmp_path / 'new'
  begin = f'train.init_from={run}', *STEPS, 'optim.lr=1e-12'
  done = program.use(run, 'train', *begin)
  assert_refused(done, 'train.init_from', 'already holds initial weights')
  flags = [f'--workdir={new}']
  done = program.used(run, 'train', *begin, flags=flags)
  assert f' parameters from {run}, step 0, with its vocab' in done.stderr
  near(read_weights.read(new), state)
  origin = json.loads((new / 'config.json').read_text())['origin']
  assert origin.startswith(f'{run}, step 0, sha256 ')
  assert '; before: the original PyTorch code, state.pt, sha256 ' in origin


@pytest.mark.slow
def test_a_corpus_whose_words_are_in_another_order(tmp_path):
  """As those of the published vocabularies are that occur equally often.

  Training learns from it, and continues as any run does.
  """
  a, state, _ = make(tmp_path)
  run, nll = tmp_path / 'run', tmp_path / 'nll.npy'
  (tmp_path / 'list.txt').write_text('\n'.join(map(str, range(30, -1, -1))))
  other = f'data.vocab_file={tmp_path}/list.txt'
  program.used(run, 'eval', other, f'eval.nll_file={nll}')
  tokens = 30 - program.validation(run)
  expected = originals.score(a, state, tokens)
  np.testing.assert_allclose(np.load(nll), expected, rtol=0, atol=1e-5)

  options = (other, *STEPS, 'train.steps=20', 'optim.lr=3e-3')
  for said in 'beginning with converted weights', 'continuing from step 20':
    done = program.use(run, 'train', *options)
    assert done.returncode == 0 and said in done.stderr, done.stderr
    assert 'warning' not in done.stderr
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  records = map(json.loads, lines)
  evaluated = [x['nats'] for x in records if x['split'] == 'validation']
  assert evaluated[-1] < evaluated[0]
  assert 'corpus.json' in {x.name for x in run.iterdir()}
  assert read_weights.read(run).vocabulary.symbols[:2] == ('0', '1')
  done = program.use(run, 'train', *options, 'train.steps=10')
  assert_refused(done, 'train.steps is 10; allowed: at least 20')


def test_words_whose_counts_do_not_fall(tmp_path):
  """As where <eos> and <unk> come before the counted words."""
  program.write_state(tmp_path, 'default')
  rest = [f'{i} {400 - i}' for i in range(29)]
  lines = '\n'.join(['<eos> 20', '<unk> 0', *rest])
  (tmp_path / 'vocab.txt').write_text(lines + '\n')
  flags = f'--vocabulary={tmp_path}/vocab.txt', '--mem_len=5'
  program.converted(tmp_path / 'state.pt', tmp_path / 'run', *flags)
  program.write_text(tmp_path / 'run', 35)
  program.used(tmp_path / 'run', 'eval')
  words = json.loads((tmp_path / 'run/vocabulary.json').read_text())
  assert words['counts'][:3] == [20, 0, 400]


def test_training_of_another_model_or_on_another_vocabulary(tmp_path):
  make(tmp_path)
  run = tmp_path / 'run'
  done = program.use(run, 'train', *STEPS, 'model.d_ff=12')
  assert_refused(done, 'model.d_ff = 10', '12')
  words = [*range(30), 'another']
  (tmp_path / 'list.txt').write_text('\n'.join(map(str, words)))
  (run / 'text.txt').write_text('1 2 3\n' * 400)
  other = f'data.vocab_file={tmp_path}/list.txt'
  done = program.use(run, 'train', *STEPS, other)
  assert_refused(done, 'differ in vocabulary (31 and ')
  assert not (run / 'metrics.jsonl').exists()


def test_a_run_goes_back_to_a_state_dict(made, tmp_path):
  folder, a, state, _ = made
  done = program.converted(folder, tmp_path / 'back.pt')
  found = torch_file.read(tmp_path / 'back.pt').tensors
  assert {*found} == {*state}
  for name in state.keys() - {'pos_emb.inv_freq'}:
    np.testing.assert_array_equal(found[name], state[name])
  for name in 'n_token', 'd_inner', 'cutoffs', 'div_val', 'mem_len', 'tgt_len':
    value = [*a[name]] if name == 'cutoffs' else a[name]
    assert f'{name}={value}' in done.stdout
  assert done.stderr == ''


def test_a_run_goes_to_hugging_face_and_an_export(made, tmp_path):
  folder = made[0]
  done = program.converted(folder, tmp_path / 'hf', '--format=hugging_face')
  assert 'model.memory_init is empty' in done.stderr
  found = read_weights.read(tmp_path / 'hf')
  assert found.fields['tail_order'] == 'ascending'
  program.converted(folder, tmp_path / 'model.npz')
  done = program.converted(tmp_path / 'model.npz', tmp_path / 'model.pt')
  assert 'tgt_len=512, ext_len=0, mem_len=5)' in done.stdout
  program.converted(tmp_path / 'model.npz', tmp_path / 'again')
  one, other = read_weights.read(folder), read_weights.read(tmp_path / 'again')
  jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
  assert one.fields == other.fields and one.vocabulary == other.vocabulary


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--n_head=0'], ['n_head is 0']),
    (['--cutoffs=a'], ["--cutoffs is 'a'"]),
    (['--vocabulary=bytes'], ['256 symbols, the model 31']),
    (['--vocabulary=nothing.txt'], ['nothing.txt']),
    (['--clamp_len=x'], ['--clamp_len']),
    (['extra'], ["'extra'"]),
    (['--to=x.npz', '--format=original'], ['allowed: export with --to=x.npz']),
    (['--to=x.PT', '--format=workdir'], ['allowed: original with --to=x.PT']),
    (['--to=x.NPZ'], ['--to=x.NPZ; allowed: a name that ends in .npz']),
  ],
)
def test_mistakes_are_one_line(flags, words, tmp_path):
  program.write_state(tmp_path, 'default')
  done = program.run(tmp_path / 'state.pt', tmp_path / 'run', *flags)
  assert_refused(done, *words)
  assert [x.name for x in tmp_path.iterdir()] == ['state.pt']


def test_nothing_is_written_over(made, tmp_path):
  folder = made[0]
  done = program.run(folder, folder)
  assert_refused(done, 'exists; choose a new ')
  (tmp_path / 'file').write_text('mine')
  done = program.run(folder, tmp_path / 'file')
  assert_refused(done, 'exists; choose a new ')
  assert (tmp_path / 'file').read_text() == 'mine'
  (tmp_path / 'file').rename(tmp_path / 'file.pt')
  (tmp_path / 'link.npz').symlink_to(tmp_path / 'nowhere')
  for name in 'file.pt', 'link.npz':  # before anything is read
    done = program.run(tmp_path / 'nothing', tmp_path / name)
    assert_refused(done, f'{name} exists; choose a new name')
  assert (tmp_path / 'file.pt').read_text() == 'mine'


@pytest.mark.parametrize('name', ['a/b/x.pt', 'a/b/x.npz'])
def test_folders_that_are_not_there_are_made(name, made, tmp_path):
  program.converted(made[0], tmp_path / name)
  assert [x.name for x in (tmp_path / 'a/b').iterdir()] == [name[4:]]


def test_one_of_two_at_once_is_told_that_the_other_was_first(
  made, tmp_path, monkeypatch
):
  path, rename = tmp_path / 'x', pathlib.Path.rename

  def after_another(a, b):  # which is done after the first look
    if b == path:
      path.mkdir()
      (path / 'mine').touch()
    return rename(a, b)

  monkeypatch.setattr(write_weights, 'hold_new', lambda *_: None)
  monkeypatch.setattr(pathlib.Path, 'rename', after_another)
  done = program.run(made[0], path)
  assert_refused(done, f'{path} ', 'File exists')
  assert [x.name for x in tmp_path.iterdir()] == ['x']


def test_a_folder_that_is_there_and_empty(made, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  program.converted(made[0], '.')
  assert (tmp_path / 'config.py').exists()


@pytest.mark.thorough
def test_it_is_a_program():
  done = programs.run([sys.executable, '-m', 'txl_jax.convert'])
  assert_refused(done, '--from is missing; see --help')
  assert done.stderr == program.run('', '').stderr


def test_missing_flags_and_files(tmp_path):
  assert_refused(program.run('', tmp_path / 'x'), '--from is missing')
  assert_refused(program.run(tmp_path, ''), '--to is missing')
  assert_refused(program.run(tmp_path, tmp_path / 'x'), 'has no weights')
  done = program.run(tmp_path / 'none.pt', tmp_path / 'x')
  assert_refused(done, 'none.pt')
