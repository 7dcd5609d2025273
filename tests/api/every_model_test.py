"""What every kind of model does in Python, from an exported file."""

import jax
import numpy as np
import pytest

import txl_jax
from tests.models import every
from txl_jax import models
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.models import base
from txl_jax.program.errors import UserError
from txl_jax.runs import weights_file

BYTES = Bytes.all_bytes()
TEXT = 'A text of few words.\n'
SHORT = dict(max_new_tokens=7, temperature=0.0)


@pytest.fixture(scope='module', params=every.some(models.MODELS))
def run(request, tmp_path_factory):
  fields = {'name': request.param, 'init_std': 0.5}
  fields |= every.SETTINGS[request.param]
  model = models.build(fields, 256)
  params = jax.jit(lambda: base.init_params(model, jax.random.key(0)))()
  path = tmp_path_factory.mktemp('run') / 'model.npz'
  used = model.inference_params(params)
  weights_file.save(path, used, fields, BYTES.to_json())
  return txl_jax.load(path)


@pytest.mark.thorough
def test_a_chat_is_one_long_prompt(run):
  """As far as the memory reaches, which is all that is said."""
  longer = {'mem_len': 64} if getattr(run.config.model, 'mem_len', 0) else {}
  chat, text = run.chat(**SHORT, **longer), b''
  for said in ('How?\n', 'é\n', 'So.'):
    text += said.encode()
    expected = run.generate(text, **SHORT, **longer)
    assert chat.say(said) == expected.decode(errors='replace')
    text += expected


@pytest.mark.thorough
def test_what_is_written_and_scored(run):
  """The greedy text is that of the least nll at each place."""
  segment = run.config.eval.segment_len
  T = min(4, segment)
  score = run.score(TEXT, segment_len=T)
  assert score.nll.shape == (len(TEXT) - 1,) and np.isfinite(score.nll).all()
  np.testing.assert_allclose(score.nll.sum(), score.total, rtol=1e-5)
  prompt = 'ab'
  new = run.generate(prompt.encode(), max_new_tokens=1, temperature=0.0)
  nll = [
    run.score([*prompt.encode(), i], segment_len=2).nll[-1]
    for i in range(0, 256, 15)
  ]
  best = run.score([*prompt.encode(), *new], segment_len=2).nll[-1]
  assert best <= min(nll) + 1e-4


@pytest.mark.default_cases('transformer_xl', 'gcnn', 'al_rfou')
def test_what_is_inside(run):
  T = min(4, run.config.eval.segment_len)
  final = run.hidden(TEXT, segment_len=T)
  first = run.hidden(TEXT, 0, segment_len=T)
  assert len(final.states) == len(first.states) == len(TEXT)
  between = run.hidden(TEXT, 1, segment_len=T).states
  assert not np.array_equal(between, first.states)
  assert final.states.shape[1] == run.config.model.d_model
  if not models.MODELS[run.config.model.name].ATTENDS:
    with pytest.raises(UserError, match='has no attention;'):
      run.attention(TEXT)
    return
  found = run.attention(TEXT, segment_len=T).probabilities
  assert found.shape == (2, 2, len(TEXT), len(TEXT))
  np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
  assert not np.triu(found, 1).any()


@pytest.mark.thorough
def test_longer_segments_than_the_model_reads(run):
  reach = run.model.reach()
  if reach == float('inf'):
    return
  assert run.config.eval.segment_len == reach
  for call in (run.score, run.hidden, run.attention):
    with pytest.raises(UserError, match=r'^eval.segment_len is 64; allow'):
      call(TEXT, segment_len=64)
