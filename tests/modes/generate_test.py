"""What --mode=generate prints and refuses, of a model that nobody trained."""

import functools
import io
import os
import re
import types
from unittest import mock

import jax
import numpy as np
import pytest

from tests import programs
from tests.modes import runs
from txl_jax import models
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.words import Words
from txl_jax.experiment import sections
from txl_jax.generation.generate_config import Generate
from txl_jax.modes import generate
from txl_jax.program.errors import UserError

BYTES = Bytes((97, 98, 10))
WORDS = Words.from_counts({'<eos>': 3, 'a': 2, 'b': 2}, eos='<eos>')


def config(generate, **model):
  c = runs.config(**model)
  c.generate.update(max_new_tokens=20, segment_len=4)
  c.generate.update(generate)
  return c


def printed(capsys, config, folder):
  generate.run(runs.job(config, folder))
  return capsys.readouterr().out


refused = functools.partial(runs.refused, generate)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  runs.write(folder)
  return folder


@pytest.fixture
def split(corpus):
  tokens = corpus.tokens('validation')
  return lambda begin, end: runs.VOCABULARY.decode(tokens[begin:end]).decode()


@pytest.mark.thorough
@pytest.mark.parametrize('samples', [1, 2])
def test_beside_the_real_continuation(folder, split, samples, capsys):
  """The same samples as after the same text as a prompt, then the text."""
  given = {'max_new_tokens': 9, 'samples': samples}
  own = given | {'prompt_tokens': 5, 'prompt_start': 3}
  out = printed(capsys, config(own), folder)
  after = printed(capsys, config(given | {'prompt': split(3, 8)}), folder)
  written = after.replace(split(3, 8), '')
  assert out == (
    f'=== prompt\n{split(3, 8)}\n=== generated\n{written}'
    f'=== original continuation\n{split(8, 17)}\n'
  )


@pytest.mark.thorough
def test_a_prompt_that_is_left_out(tmp_path, capsys):
  runs.write(tmp_path, vocabulary=BYTES)
  values = dict(prompt='ab', temperature=0.0, max_new_tokens=5)
  whole, alone = (
    printed(capsys, config(values | {'echo': echo}), tmp_path)
    for echo in (True, False)
  )
  assert whole == f'ab{alone}' and len(alone) == 6


def test_a_continuation_beyond_the_split(folder, split):
  own = {'max_new_tokens': 9, 'prompt_tokens': 5, 'prompt_start': 67}
  assert refused(config(own), folder).endswith(
    'the sum is 81; allowed: at most 80, the size of eval.split'
  )
  section = sections.read(config(own | {'prompt_start': 66})).generate
  parts = generate._from_split(section, np.arange(80))  # up to its end
  assert [x.tolist() for x in parts] == [[*range(66, 71)], [*range(71, 80)]]
  items = [*config(own | {'prompt': 'a'}).generate.items()]
  section = Generate(**{k: x for k, x in items if k != 'model'})
  assert (
    'prompt_tokens',
    '0 with generate.prompt or generate.prompt_file',
  ) in [*section.problems()]


@pytest.fixture(
  scope='module',
  params=[
    pytest.param(BYTES, id='bytes'),
    pytest.param(WORDS, id='words', marks=pytest.mark.slow),
  ],
)
def at_random(request, tmp_path_factory):
  """A run whose model draws all three symbols alike, one the end of a line."""
  folder = tmp_path_factory.mktemp('run')
  runs.write(folder, vocabulary=request.param, ones=True)
  return folder


def up_to_line_end(prompt, text):
  """The text, of what follows the prompt up to the end of the first line."""
  assert text.startswith(prompt)
  ended = re.match(r'[^\n]*\n', text.removeprefix(prompt))
  return prompt + ended[0] if ended else text


@pytest.mark.thorough
def test_a_line_ends_a_sample(at_random, capsys):
  # The end of a line within the prompt ends nothing.
  prompt = 'a\nb'
  lengths = set()
  for seed in range(4):
    asked = dict(prompt=prompt, seed=seed)
    whole = printed(capsys, config(asked), at_random)[:-1]
    line = printed(capsys, config({**asked, 'stop': 'line'}), at_random)[:-1]
    assert line == up_to_line_end(prompt, whole)
    lengths.add(len(whole) - len(line))
  assert len(lengths) > 2 and min(lengths) > 0


