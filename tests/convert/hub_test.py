"""The Hugging Face Hub: its own client, and a server on this machine."""

import json
import sys
import time
import types

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants

import txl_jax
from tests import hub_server, pages
from tests.convert import program
from tests.modes import runs
from txl_jax.convert import reading, writing
from txl_jax.convert.formats import torch_file
from txl_jax.convert.hub import client
from txl_jax.data.vocabularies.words import Words
from txl_jax.program.errors import UserError

PLACE = client.Place('org/name', None)
pytestmark = pytest.mark.filterwarnings(
  'ignore:Use .content=',  # of the client's own
  'ignore:said by nothing',  # T, which no file of Hugging Face has
)
NOT_NEEDED = {'corpus.bin', 'tf_model.h5', 'tokenizer_config.json'}
NOT_NEEDED |= {'model-old/model.safetensors'}


@pytest.fixture(scope='module')
def door():
  with hub_server.serving() as made:
    yield made


def become_client(monkeypatch, home, url):
  """Makes this process a client with an empty cache."""
  monkeypatch.setattr(constants, 'ENDPOINT', url)
  template = url + '/{repo_id}/resolve/{revision}/{filename}'
  monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', f'{home / "hub"}')
  monkeypatch.setattr(constants, 'HF_HUB_DISABLE_XET', True)
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
  monkeypatch.setattr(constants, 'HF_TOKEN_PATH', f'{home / "token"}')
  monkeypatch.delenv('HF_TOKEN', raising=False)


@pytest.fixture
def server(door, monkeypatch, tmp_path):
  """The server without repositories, and this process as its client."""
  door.repositories.clear()
  door.cut.clear()
  door.swapped.clear()
  door.status = 0
  door.asked.clear()
  door.ranges.clear()
  become_client(monkeypatch, tmp_path / 'home', door.url)
  return door


@pytest.fixture
def signed_in(monkeypatch):
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)


@pytest.fixture(scope='module')
def theirs(tmp_path_factory):
  """{name: bytes} of a published repository, with words, and more files."""
  folder = tmp_path_factory.mktemp('theirs')
  a, _ = program.write_state(folder, 'adaptive_div4')
  names = 'tgt_len', 'mem_len', 'clamp_len', 'same_length', 'pre_lnorm'
  weights = reading.read(folder / 'state.pt', {k: a[k] for k in names})
  words = [f'w{i}' for i in range(len(weights.vocabulary) - 2)]
  vocabulary = Words(('<eos>', '<unk>', *words), eos='<eos>', unk='<unk>')
  out = folder / 'out'
  writing.to_hugging_face(out, weights._replace(vocabulary=vocabulary))
  arrays = safetensors.numpy.load_file(out / 'model.safetensors')
  torch_file.write(out / 'pytorch_model.bin', arrays)
  (out / 'model.safetensors').unlink()
  (out / 'vocabulary.json').unlink()
  for name in 'corpus.bin', 'tf_model.h5', 'model-old/model.safetensors':
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_bytes(b'not needed')
  paths = (path for path in out.rglob('*') if path.is_file())
  return {f'{x.relative_to(out)}': x.read_bytes() for x in paths}


def refused(function, *arguments, **more):
  with pytest.raises(UserError) as e:
    function(*arguments, **more)
  assert '\n' not in f'{e.value}'
  return f'{e.value}'


def test_a_published_model_is_downloaded_and_used(server, theirs):
  sha = server.put('org/name', theirs)
  found = client.download(PLACE)
  assert found.name == f'hf://org/name@{sha}'
  names = {path.name for path in found.folder.iterdir()}
  assert names == {*theirs} - NOT_NEEDED
  for name in names:
    assert (found.folder / name).read_bytes() == theirs[name]
  with pytest.warns(UserWarning, match='guessed: tgt_len'):
    run = txl_jax.load('hf://org/name')
  assert run.source == found.name
  assert np.isfinite(run.score('w1 w2 w3 w1').nll).all()
  assert set(run.generate('w1', max_new_tokens=5).split())


def test_the_cache_is_used(server, theirs):
  server.put('org/name', theirs)
  first = client.download(PLACE)
  server.asked.clear()
  assert client.download(PLACE) == first
  assert not [path for _, path in server.asked if '/resolve/' in path]


def test_a_revision(server, theirs):
  sha = server.put('org/name', theirs)
  server.put('org/name', theirs | {'config.json': b'{}'})
  found = client.download(client.place(f'hf://org/name@{sha}'))
  assert found.name.endswith(sha)
  assert (found.folder / 'config.json').read_bytes() == theirs['config.json']
  server.put('org/name', theirs, ref='refs/pr/2')
  assert client.download(
    client.place('hf://org/name@refs/pr/2')
  ).folder.is_dir()


