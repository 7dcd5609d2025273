"""Pushing to the Hub, and the model card."""

import json

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from huggingface_hub import constants

import txl_jax
from tests import hub_server
from tests.convert import program
from tests.convert.hub.conftest import WARNINGS
from tests.refusing import refused
from txl_jax.experiment import sections

pytestmark = WARNINGS


def same(ours, other):
  jax.tree.map(np.testing.assert_array_equal, ours.params, other.params)
  assert other.vocabulary == ours.vocabulary
  text = 'a b\nb a b'
  np.testing.assert_array_equal(other.score(text).nll, ours.score(text).nll)


@pytest.mark.thorough
def test_pushed_and_loaded_bit_for_bit(server, signed_in, run, capsys):
  ours = txl_jax.load(run)
  address = ours.push('hf://me/mine')
  assert address.startswith(f'{server.url}/me/mine/commit/')
  assert server.repositories['me/mine'].private
  assert server.repositories['me/mine'].messages == ['Add model']
  assert 'pushing to hf://me/mine (private)\n' in capsys.readouterr().err
  same(ours, txl_jax.load('hf://me/mine'))
  assert ours.config.eval.segment_len == 512
  names = {'README.md', 'config.json', 'model.safetensors', 'vocabulary.json'}
  assert {*server.files('me/mine')} - {'.gitattributes'} == names


@pytest.mark.thorough
def test_what_is_replaced_is_said_before(server, signed_in, run, capsys):
  server.put('me/mine', {'config.json': b'{}', 'notes.txt': b'kept'})
  txl_jax.load(run).push('hf://me/mine')
  said = 'pushing to hf://me/mine (public), replacing config.json\n'
  assert said in capsys.readouterr().err
  assert server.files('me/mine')['notes.txt'] == b'kept'
  assert server.repositories['me/mine'].messages == ['Replace model']


@pytest.mark.thorough
def test_the_model_card(server, signed_in, run):
  txl_jax.load(run).push('hf://me/mine', private=False)
  assert not server.repositories['me/mine'].private
  text = server.files('me/mine')['README.md'].decode()
  card = huggingface_hub.ModelCard(text)
  assert card.data.library_name == 'txl_jax'
  (result,) = card.data.eval_results
  assert (result.metric_value, result.dataset_split) == (2.25, 'validation')
  for part in "load('hf://me/mine')", '2.25 bits per character', '2023-11-14':
    assert part in text
  assert '\n\n# mine\n\n' in text
  assert f'{run.parent}' not in text


def test_the_card_of_a_run_that_began_with_other_weights(
  server, signed_in, run
):
  ours = txl_jax.load(run)
  first = '/home/a, secret;/my runs/first, step 5, sha256 ab'
  second = 'gs://secret/x/second, step 7, sha256 cd'
  origin = {'origin': f'{second}; before: {first}'}
  private = {'generate.prompt': 'secret', 'eval.nll_file': '/home/secret'}
  ours.config = sections.changed(ours.config, origin | private)
  config = json.loads((run / 'config.json').read_text())
  config |= origin
  config['data'] |= {'corpus': 'text', 'path': '/home/secret/x.txt'}
  (run / 'config.json').write_text(json.dumps(config))
  (run / 'analysis').mkdir()
  found = {
    'checkpoint_step': 7, 'unit': 'bpc', 'bpc': 3.25, 'split': 'test',
    'corpus': 'enwik8-0123', 'eval': {'segment_len': 4, 'model': {}},
    'config': {'model.mem_len': 8},
  }  # fmt: skip
  longer = found | {'eval': {'segment_len': 5, 'model': {'mem_len': 16}}}
  without_memory = found | {'eval': {'segment_len': 6}, 'config': {}}
  other = found | {'checkpoint_step': 8, 'bpc': 9.5}
  each = {'0': {**other, 'unit': 'x', 'checkpoint_step': 7}, '1': other}
  each |= {'2': other | {'checkpoint_step': 6}, 'test': found, 'a': longer}
  each['b'] = without_memory
  for name, record in each.items():
    path = run / f'analysis/eval_{name}.json'
    path.write_text(json.dumps(record))
  ours.push('hf://me/mine')
  text = server.files('me/mine')['README.md'].decode()
  assert 'other weights (not part of the command):' in text
  assert "'--config.data.path=…'" in text
  assert '| enwik8 | test | 3.25 bits' in text  # not that it was trained on
  for lengths in 'T 4, M 8', 'T 5, M 16', 'T 6':
    assert f'| by --mode=eval, {lengths} |' in text
  assert '| text | validation |' in text and '9.5 bits' not in text
  config = json.loads(server.files('me/mine')['config.json'])
  last = 'second, step 7, sha256 cd; before: first, step 5, sha256 ab'
  assert config['origin'] == f'txl_jax, mine, step 7, {last}'
  assert f'\n\nWeights: {config["origin"]}.\n' in text
  assert b'secret' not in b''.join(server.files('me/mine').values())
  again = txl_jax.load('hf://me/mine')
  assert 'before: txl_jax, mine, step 7, second' in again.config.origin


def test_the_card_of_another_step_has_no_figure(server, signed_in, run):
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  for step in 3, 9:
    record = json.loads(lines[0]) | {'step': step}
    (run / 'metrics.jsonl').write_text(json.dumps(record) + '\n')
    txl_jax.load(run).push('hf://me/mine')
    text = server.files('me/mine')['README.md'].decode()
    assert 'model-index' not in text
    assert '3.5' not in text


