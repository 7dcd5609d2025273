"""The program on a text of subwords: figures per token and per byte.

It has all devices, where other tests of it in this process have one.
"""

import functools
import json
import math
import re

import numpy as np
import pytest

import txl_jax
from tests import programs
from tests.programs import assert_refused
from txl_jax.data import prepared
from txl_jax.data.corpora import preparation
from txl_jax.data.data_config import Data
from txl_jax.runs import workdir

pytestmark = pytest.mark.thorough

here = functools.partial(programs.here, devices=8)
SUBWORDS = ('data.level=subword', 'data.max_size=300', 'train.batch_size=8')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a corpus and a finished run, whose tokenizer is gone."""
  folder = tmp_path_factory.mktemp('trained')
  programs.write_corpus(folder)
  asked = dict(corpus='text', path=f'{folder}/corpus.txt', level='subword')
  learned = preparation.prepare(
    Data(dir=f'{folder}/own', max_size=300, **asked)
  )
  given = folder / 'tokenizer.json'
  given.write_bytes((learned.folder / 'tokenizer.json').read_bytes())
  overrides = SUBWORDS[0], SUBWORDS[2], f'data.tokenizer={given}'
  done = here(programs.command(folder, *overrides))
  assert done.returncode == 0, done.stderr
  given.unlink()
  return folder


def mode(folder, name, *overrides, flags=()):
  given = f'data.tokenizer={folder}/tokenizer.json'
  own = SUBWORDS[0], SUBWORDS[2], given
  flags = f'--mode={name}', *flags
  return here(programs.command(folder, *own, *overrides, flags=flags))


def validation(text):
  cuts = [text.index(b'\n', len(text) * p // 100 - 1) + 1 for p in (90, 95)]
  return text[cuts[0] : cuts[1]]


def test_training_tells_bits_per_byte(trained):
  vocabulary = workdir.vocabulary(trained / 'run', 60)
  (folder,) = (trained / 'data').glob('text-*')
  assert '-subword-tokenizer_' in folder.name
  tokens = prepared.load(folder).tokens('validation')[:400]
  written = (trained / 'run/metrics.jsonl').read_text().splitlines()
  found = [r for r in map(json.loads, written) if r['split'] == 'validation']
  size = len(vocabulary.decode(tokens[1:]))
  for record in found:
    bits = record['nats'] * (len(tokens) - 1) / math.log(2) / size
    assert record['bpb'] == pytest.approx(bits, rel=1e-9)
    assert record['ppl'] == pytest.approx(math.exp(record['nats']))


def test_evaluation_without_the_tokenizer(trained, tmp_path):
  path = tmp_path / 'nll.npy'
  done = mode(trained, 'eval', f'eval.nll_file={path}')
  assert done.returncode == 0, done.stderr
  assert 'tokenizer.json is gone, ' in done.stderr
  found = re.match(
    r'validation: ([\d.]+) ppl \(([\d.]+) nats\), ([\d.]+) bits per byte, '
    r'(\d+) tokens, (\d+) scored',
    done.stdout,
  )
  nll = np.load(path).astype(np.float64)
  text = (trained / 'corpus.txt').read_bytes()
  part = validation(text)
  vocabulary = workdir.vocabulary(trained / 'run', 60)
  ids = vocabulary.encode(part, 'it')
  assert (int(found[4]), int(found[5])) == (len(ids), len(nll))
  size = len(part) - len(vocabulary.symbols[ids[0]])
  bits = nll.sum() / math.log(2) / size
  assert float(found[3]) == pytest.approx(bits, abs=1e-5)
  assert float(found[1]) == pytest.approx(math.exp(nll.mean()), rel=1e-5)
  path = trained / 'run/analysis/eval_validation.json'
  record = json.loads(path.read_text())
  assert record['bpb'] == pytest.approx(bits, rel=1e-6)
  # The same text in Python is the same figure.
  score = txl_jax.load(trained / 'run').score(part)
  assert score.bits_per_byte == pytest.approx(bits, rel=1e-6)
  assert score.text_bytes == size


def test_what_an_export_does(trained, tmp_path):
  path = tmp_path / 'model.npz'
  done = mode(trained, 'export', flags=[f'--export_file={path}'])
  assert done.returncode == 0, done.stderr
  model = txl_jax.load(path)
  text = 'the memory of ségments 漢'
  assert model.decode(model.encode(text)) == text
  found = model.score(text)
  assert found.offsets[-1, 1] == len(text)
  pieces = [*model.stream(text, max_new_tokens=30, temperature=5.0, seed=1)]
  whole = model.generate(text, max_new_tokens=30, temperature=5.0, seed=1)
  assert ''.join(pieces) == whole  # incomplete characters were held back
  chat = model.chat(max_new_tokens=4)
  assert chat.text == '' and chat.say(text) == chat.text[len(text) :]


def test_generation(trained):
  done = mode(trained, 'generate', 'generate.prompt=the ségm')
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith('the ségm')
  assert 'warning' not in done.stderr
  done = mode(trained, 'generate', 'generate.prompt=the ')
  assert 'warning: the prompt ends in a space' in done.stderr


@pytest.mark.slow
def test_another_text_with_the_subwords_of_the_model(trained, tmp_path):
  text = (trained / 'corpus.txt').read_text().replace('memory', 'états x')
  (tmp_path / 'corpus.txt').write_text(text)
  overrides = f'train.init_from={trained}/run', 'train.steps=10'
  done = here(programs.command(tmp_path, *SUBWORDS, *overrides))
  assert_refused(done, "model's vocabulary.json as data.tokenizer")
  own = f'data.tokenizer={trained}/run/vocabulary.json'
  command = programs.command(
    tmp_path, SUBWORDS[0], SUBWORDS[2], own, *overrides
  )
  done = here(command)
  assert done.returncode == 0, done.stderr
  there = workdir.vocabulary(trained / 'run', 60)
  assert workdir.vocabulary(tmp_path / 'run', 10) == there
  done = here([*command, '--mode=eval'])
  assert done.returncode == 0, done.stderr
  ids = there.encode(validation(text.encode()), 'it')
  assert f'{len(ids)} tokens, {len(ids) - 1} scored' in done.stdout


def test_tokenizers_that_are_none(trained, tmp_path):
  programs.write_corpus(tmp_path)
  path = tmp_path / 'tokenizer.json'
  for text, found in (
    ('{}', 'not a tokenizer'),
    ('[', 'JSON'),
    (None, 'No such'),
  ):
    path.unlink(missing_ok=True)
    if text:
      path.write_text(text)
    options = SUBWORDS[0], SUBWORDS[2], f'data.tokenizer={path}'
    done = here(programs.command(tmp_path, *options))
    assert_refused(done, f'data.tokenizer: {path}', found)