def test_safetensors_are_preferred(server, theirs):
  server.put('org/name', theirs | {'model.safetensors': b'x'})
  client.download(PLACE)
  assert not any('.bin' in path for _, path in server.asked if 'model' in path)


def test_a_cut_connection_is_resumed(server, theirs, monkeypatch):
  monkeypatch.setattr(constants, 'DOWNLOAD_CHUNK_SIZE', 256)
  server.put('org/name', theirs)
  server.cut['pytorch_model.bin'] = 1024
  found = client.download(PLACE)
  name = 'pytorch_model.bin'
  assert server.ranges == [(name, 1024)]
  assert (found.folder / name).read_bytes() == theirs[name]


@pytest.mark.parametrize(
  'name, kind', [('pytorch_model.bin', 'sha256'), ('config.json', 'sha1')]
)
def test_a_wrong_checksum(name, kind, server, theirs):
  server.put('org/name', theirs)
  data = bytearray(theirs[name])
  data[len(data) // 2] ^= 1
  server.swapped[name] = bytes(data)
  assert f'{name} has {kind}' in refused(client.download, PLACE)
  server.swapped.clear()
  found = client.download(PLACE)  # what is damaged is not used again
  assert (found.folder / name).read_bytes() == theirs[name]


def test_what_is_not_there(server, theirs):
  assert 'is not there, or private' in refused(client.download, PLACE)
  server.put('org/name', theirs)
  assert 'no revision v9' in refused(
    client.download, PLACE._replace(revision='v9')
  )
  server.put('org/other', {'README.md': b'', 'config.json': b'{}'})
  other = client.Place('org/other', None)
  assert 'has no weights' in refused(client.download, other)


def test_a_private_repository(server, theirs, monkeypatch):
  server.put('org/name', theirs, private=True)
  assert 'HF_TOKEN' in refused(client.download, PLACE)
  monkeypatch.setenv('HF_TOKEN', 'hf_wrong')
  assert 'the Hub answers 401' in refused(client.download, PLACE)
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)
  assert client.download(PLACE).folder.is_dir()


def test_a_gated_repository(server, theirs):
  server.put('org/name', theirs, gated=True)
  assert 'is gated; allowed: a token' in refused(client.download, PLACE)


def test_without_a_network(server, theirs, monkeypatch):
  begin = time.monotonic()
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')
  told = refused(client.download, PLACE)
  assert 'not in the cache, and the Hub is out of reach' in told
  assert time.monotonic() - begin < 10
  monkeypatch.setattr(constants, 'ENDPOINT', server.url)
  server.put('org/name', theirs)
  there = client.download(PLACE)
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')
  assert client.download(PLACE) == there


def test_the_offline_switch(server, theirs, monkeypatch):
  server.put('org/name', theirs)
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  assert 'HF_HUB_OFFLINE is set' in refused(client.download, PLACE)
  assert not server.asked
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
  there = client.download(PLACE)
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  assert client.download(PLACE) == there


def test_the_cache_is_no_answer_to_a_refusal(server, theirs, monkeypatch):
  server.put('org/name', theirs)
  client.download(PLACE)
  monkeypatch.setenv('HF_TOKEN', 'hf_wrong')
  assert 'the Hub answers 401' in refused(client.download, PLACE)
  monkeypatch.delenv('HF_TOKEN')
  server.status = 404
  assert '404' in refused(client.download, PLACE)
  server.status, server.repositories['org/name'].private = 0, True
  assert 'is not there, or private' in refused(client.download, PLACE)


def test_a_token_that_is_none(server, theirs, monkeypatch):
  server.put('org/name', theirs)
  monkeypatch.setenv('HF_TOKEN', 'hf_é')
  refused(client.download, PLACE)


def test_a_hub_out_of_order(server, theirs):
  server.put('org/name', theirs)
  server.status = 500
  begin = time.monotonic()
  assert '500' in refused(client.download, PLACE)
  assert time.monotonic() - begin < 40


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  told = refused(txl_jax.load, 'hf://org/name')
  assert told == (
    "hf://org/name needs huggingface_hub; allowed: pip install 'txl_jax[hub]'"
  )


@pytest.mark.parametrize(
  'text', ['hf://', 'hf://name', 'hf://a/b/c', 'hf://a/b@', 'hf://a/b@x y']
)
def test_names_that_are_none(text):
  allowed = 'allowed: hf://ORG/NAME or hf://ORG/NAME@REVISION'
  assert refused(txl_jax.load, text) == f'{text}; {allowed}'


@pytest.fixture
def run(tmp_path):
  """A run with a record of its training."""
  folder = tmp_path / 'mine'
  folder.mkdir()
  runs.write(folder)
  lines = [
    {'step': 3, 'split': 'validation', 'bpc': 3.5, 'time': 1.7e9},
    {'step': 7, 'split': 'validation', 'bpc': 2.25, 'time': 1.7e9 + 9},
  ]
  text = '\n'.join(map(json.dumps, lines)) + '\n'
  (folder / 'metrics.jsonl').write_text(text)
  return folder


