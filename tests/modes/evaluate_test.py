"""What --mode=eval scores, of a model that nobody trained."""

import functools
import json
import resource
import types

import jax
import numpy as np
import pytest

from tests.modes import runs
from txl_jax import models
from txl_jax.modes import evaluate
from txl_jax.program.errors import UserError


def config(**model):
  c = runs.config(**model)
  c.eval.update(segment_len=4, segments_per_call=2)
  return c


refused = functools.partial(runs.refused, evaluate)


@pytest.mark.thorough
def test_another_vocabulary_of_the_same_size(tmp_path):
  runs.write(tmp_path)
  (tmp_path / 'text').write_text('x y\n' * 99)
  c = config()
  c.data.update(corpus='text', level='word', path=str(tmp_path / 'text'))
  c.data.dir = str(tmp_path / 'data')
  (tmp_path / 'data').mkdir()
  message = refused(c, tmp_path)
  assert '(3 symbols) than the run in ' in message
  assert message.endswith('data.tokenizer')


@pytest.mark.thorough
@pytest.mark.parametrize('streams', [1, 2, 3])
def test_nll_by_position(tmp_path, corpus, streams, capfd):
  """As a loop over streams and their segments finds it."""
  runs.write(tmp_path)
  c = config()
  path = str(tmp_path / 'nll.npy')
  c.eval.update(batch_size=streams, segment_len=6, nll_file=path)
  evaluate.run(runs.job(c, tmp_path, silent=False))
  nll, of = np.load(path).tolist(), {1: [], 2: [], 4: [], 8: []}
  stream = -(-len(nll) // streams)
  for row in (nll[i : i + stream] for i in range(0, len(nll), stream)):
    for begin in range(0, stream, 6):
      for p, x in enumerate(row[begin : begin + 6], 1):
        of[min(last for last in of if p <= last)].append(x)
  record = (tmp_path / 'analysis/eval_validation.json').read_text()
  found = json.loads(record)['nats_by_position']
  assert found == pytest.approx({f'{p}': np.mean(x) for p, x in of.items()})
  said = capfd.readouterr().err
  assert f'segment, groups ending at 1: {found["1"]:.3f}, 2: ' in said
  assert f'nll of each scored token: {path}' in said


@pytest.mark.parametrize(
  'eos, starts, found',
  [
    (None, None, 'book has no <eos>'),
    (0, [0, 4], 'book already begins with one'),
  ],
)
def test_first_token_needs_eos(eos, starts, found):
  corpus = types.SimpleNamespace(
    name='book',
    vocabulary=types.SimpleNamespace(eos_id=eos),
    sentences=lambda split: starts,
    of_documents=False,
  )
  with pytest.raises(UserError) as error:
    evaluate._from_first_token([], corpus, 'eos')
  assert str(error.value) == (
    f"eval.first_token is 'eos'; allowed: none, because corpus {found}"
  )


@pytest.mark.parametrize(
  ('path', 'found'),
  [
    ('nll.npy', 'File too large'),
    ('/dev/null', 'it is a pipe or device, not a file'),
    ('.', 'it is a folder, not a file'),
    ('no/where', 'No such file or directory'),
  ],
)
def test_an_nll_file_that_cannot_be(tmp_path, monkeypatch, path, found):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'nll.npy').write_bytes(b'before')
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  # As on a full disk.
  resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
  try:
    nll = np.zeros(99, np.float32)
    with pytest.raises(UserError) as error, evaluate._nll_file(path, nll):
      assert path == 'nll.npy'  # the others are told before
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  expected = f'eval.nll_file: {path} cannot be written: {found}'
  assert str(error.value) == expected
  assert [p.name for p in tmp_path.iterdir()] == ['nll.npy']
  assert (tmp_path / 'nll.npy').read_bytes() == b'before'


