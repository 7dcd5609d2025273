"""The program on a text of words: figures in ppl, text that reads well."""

import json
import math
import re

import numpy as np
import pytest

import txl_jax
from tests import programs
from tests.modes.subword_runs_test import validation
from txl_jax.runs import workdir

pytestmark = pytest.mark.thorough

WORDS = ('data.level=word', 'data.unk=True', 'train.batch_size=8')


def write_corpus(folder):
  """Sentences of words at random, tokenised as WikiText is."""
  rng = np.random.default_rng(0)
  names = ['memory', 'ségment', 'layer', 'state', '<unk>', "the unit 's"]
  lines = []
  for _ in range(700):
    words = [names[i] for i in rng.integers(len(names), size=6)]
    lines.append(f' {" ".join(words[:4])} , {" ".join(words[4:])} . \n')
  text = ''.join(lines)
  (folder / 'corpus.txt').write_text(text)
  return text


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a corpus and a finished run."""
  folder = tmp_path_factory.mktemp('trained')
  write_corpus(folder)
  done = programs.here(programs.command(folder, *WORDS))
  assert done.returncode == 0, done.stderr
  folder.joinpath('printed').write_text(done.stdout)
  folder.joinpath('said').write_text(done.stderr)
  return folder


def mode(folder, name, *overrides, flags=(), **options):
  flags = (f'--mode={name}', *flags)
  command = programs.command(folder, *WORDS, *overrides, flags=flags)
  return programs.here(command, **options)


def test_training_tells_ppl(trained):
  lines = (trained / 'printed').read_text().splitlines()
  written = (trained / 'run/metrics.jsonl').read_text()
  records = [json.loads(line) for line in written.splitlines()]
  for record in records:
    assert record['ppl'] == pytest.approx(math.exp(record['nats']))
    assert 'bpc' not in record
  scored = [r for r in records if r['split'] == 'validation']
  best = min(scored, key=lambda r: r['nats'])
  assert lines[0] == (
    f'best validation:  loss {best["nats"]:.4f} nats, {best["ppl"]:.4f} ppl at '
    f'step {best["step"]}'
  )
  named = [s.split(':')[0] for s in lines[2:]]
  assert named == ['evaluate', 'sample', 'export']
  assert re.search(r'\d ppl {2}lr ', (trained / 'said').read_text())


@pytest.mark.parametrize('first, unscored', [('none', 1), ('eos', 0)])
def test_evaluation(trained, tmp_path, first, unscored):
  path = tmp_path / 'nll.npy'
  own = f'eval.first_token={first}', f'eval.nll_file={path}'
  done = mode(trained, 'eval', *own)
  assert done.returncode == 0, done.stderr
  nll = np.load(path)
  nats = nll.mean(dtype=np.float64)
  found = re.match(
    r'validation: ([\d.]+) ppl \(([\d.]+) nats\), (\d+) tokens, (\d+) scored',
    done.stdout,
  )
  assert float(found[1]) == pytest.approx(math.exp(nats), rel=1e-5)
  assert float(found[2]) == pytest.approx(nats, abs=1e-5)
  part = validation((trained / 'corpus.txt').read_bytes())
  tokens = len(part.split()) + part.count(b'\n')
  assert (int(found[3]), int(found[4])) == (tokens, tokens - unscored)
  assert nll.shape == (tokens - unscored,)


def test_generation_reads_well(trained):
  prompt = 'generate.prompt=the memory ,'
  streamed = mode(trained, 'generate', prompt)
  assert streamed.returncode == 0, streamed.stderr
  assert streamed.stdout.startswith('the memory, ')
  assert ' ,' not in streamed.stdout and " 's" not in streamed.stdout
  two = mode(trained, 'generate', prompt, 'generate.samples=2')
  first = two.stdout.split('=== sample 2 of 2\n')[0]
  assert first == f'=== sample 1 of 2\n{streamed.stdout}'


@pytest.mark.slow
def test_unk_can_be_forbidden(trained):
  options = 'generate.max_new_tokens=300', 'generate.temperature=2.0'
  free = mode(trained, 'generate', *options)
  assert '<unk>' in free.stdout
  kept = mode(trained, 'generate', *options, 'generate.forbid_unk=True')
  assert kept.returncode == 0 and '<unk>' not in kept.stdout
  assert len(kept.stdout) > 900


def test_words_outside_are_unk_in_a_prompt(trained):
  done = mode(
    trained,
    'generate',
    'generate.prompt_file=-',
    'generate.max_new_tokens=0',
    input="the zebra .\nlayer's",
  )
  assert done.stdout == 'the <unk>.\n<unk>\n'
  assert done.stderr.splitlines()[-1] == (
    "warning: the prompt: not in the vocabulary, read as <unk>: 'zebra', "
    '"layer\'s"'
  )


@pytest.mark.slow
def test_words_outside_are_unk_in_a_text_that_is_scored(trained, tmp_path):
  path = tmp_path / 'text'
  path.write_text('the zebra .\nlayer\n')
  done = mode(trained, 'score', flags=[f'--text={path}'])
  assert done.returncode == 0, done.stderr
  (warning,) = (x for x in done.stderr.splitlines() if 'zebra' in x)
  assert warning == (
    f"warning: --text={path}: not in the vocabulary, read as <unk>: 'zebra'"
  )
  model = txl_jax.load(trained / 'run')
  for name, call in (
    ('text', model.score),
    ('text', model.encode),
    ('prompt', lambda text: model.generate(text, max_new_tokens=1)),
    ('prompt', lambda text: [*model.stream(text, max_new_tokens=1)]),
    ('text', model.chat(max_new_tokens=1).say),
  ):
    with pytest.warns(UserWarning, match=f"^{name}: .* as <unk>: 'zebra'$"):
      call('the zebra .')


def test_summary_counts_the_words(trained):
  done = mode(trained, 'summary')
  vocabulary = workdir.vocabulary(trained / 'run', 60)
  assert f'({len(vocabulary)}, 16)' in done.stdout