def same(ours, other):
  jax.tree.map(np.testing.assert_array_equal, ours.params, other.params)
  assert other.vocabulary == ours.vocabulary
  text = 'a b\nb a b'
  np.testing.assert_array_equal(other.score(text).nll, ours.score(text).nll)


def test_pushed_and_loaded_bit_for_bit(server, signed_in, run, capsys):
  ours = txl_jax.load(run)
  address = ours.push('hf://me/mine')
  assert address.startswith(f'{server.url}/me/mine/commit/')
  assert server.repositories['me/mine'].private
  assert 'pushing to hf://me/mine (private)\n' in capsys.readouterr().err
  same(ours, txl_jax.load('hf://me/mine'))
  assert ours.config.eval.segment_len == 512
  names = {'README.md', 'config.json', 'model.safetensors', 'vocabulary.json'}
  assert {*server.files('me/mine')} - {'.gitattributes'} == names


def test_what_is_replaced_is_said_before(server, signed_in, run, capsys):
  server.put('me/mine', {'config.json': b'{}', 'notes.txt': b'kept'})
  txl_jax.load(run).push('hf://me/mine')
  said = 'pushing to hf://me/mine (public), replacing config.json\n'
  assert said in capsys.readouterr().err
  assert server.files('me/mine')['notes.txt'] == b'kept'


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
  assert f'{run.parent}' not in text


def test_the_card_of_a_run_that_began_with_other_weights(
  server, signed_in, run
):
  ours = txl_jax.load(run)
  first = '/home/a, secret;/my runs/first, step 5, sha256 ab'
  second = 'gs://secret/x/second, step 7, sha256 cd'
  ours.config.origin = f'{second}; before: {first}'
  config = json.loads((run / 'config.json').read_text())
  config |= {'origin': ours.config.origin}
  config['data'] |= {'corpus': 'text', 'path': '/home/secret/x.txt'}
  (run / 'config.json').write_text(json.dumps(config))
  (run / 'analysis').mkdir()
  found = {
    'checkpoint_step': 7, 'unit': 'bpc', 'bpc': 3.25, 'split': 'test',
    'corpus': 'enwik8-0123', 'eval': {'segment_len': 4},
    'config': {'model.mem_len': 8},
  }  # fmt: skip
  (run / 'analysis/eval_test.json').write_text(json.dumps(found))
  ours.push('hf://me/mine')
  text = server.files('me/mine')['README.md'].decode()
  assert 'other weights, which it does not name:' in text
  assert "'--config.data.path=…'" in text
  assert '| enwik8 | test | 3.25 bits' in text  # not that it was trained on
  assert '| text | validation |' in text
  config = json.loads(server.files('me/mine')['config.json'])
  last = 'second, step 7, sha256 cd; before: first, step 5, sha256 ab'
  assert config['origin'] == f'txl_jax, mine, step 7, {last}'
  assert b'secret' not in b''.join(server.files('me/mine').values())
  again = txl_jax.load('hf://me/mine')
  assert 'before: txl_jax, mine, step 7, second' in again.config.origin


def test_the_card_of_another_step_has_no_figure(server, signed_in, run):
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  (run / 'metrics.jsonl').write_text(lines[0] + '\n')  # of step 3
  txl_jax.load(run).push('hf://me/mine')
  text = server.files('me/mine')['README.md'].decode()
  assert 'model-index' not in text
  assert '3.5' not in text


def test_a_record_that_is_damaged(server, signed_in, run, capsys):
  line = {'step': 7, 'split': 'validation', 'bpc': 2.0, 'time': 1e30}
  (run / 'metrics.jsonl').write_text(f'{json.dumps(line)}\n')
  txl_jax.load(run).push('hf://me/mine')
  assert 'the card has no figures' in capsys.readouterr().err


def test_parameters_that_are_none(server, signed_in, run):
  ours = txl_jax.load(run)
  ours.params = jax.tree.map(lambda x: x * jnp.nan, ours.params)
  assert 'is not finite' in refused(ours.push, 'hf://me/mine')
  assert 'me/mine' not in server.repositories


def test_a_users_prompt_and_files_stay_at_home(server, signed_in, run):
  ours = txl_jax.load(run)
  ours.config.generate.prompt = 'secret'
  ours.config.eval.nll_file = '/home/secret'
  ours.push('hf://me/mine')
  for data in server.files('me/mine').values():
    assert b'secret' not in data


