"""The program on documents: training, evaluation, writing."""

import itertools
import json
import re

import numpy as np
import pytest

import txl_jax
from tests import programs
from tests.programs import assert_refused
from txl_jax import models
from txl_jax.data import prepared
from txl_jax.data.streams import Segments
from txl_jax.evaluation import scoring
from txl_jax.experiment import saved_model as trained_lib
from txl_jax.experiment import sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.runs import metrics_log

pytestmark = pytest.mark.thorough

OWN = 'data.documents=record', 'model.dropout=0.0', 'model.dropatt=0.0'
OWN += 'train.batch_size=8', 'train.steps=10', 'train.log_every=1'


def use(folder, *overrides, mode='train', flags=()):
  flags = f'--mode={mode}', *flags
  own = f'data.path={folder}/corpus.jsonl', *OWN
  command = programs.command(folder, *own, *overrides, flags=flags)
  return programs.here(command)


@pytest.fixture(
  scope='module',
  params=[
    pytest.param('data.level=byte', marks=pytest.mark.slow),
    'data.level=word',
    pytest.param('data.level=subword', marks=pytest.mark.slow),
  ],
)
def run(request, tmp_path_factory):
  """A folder with a corpus and a finished run, and its key of the level.

  Its rate is so low that the weights are those it began with.
  """
  folder = tmp_path_factory.mktemp('run')
  parts = programs.write_corpus(folder).read_text().split('next')
  lines = [json.dumps({'text': text}) for text in parts]
  (folder / 'corpus.jsonl').write_text('\n'.join(lines))
  done = use(folder, request.param, 'optim.lr=1e-12')
  assert done.returncode == 0, done.stderr
  return folder, request.param


def corpus_of(folder):
  (made,) = (folder / 'data').glob('text-*')
  return prepared.load(made)


def alone(folder, documents, **lengths):
  """Summed nll and tokens of documents that are each scored by themselves."""
  config = trained_lib.recorded(folder / 'run')
  lengths = {f'eval.model.{k}': x for k, x in lengths.items()}
  config = sections.changed(config, lengths)
  mesh = mesh_lib.make_mesh(config.mesh)
  found = trained_lib.load(config, folder / 'run', mesh)
  model = models.at_test_time(config, len(found.vocabulary), 'eval')
  names = 'batch_size', 'segment_len', 'segments_per_call', 'context'
  cut = {name: getattr(config.eval, name) for name in names} | {'mesh': mesh}
  each = [scoring.score(model, found.params, x, **cut) for x in documents]
  return sum(x.nll for x in each), sum(x.scored for x in each)


def documents_of(corpus, split):
  tokens, starts = corpus.tokens(split), corpus.token_stream(split).starts
  return [np.array(tokens[a : b + 1]) for a, b in itertools.pairwise(starts)]


@pytest.mark.slow
@pytest.mark.parametrize('streams', [1, 3])
def test_evaluation_is_that_of_each_document(run, streams):
  folder, level = run
  done = use(folder, level, f'eval.batch_size={streams}', mode='eval')
  assert done.returncode == 0, done.stderr
  documents = documents_of(corpus_of(folder), 'validation')
  nll, scored = alone(folder, documents)
  found = re.search(r'\(([\d.]+) nats\).* (\d+) scored', done.stdout)
  assert float(found[1]) == pytest.approx(nll / scored, abs=2e-5)
  assert int(found[2]) == scored
  bits = re.search(r'([\d.]+) bits per byte', done.stdout)
  if level == 'data.level=word':
    assert bits is None
  else:
    size = corpus_of(folder).manifest['splits']['validation']['bytes']
    expected = nll / np.log(2) / size
    assert float(bits[1]) == pytest.approx(expected, abs=2e-5)


def test_score_is_that_of_a_document(run):
  """A text is the same tokens as in the corpus, line ends included."""
  folder, _ = run
  corpus = corpus_of(folder)
  loaded = txl_jax.load(folder / 'run')
  texts = [
    x
    for x in (folder / 'corpus.txt').read_text().split('next')
    if x.strip() and '\n' in x
  ][:3]
  eos = loaded.vocabulary.eos_id
  for text in texts:
    found = loaded.score(text)
    ids = [eos, *corpus.vocabulary.encode(text.encode(), 'it')]
    assert eos not in ids[1:]
    nll, n = alone(folder, [np.array(ids)])
    assert found.nll.sum() == pytest.approx(nll, rel=1e-5)
    assert len(found.nll) == len(found.offsets) == n


def test_training_reads_each_document_by_itself(run):
  """With weights that stand still, the nll of an epoch is that of scoring."""
  folder, _ = run
  corpus = corpus_of(folder)
  lines = metrics_log.read(folder / 'run/metrics.jsonl')
  nats = [r['nats'] for r in lines if r['split'] == 'train']
  text, tokens, steps = corpus.token_stream('train'), corpus.tokens('train'), 5
  segments = Segments(text.starts, 8)
  N = len(segments)
  pieces, counts, begun = [], np.zeros(steps, int), 0
  for row in range(8):
    for step in range(steps):
      at = np.array(row * N // 8 + step)
      start, n, new = map(int, segments.locate(at))
      if step == 0 or new:
        pieces.append([int(tokens[start])])
        begun += step > 0
      pieces[-1] += tokens[start + 1 : start + n + 1].tolist()
      counts[step] += n
  assert begun
  nll, scored = alone(folder, map(np.array, pieces), mem_len=8)
  assert scored == counts.sum()
  assert counts @ nats[:steps] == pytest.approx(nll, rel=3e-5)


def test_a_sample_ends_with_its_document(run):
  folder, _ = run
  loaded = txl_jax.load(folder / 'run')
  # At such a temperature every token is as likely as any other.
  more = dict(max_new_tokens=3000, temperature=50.0)
  found = [
    len(loaded.encode(loaded.generate('the', seed=i, **more))) for i in range(3)
  ]
  assert min(found) < 2900


def test_it_goes_on(run, tmp_path):
  folder, level = run
  done = use(folder, level, 'optim.lr=1e-12', 'train.steps=12')
  assert done.returncode == 0, done.stderr
  record = json.loads((folder / 'run/config.json').read_text())
  assert record['data']['documents'] == 'record'
  done = use(folder, level, 'data.documents=none')
  assert_refused(done, 'data.documents')


def test_modes_that_read_one_text(run):
  folder, level = run
  own = 'attention_length.lengths=(8, 16)', 'attention_length.tokens=100'
  done = use(folder, level, *own, mode='attention_length')
  assert done.returncode == 0, done.stderr
  assert 'warning: documents are read as one text here' in done.stderr


def test_without_documents(run):
  folder, level = run
  off = 'data.documents=none', 'data.unk=True'
  done = use(folder, level, *off[: 1 + level.endswith('=word')], mode='eval')
  assert_refused(done, 'data.documents is none, and the run in ', ' with doc')
