"""Reading from the Hub: its own client, and a server on this machine."""

import sys
import time
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from huggingface_hub import constants

import txl_jax
from tests import hub_server, pages
from tests.convert.hub.conftest import WARNINGS
from tests.refusing import refused
from txl_jax.configs import common
from txl_jax.convert import pretrained
from txl_jax.convert.hub import client
from txl_jax.experiment import sections
from txl_jax.program import hub
from txl_jax.program.errors import UserError

PLACE = hub.Place('org/name', None)
pytestmark = WARNINGS
NOT_NEEDED = {'corpus.bin', 'tf_model.h5', 'model-old/model.safetensors'}


def test_shards_and_a_tokenizer_are_downloaded(server):
  needed = {f'model-0000{i}-of-00002.safetensors' for i in (1, 2)}
  needed |= {'config.json', 'tokenizer.json', 'model.safetensors.index.json'}
  server.put('org/name', dict.fromkeys([*needed, 'model-x', 'x.bin'], b'{}'))
  found = client.download(PLACE)
  assert {path.name for path in found.folder.iterdir()} == needed


@pytest.mark.thorough
def test_a_published_model_is_downloaded_and_used(server, theirs, tmp_path):
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
  c = common.get_config()
  c.data.update(corpus='text', path='a.txt')
  c.train.init_from = 'hf://org/name'
  c, _ = pretrained.adopt(sections.read(c), tmp_path / 'new', (), True)
  assert c.data.level == 'word'
  begun = pretrained.find(c)
  assert begun.name == found.name and found.name in begun.origin
  assert len(begun.vocabulary) == len(run.vocabulary)


def test_the_cache_is_used(server, theirs):
  server.put('org/name', theirs)
  first = client.download(PLACE)
  server.asked.clear()
  assert client.download(PLACE) == first
  assert not [path for _, path in server.asked if '/resolve/' in path]


def test_a_revision(server, theirs):
  sha = server.put('org/name', theirs)
  server.put('org/name', theirs | {'config.json': b'{}'})
  found = client.download(hub.place(f'hf://org/name@{sha}'))
  assert found.name.endswith(sha)
  assert (found.folder / 'config.json').read_bytes() == theirs['config.json']
  server.put('org/name', theirs, ref='refs/pr/2')
  assert client.download(hub.place('hf://org/name@refs/pr/2')).folder.is_dir()


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


@pytest.mark.parametrize('name', ['ab', 'z' * 40, 'a' * 40, 'A' * 64])
def test_a_cache_that_is_not_named_by_hashes(tmp_path, name):
  """On Windows, files have no links, and their own names."""
  (tmp_path / name).write_bytes(b'x')
  path = tmp_path / name
  if name != 'a' * 40:
    path = tmp_path / 'config.json'
    path.symlink_to(tmp_path / name)
  hub._check(path, PLACE)
  assert path.read_bytes() == b'x'


def test_what_is_not_there(server, theirs):
  assert 'does not exist or is private' in refused(client.download, PLACE)
  server.put('org/name', theirs)
  other = PLACE._replace(revision='v9')
  assert 'no revision v9' in refused(client.download, other)
  server.put('org/other', {'README.md': b'', 'config.json': b'{}'})
  other = hub.Place('org/other', None)
  assert 'has no weights' in refused(client.download, other)


def test_private_and_gated_repositories(server, theirs, monkeypatch):
  server.put('org/name', theirs, gated=True)
  assert 'is gated; you need a token' in refused(client.download, PLACE)
  server.put('org/name', theirs, private=True)
  assert 'HF_TOKEN' in refused(client.download, PLACE)
  monkeypatch.setenv('HF_TOKEN', 'hf_wrong')
  assert 'the Hub answers 401' in refused(client.download, PLACE)
  monkeypatch.setenv('HF_TOKEN', hub_server.TOKEN)
  assert client.download(PLACE).folder.is_dir()


def test_without_a_network(server, theirs, monkeypatch):
  begin = time.monotonic()
  monkeypatch.setattr(constants, 'ENDPOINT', 'http://127.0.0.1:9')
  told = refused(client.download, PLACE)
  assert 'not in the cache, and the Hub is unreachable' in told
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
  monkeypatch.setenv('HF_TOKEN', 'hf_é')
  refused(client.download, PLACE)
  monkeypatch.setenv('HF_TOKEN', 'hf_wrong')
  assert 'the Hub answers 401' in refused(client.download, PLACE)
  monkeypatch.delenv('HF_TOKEN')
  server.status = 404
  assert '404' in refused(client.download, PLACE)
  server.status, server.repositories['org/name'].private = 0, True
  assert 'does not exist or is private' in refused(client.download, PLACE)


def test_a_hub_out_of_order(server, theirs):
  server.put('org/name', theirs)
  server.status = 500
  begin = time.monotonic()
  assert '500' in refused(client.download, PLACE)
  assert time.monotonic() - begin < 40


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
  expected = "needs huggingface_hub; run: pip install 'txl_jax[hub]'"
  assert refused(txl_jax.load, 'hf://org/name') == f'hf://org/name {expected}'


def test_errors_of_the_client(monkeypatch):
  library = hub.opened(PLACE)
  away = library.errors.LocalEntryNotFoundError('x')

  def refusal(code, message):
    response = mock.Mock(status_code=code)
    kind = library.errors.HfHubHTTPError
    return kind('x', response=response, server_message=message)

  for error, cause, said in (
    (RuntimeError('odd'), None, 'hf://org/name: odd'),
    (RuntimeError('odd'), OSError('why'), 'hf://org/name: why'),
    (away, None, 'not in the cache, and the Hub is unreachable: x'),
    (away, OSError('why'), 'not in the cache, and the Hub is unreachable: why'),
    (refusal(500, None), None, 'hf://org/name: the Hub answers 500'),
    (refusal(401, 'x' * 300), None, f' {"x" * 200}; allowed: {hub._LOG_IN}'),
    (refusal(403, ' a\nb '), None, f'answers 403: a b; allowed: {hub._LOG_IN}'),
  ):
    with pytest.raises(UserError) as e, hub.translating_errors(library, PLACE):
      raise error from cause
    assert str(e.value).endswith(said)
  # A variable of the environment that is no number.
  monkeypatch.setattr(hub, 'extra', mock.Mock(side_effect=ValueError('odd')))
  assert refused(hub.opened, PLACE) == 'hf://org/name: huggingface_hub: odd'


@pytest.mark.parametrize(
  'text', ['hf://', 'hf://name', 'hf://a/b/c', 'hf://a/b@', 'hf://a/b@x y']
)
def test_names_that_are_none(text):
  allowed = 'allowed: hf://ORG/NAME or hf://ORG/NAME@REVISION'
  assert refused(txl_jax.load, text) == f'{text}; {allowed}'


class Moses:
  """In place of sacremoses, which splits at other places too."""

  def __init__(self, language):
    assert language == 'en'

  def normalize(self, text):
    return text

  def tokenize(self, text, **_):
    return text.replace('.', ' .').split()


@pytest.mark.thorough
def test_the_page_for_those_who_come_from_transformers(
  server, theirs, monkeypatch, recwarn
):
  server.put('transfo-xl/transfo-xl-wt103', theirs)
  kinds = dict.fromkeys(('MosesTokenizer', 'MosesPunctNormalizer'), Moses)
  moses = types.SimpleNamespace(**kinds)
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