@pytest.mark.thorough
def test_a_record_that_is_damaged(server, signed_in, run, capsys):
  line = {'step': 7, 'split': 'validation', 'bpc': 2.0, 'time': 1e30}
  (run / 'metrics.jsonl').write_text(f'{json.dumps(line)}\n')
  (run / 'analysis').mkdir()
  (run / 'analysis/x.json').write_text('{')
  txl_jax.load(run).push('hf://me/mine')
  said = capsys.readouterr().err
  assert 'no results in the model card' in said
  assert 'warning: omitted from the model card: ' in said


@pytest.mark.thorough
def test_parameters_that_are_none(server, signed_in, run):
  ours = txl_jax.load(run)
  ours.params = jax.tree.map(lambda x: x * jnp.nan, ours.params)
  assert 'is not finite' in refused(ours.push, 'hf://me/mine')
  assert 'me/mine' not in server.repositories


def test_what_transformers_does_otherwise_is_said(server, signed_in, run):
  ours = txl_jax.load(run)
  message = 'model.memory_init is empty: in Hugg'
  with pytest.warns(UserWarning, match=message) as seen:
    ours.push('hf://me/theirs', format='hugging_face')
  assert __file__ in {x.filename for x in seen}
  assert 'config.json' in server.files('me/theirs')
  card = server.files('me/theirs')['README.md'].decode()
  assert card.startswith('---\nlibrary_name: "transformers"\n')
  assert "TransfoXLTokenizer.from_pretrained('me/theirs')\n```\n" in card


@pytest.mark.thorough
def test_pushes_that_are_refused(server, run, monkeypatch):
  ours = txl_jax.load(run)
  assert 'allowed: a token' in refused(ours.push, 'hf://me/mine')
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)
  answer = 'answers 403: You have no rights here; allowed: a token'
  assert answer in refused(ours.push, 'hf://forbidden/mine')
  assert 'pushes go to main' in refused(ours.push, 'hf://me/mine@v1')
  assert 'hub or hugging_face' in refused(ours.push, 'hf://a/b', format='x')
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')
  assert 'hf://me/mine: ' in refused(ours.push, 'hf://me/mine')


@pytest.mark.thorough
def test_damaged_repositories(server, signed_in, run):
  txl_jax.load(run).push('hf://me/mine')
  whole = server.files('me/mine')
  config = json.loads(whole['config.json'])
  changes = {'model': {}}, {'keys': None}
  changes += {'keys': {'eval.split': 1}}, {'keys': {'eval.split': 'x'}}
  changes += ({'model': config['model'] | {'d_ff': 11}},)
  configs = [json.dumps(config | each).encode() for each in changes]
  for name, data in (
    *(('config.json', x) for x in (whole['config.json'][:99], *configs)),
    ('vocabulary.json', b'{}'),
    ('model.safetensors', whole['model.safetensors'][:-4]),
    ('model.safetensors', b''),
  ):
    server.put('me/mine', whole | {name: data})
    refused(txl_jax.load, 'hf://me/mine')


@pytest.mark.thorough
def test_the_commands(server, signed_in, run, tmp_path, theirs):
  done = program.converted(run, 'hf://me/mine', '--public')
  sha = server.repositories['me/mine'].refs['main']
  assert done.stdout.endswith(f'/commit/{sha}\n')
  assert not server.repositories['me/mine'].private
  program.converted('hf://me/mine', tmp_path / 'back')
  same(txl_jax.load(run), txl_jax.load(tmp_path / 'back'))
  origin = json.loads((tmp_path / 'back/config.json').read_text())['origin']
  assert origin.startswith(f'hf://me/mine@{sha}: txl_jax, model.safetensors, ')
  server.put('org/name', theirs)
  program.converted('hf://org/name', tmp_path / 'theirs')
  program.converted(
    tmp_path / 'theirs', 'hf://me/theirs', '--format=hugging_face'
  )
  assert {'vocab.txt', 'model.safetensors'} <= {*server.files('me/theirs')}
  for flags, part in (
    ((run, tmp_path / 'x.npz', '--public'), '--public with --to='),
    ((run, 'hf://me/mine', '--format=original'), 'hub or hugging_face'),
    ((run, 'hf://mine'), '--to=hf://mine; allowed'),
    (('hf://mine', tmp_path / 'x'), '--from=hf://mine; allowed'),
  ):
    done = program.run(*flags)
    assert done.returncode == 1
    assert part in done.stderr


def test_keys_of_other_versions_are_left_out(server, signed_in, run):
  txl_jax.load(run).push('hf://me/mine')
  whole = server.files('me/mine')
  config = json.loads(whole['config.json'])
  others = [x for x in config['keys'] if x[:5] not in ('eval.', 'gener')]
  assert others == ['train.segment_len']
  keys = {'eval.of_later': 1, 'data.path': '/', 'eval.segment_len': 64}
  keys |= {'eval.nll_file': '/x', 'generate.prompt_file': '/y'}
  data = json.dumps(config | {'keys': keys}).encode()
  server.put('me/mine', whole | {'config.json': data})
  found = txl_jax.load('hf://me/mine').config
  assert (found.eval.segment_len, found.data.path != '/') == (64, True)
  assert (found.eval.nll_file, found.generate.prompt_file) == ('', '')


def test_a_folder_as_it_is_pushed(run, tmp_path):
  program.converted(run, tmp_path / 'out', '--format=hub')
  same(txl_jax.load(run), txl_jax.load(tmp_path / 'out'))
  text = (tmp_path / 'out/README.md').read_text()
  sizes = 'n_layer 1, d_model 8, n_head 2, d_head 3, d_ff 10, mem_len 4'
  assert f', 489 parameters ({sizes}), a vocabulary of 3 bytes.\n' in text
  words = text.replace(' \\\n ', '')
  command = 'transformer_xl --config.checkpoint=latest --config.model.d_ff=10 '
  assert command in words and '--config.model.n_layer=1\n```' in words
  assert '2.25 bits' in text and 'library_name: "txl_jax"' in text