def test_what_transformers_does_otherwise_is_said(server, signed_in, run):
  ours = txl_jax.load(run)
  with pytest.warns(UserWarning, match='model.memory_init is empty: in Hugg'):
    ours.push('hf://me/theirs', format='hugging_face')
  assert 'config.json' in server.files('me/theirs')


def test_pushes_that_are_refused(server, run, monkeypatch):
  ours = txl_jax.load(run)
  assert 'allowed: a token' in refused(ours.push, 'hf://me/mine')
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)
  answer = 'answers 403: You have no rights here; allowed: a token'
  assert answer in refused(ours.push, 'hf://forbidden/mine')
  assert 'whose main is written' in refused(ours.push, 'hf://me/mine@v1')
  assert 'hub or hugging_face' in refused(ours.push, 'hf://a/b', format='x')
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')
  assert 'hf://me/mine: ' in refused(ours.push, 'hf://me/mine')


def test_damaged_repositories(server, signed_in, run):
  txl_jax.load(run).push('hf://me/mine')
  whole = server.files('me/mine')
  config = json.loads(whole['config.json'])
  for name, data in (
    ('config.json', whole['config.json'][:99]),
    ('config.json', json.dumps(config | {'model': {}}).encode()),
    ('config.json', json.dumps(config | {'keys': None}).encode()),
    ('config.json', json.dumps(config | {'keys': {'eval.split': 1}}).encode()),
    (
      'config.json',
      json.dumps(config | {'keys': {'eval.split': 'x'}}).encode(),
    ),
    ('vocabulary.json', b'{}'),
    ('model.safetensors', whole['model.safetensors'][:-4]),
    ('model.safetensors', b''),
  ):
    server.put('me/mine', whole | {name: data})
    refused(txl_jax.load, 'hf://me/mine')


def test_the_commands(server, signed_in, run, tmp_path, theirs):
  done = program.run(run, 'hf://me/mine', '--public')
  assert done.returncode == 0, done.stderr
  assert done.stdout.endswith(
    '/commit/' + server.repositories['me/mine'].refs['main'] + '\n'
  )
  assert not server.repositories['me/mine'].private
  done = program.run('hf://me/mine', tmp_path / 'back')
  assert done.returncode == 0, done.stderr
  same(txl_jax.load(run), txl_jax.load(tmp_path / 'back'))
  sha = server.repositories['me/mine'].refs['main']
  origin = json.loads((tmp_path / 'back/config.json').read_text())['origin']
  assert origin.startswith(f'hf://me/mine@{sha}: txl_jax, model.safetensors, ')
  server.put('org/name', theirs)
  done = program.run('hf://org/name', tmp_path / 'theirs')
  assert done.returncode == 0, done.stderr
  done = program.run(
    tmp_path / 'theirs', 'hf://me/theirs', '--format=hugging_face'
  )
  assert done.returncode == 0, done.stderr
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
  keys = {'eval.of_later': 1, 'data.path': '/', 'eval.segment_len': 64}
  keys |= {'eval.nll_file': '/x', 'generate.prompt_file': '/y'}
  data = json.dumps(config | {'keys': keys}).encode()
  server.put('me/mine', whole | {'config.json': data})
  found = txl_jax.load('hf://me/mine').config
  assert (found.eval.segment_len, found.data.path != '/') == (64, True)
  assert (found.eval.nll_file, found.generate.prompt_file) == ('', '')


class Moses:
  """In place of sacremoses, which splits at other places too."""

  def __init__(self, language):
    assert language == 'en'

  def normalize(self, text):
    return text

  def tokenize(self, text, **_):
    return text.replace('.', ' .').split()


def test_the_page_for_those_who_come_from_transformers(
  server, theirs, monkeypatch, recwarn
):
  server.put('transfo-xl/transfo-xl-wt103', theirs)
  moses = types.SimpleNamespace(
    MosesTokenizer=Moses, MosesPunctNormalizer=Moses
  )
  monkeypatch.setitem(sys.modules, 'sacremoses', moses)
  names = {}
  for block in pages.python(pages.ROOT / 'docs/hugging_face.md'):
    exec(block, names)
  assert names['split_words']('1,000 streets.') == '1 @,@ 000 streets .'
  logits = names['logits'][0]  # of the second part, after the first's memory
  nll = names['run'].score(names['text'], segment_len=8).nll
  ids = names['ids'][0, -len(logits) :]
  found = -jax.nn.log_softmax(logits)[jnp.arange(len(logits) - 1), ids[1:]]
  np.testing.assert_allclose(found, nll[-len(found) :], rtol=1e-5)
  assert names['looks'].ndim == 4


def test_a_folder_as_it_is_pushed(run, tmp_path):
  done = program.run(run, tmp_path / 'out', '--format=hub')
  assert done.returncode == 0, done.stderr
  same(txl_jax.load(run), txl_jax.load(tmp_path / 'out'))