def test_an_nll_file_is_of_one_process_and_for_numpy(tmp_path, monkeypatch):
  c = config()
  c.eval.nll_file = 'nll.txt'
  expected = "eval.nll_file is 'nll.txt'; allowed: a name that ends in .npy"
  assert refused(c, tmp_path) == expected
  monkeypatch.setattr(evaluate.processes, 'is_main', lambda: False)
  with evaluate._nll_file(f'{tmp_path}/nll.npy', np.zeros(9, np.float32)):
    pass
  assert not [*tmp_path.iterdir()]


def by_hand(params, c, tokens, W, temperature=1.0):
  """Nll of each token but the first, read anew from the W before it."""
  model = models.build(c.model, 3, mem_len=0)
  read = jax.jit(
    lambda tokens: model.apply({'params': params}, tokens, (), method='logits')
  )
  nll = []
  for i in range(1, len(tokens)):
    context = tokens[max(i - W, 0) : i].astype(np.int32)
    logits = np.float64(read(context[None])[0][0, -1]) / temperature
    nll.append(np.log(np.sum(np.exp(logits))) - logits[tokens[i]])
  return nll


@pytest.mark.thorough
def test_a_context_and_a_temperature(tmp_path, corpus, capfd):
  params = runs.write(tmp_path, mem_len=0, init_std=1.0)
  c = config(mem_len=0)
  # Segments of one token after W - 1 are windows of W.
  c.eval.update(segment_len=1, context=4, temperature=1.25)
  score = evaluate.run(runs.job(c, tmp_path))
  expected = by_hand(params, c, corpus.tokens('test'), 5)
  np.testing.assert_allclose(score.nats, np.mean(expected), rtol=1e-5)
  warm = np.mean(by_hand(params, c, corpus.tokens('test'), 5, 1.25))
  record = json.loads((tmp_path / 'analysis/eval_validation.json').read_text())
  found = record['at_temperature']
  np.testing.assert_allclose(found['nats'], warm, rtol=1e-5)
  assert record['nats'] == score.nats and abs(score.nats - warm) > 1e-3
  out = capfd.readouterr().out
  unit = runs.VOCABULARY.unit
  assert f' nats), {found[unit]:.5f} {unit} at temperature 1.25, ' in out
  assert '(T 1, context 4, ' in out
  c.eval.temperature = 0.8
  evaluate.run(runs.job(c, tmp_path))
  assert ' at temperature 0.8, ' in capfd.readouterr().out


@pytest.mark.thorough
def test_a_temperature_and_tails(tmp_path, corpus):
  runs.write(tmp_path, cutoffs=(2,))
  c = config(cutoffs=(2,))
  for c.eval.temperature in 0.92, 1.08:
    expected = f'eval.temperature is {c.eval.temperature}; allowed: 1 with '
    expected += 'model.cutoffs, an adaptive softmax'
    assert refused(c, tmp_path) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
  'mem_len, window', [(0, 1), pytest.param(4, 6, marks=pytest.mark.slow)]
)
def test_a_window(tmp_path, corpus, capfd, mem_len, window):
  """Of a model without memory, or whose memory is switched off."""
  params = runs.write(tmp_path, mem_len=mem_len, init_std=1.0)
  c = config(mem_len=mem_len)
  c.eval.update(window=window, nll_file=f'{tmp_path}/nll.npy')
  if mem_len:
    c.eval.model.mem_len = 0
  score = evaluate.run(runs.job(c, tmp_path))
  expected = by_hand(params, c, corpus.tokens('test'), window)
  found = np.load(tmp_path / 'nll.npy')
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  wider = by_hand(params, c, corpus.tokens('test'), window + 1)
  assert np.abs(np.subtract(wider, expected)).max() > 0.1
  np.testing.assert_allclose(score.nats, np.mean(expected), rtol=1e-5)
  assert f'T 4, window {window}, ' in capfd.readouterr().out


@pytest.mark.thorough
def test_a_window_is_for_models_without_memory(tmp_path, corpus):
  runs.write(tmp_path)
  c = config()
  c.eval.window = 3
  expected = 'eval.window is 3; allowed: 0, because the model has a memory'
  assert refused(c, tmp_path) == expected