@pytest.mark.thorough
def test_samples_end_one_by_one_without_padding(at_random, capsys):
  asked = dict(prompt='a\nb', samples=4, seed=1)

  def samples(**more):
    text = printed(capsys, config({**asked, **more}), at_random)
    parts = re.split(r'=== sample (\d) of 4\n', text)
    assert parts[0] == '' and parts[1::2] == ['1', '2', '3', '4']
    return [part[:-1] for part in parts[2::2]]

  whole, lines = samples(), samples(stop='line')
  assert lines == [up_to_line_end('a\nb', text) for text in whole]
  assert len({len(line) for line in lines}) > 2
  assert all(line.endswith('\n') for line in lines)


def by_hand(params, config, prompt, W):
  """The greedy text after reading the last W tokens anew each time."""
  model = models.build(config.model, len(BYTES))
  read = jax.jit(
    lambda tokens: model.apply({'params': params}, tokens, (), method='logits')
  )
  tokens = BYTES.encode(prompt.encode(), 'it').tolist()
  for _ in range(config.generate.max_new_tokens):
    logits, _ = read(np.array([tokens[-W:]], np.int32))
    tokens.append(int(logits[0, -1].argmax()))
  return BYTES.decode(tokens).decode()


@pytest.mark.thorough
@pytest.mark.parametrize('window, segment_len', [(3, 9), (0, 4)])
def test_a_model_without_memory_sees_a_window(
  tmp_path, capsys, window, segment_len
):
  own = dict(mem_len=0, init_std=2.0, seed=1)
  params = runs.write(tmp_path, vocabulary=BYTES, **own)
  asked = dict(prompt='ab\nba', temperature=0.0, window=window)
  c = config(asked, mem_len=0)
  c.train.segment_len = segment_len  # the window where none is given
  found = printed(capsys, c, tmp_path)[:-1]
  W = window or segment_len
  assert found == by_hand(params, c, 'ab\nba', W)
  assert found != by_hand(params, c, 'ab\nba', W + 1)


@pytest.mark.thorough
def test_samples_of_a_model_without_memory(tmp_path, capsys):
  runs.write(tmp_path, vocabulary=BYTES, mem_len=0, init_std=2.0)
  asked = dict(prompt='ab', temperature=0.0, window=3)
  one = printed(capsys, config(asked, mem_len=0), tmp_path)
  asked['samples'] = 2
  two = printed(capsys, config(asked, mem_len=0), tmp_path)
  assert two == f'=== sample 1 of 2\n{one}=== sample 2 of 2\n{one}'


def test_a_prompt_that_is_no_file_or_endless(folder, tmp_path, monkeypatch):
  pipe = programs.make_pipe(tmp_path / 'pipe')
  monkeypatch.setattr(generate, '_LARGEST', 1000)
  (tmp_path / 'long').write_bytes(b'a' * 1001)
  endless = types.SimpleNamespace(buffer=io.BytesIO(b'a' * 2000))
  monkeypatch.setattr('sys.stdin', endless)
  for path, found in (
    (pipe, 'cannot be read: it is a pipe or device, not a file'),
    ('/dev/zero', 'cannot be read: it is a pipe or device, not a file'),
    (tmp_path, 'cannot be read: it is a folder, not a file'),
    (tmp_path / 'long', 'is larger than the limit of 1,000 bytes'),
    ('-', 'is larger than the limit of 1,000 bytes'),
    ('+', 'cannot be read: No such file or directory'),
  ):
    message = refused(config({'prompt_file': str(path)}), folder)
    assert message == f'generate.prompt_file: {path} {found}'
  monkeypatch.undo()
  broken = mock.Mock(side_effect=OSError(5, 'Input/output error'))
  for read, found in (
    (broken, 'cannot be read: Input/output error'),
    (range, 'is larger than the limit of 268,435,456 bytes'),
  ):
    stdin = types.SimpleNamespace(buffer=types.SimpleNamespace(read=read))
    monkeypatch.setattr('sys.stdin', stdin)
    message = refused(config({'prompt_file': '-'}), folder)
    assert message == f'generate.prompt_file: - {found}'
  monkeypatch.setattr('sys.stdin', None)
  message = refused(config({'prompt_file': '-'}), folder)
  assert message == 'generate.prompt_file: - is standard input, which is closed'


@pytest.mark.thorough
def test_a_prompt_that_is_no_utf_8(tmp_path, capsys):
  """Bytes of a file are what they are; a key is text."""
  run = tmp_path / 'run'
  run.mkdir()
  runs.write(run, vocabulary=Bytes.all_bytes())
  (tmp_path / 'prompt').write_bytes(b'a\xffb')
  asked = {'prompt_file': str(tmp_path / 'prompt')}
  assert printed(capsys, config(asked), run)[:3] == 'a\ufffdb'
  with pytest.raises(UserError, match=r'generate\.prompt is .*; allowed: text'):
    runs.job(config({'prompt': os.fsdecode(b'a\xffb')}), run)
