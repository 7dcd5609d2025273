"""A run of token ids: the same figures as of bytes, ids in and ids out."""

import io
import json
import pickle

import jax
import numpy as np
import pytest

import txl_jax
from tests.modes import runs
from txl_jax.data.vocabularies.bytes import Bytes
from txl_jax.data.vocabularies.ids import Ids
from txl_jax.experiment import job, texts
from txl_jax.modes import generate, score
from txl_jax.program.errors import UserError

TEXT = b'Of bytes, \n and more, \tmuch more.\n' * 3
IDS = [*TEXT]
NUMBERS = ' '.join(map(str, IDS))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Runs with the same weights: bytes, and their ids without names."""
  made = tmp_path_factory.mktemp('ids')
  for name, vocabulary in (
    ('bytes', Bytes.all_bytes()),
    ('ids', Ids.of_names({}, 256)),
  ):
    (made / name).mkdir()
    of = dict(vocabulary=vocabulary, segment_len=6, init_std=0.7)
    runs.write(made / name, **of)
  return made


@pytest.fixture(scope='module')
def both(folder):
  return [txl_jax.load(folder / name) for name in ('bytes', 'ids')]


@pytest.mark.thorough
def test_ids_have_the_losses_of_their_bytes(both):
  of_bytes, of_ids = both
  there = of_bytes.score(TEXT)
  for text in (IDS, np.array(IDS, np.uint16), NUMBERS):
    found = of_ids.score(text)
    np.testing.assert_array_equal(found.nll, there.nll)
    assert found.total == there.total and np.isnan(found.bits_per_byte)
    np.testing.assert_array_equal(found.ids, IDS[1:])
  spans = [NUMBERS[i:j] for i, j in of_ids.score(NUMBERS).offsets]
  assert spans == [*map(str, IDS[1:])]


@pytest.mark.thorough
def test_ids_are_continued_by_ids(both):
  of_bytes, of_ids = both
  more = dict(max_new_tokens=9, seed=3, samples=2)
  there = [[*x] for x in of_bytes.generate(TEXT[:9], **more)]
  assert [x.tolist() for x in of_ids.generate(IDS[:9], **more)] == there
  assert [x.tolist() for x in of_bytes.generate(IDS[:9], **more)] == there
  texts = of_ids.generate(' '.join(map(str, IDS[:9])), **more)
  assert [[*map(int, x.split())] for x in texts] == there
  found = of_ids.generate([np.array(IDS[:9]), []], max_new_tokens=9)
  assert [(x.dtype, len(x)) for x in found] == [(np.int32, 9)] * 2
  assert of_ids.generate(IDS[:9], max_new_tokens=9).shape == (9,)
  found = of_bytes.generate(['a', b'b', [99]], max_new_tokens=1, samples=2)
  assert [*map(type, found)] == [str, str, bytes, bytes, *[np.ndarray] * 2]
  stop = f'  {there[0][4]}\n'  # of one id, however it is written
  found = of_ids.generate(IDS[:9], stop=stop, **more)
  ends = [[*x, there[0][4]].index(there[0][4]) for x in there]
  assert [x.tolist() for x in found] == [x[:n] for x, n in zip(there, ends)]
  with pytest.raises(UserError, match=r"^stop: 'x' is not a token; allowed"):
    of_ids.generate(IDS[:9], stop='x')


@pytest.mark.thorough
def test_a_document_is_continued_without_its_end(folder):
  there = folder / 'documents'
  there.mkdir()
  runs.write(there, vocabulary=Ids.of_names({}, 2).of_documents())
  run = txl_jax.load(there)
  found = run.generate([0, 1], samples=9, max_new_tokens=30)
  assert {*np.concatenate(found).tolist()} == {0, 1}
  assert min(map(len, found)) < 30
  assert len(run.score([0, 1, 1]).nll) == 3


@pytest.mark.thorough
@pytest.mark.parametrize('name', ['a.npy', 'a.bin', 'a.txt'])
def test_the_modes_read_files(folder, both, tmp_path, name, capsys):
  path = tmp_path / name
  if name == 'a.npy':
    np.save(path, IDS)
  elif name == 'a.bin':
    np.array(IDS, '<u2').tofile(path)
  else:
    path.write_text(NUMBERS)
  c = runs.config()
  c.generate.update(prompt_file=f'{path}', max_new_tokens=4)
  one = runs.job(c, folder / 'ids')
  to = tmp_path / 'nll.jsonl'
  about = one.folder, one.console, one.watch, ''
  of_text = job.Job(one.config, *about, f'{path}', f'{to}')
  found = score.run(of_text)
  assert found.total == both[1].score(IDS).total
  line = capsys.readouterr().out
  bits = f'{found.bits_per_token:.5f} bits per token'
  assert f'({found.nats:.5f} nats), {bits}' in line
  assert ' bytes' not in line
  lines = [*map(json.loads, to.read_text().splitlines())]
  assert [x['text'].strip() for x in lines] == [f'{i}' for i in IDS[1:]]
  generate.run(one)
  written = capsys.readouterr().out.split()
  assert [*map(int, written[: len(IDS)])] == IDS
  assert len(written) == len(IDS) + 4


def test_ids_in_a_file_are_not_read_as_text():
  """Names may be read otherwise than they were written."""
  names = Ids.of_names(dict(enumerate(['a', 'b', 'ab', '\r'])), 4)
  buffer = io.BytesIO()
  np.save(buffer, ids := np.array([0, 1, 3, 2, 0]))
  _, found = texts.of_file(names, buffer.getvalue(), 'X.NPY', 'uint16')
  np.testing.assert_array_equal(found, ids)
  assert names.encode(texts.plain(names, b'\rb'), '').tolist() == [3, 1]


@pytest.mark.parametrize(
  'name', ['--text=a.npy', 'generate.prompt_file: a.bin']
)
@pytest.mark.parametrize(
  'data, found', [(pickle.dumps([0, 1] * 99), 'pickle'), (b'ab' * 99, 'text')]
)
def test_files_to_score_that_hold_no_ids(name, data, found):
  names = Ids.of_names({}, 60_000)
  with pytest.raises(UserError, match=f'^{name} is a {found}; allowed: '):
    texts.of_file(names, data, name, 'uint16')


@pytest.mark.parametrize(
  'ids, found',
  [
    ([0, 256, -1], 'a token id of {} is 256; allowed: 0 to 255'),
    ([0, -1], 'a token id of {} is -1'),
    ([256], 'a token id of {} is 256; allowed: 0 to 255'),
    ([3, 'x'], r'{} is <U21 \[2\]; allowed: a text, or int'),
    ('3 x', "{}: 'x' is not a token; allowed: 0 to 255, or names"),
    ([1, 2.5], r'{} is float64 \[2\]; allowed: a text, or int'),
    ([3, True], r'{} is bool \[2\]; allowed: a text, or int'),
    ([True, 3], r'{} is bool \[2\]; allowed: a text, or int'),
    ([3, np.True_], r'{} is bool \[2\]; allowed: a text, or int'),
    (np.array([True, False]), r'{} is bool \[2\]; allowed: a text, or int'),
    (np.array([3, 4], 'm8[s]'), r'{} is timedelta64\[s\] \[2\]; allowed'),
  ],
)
def test_texts_that_are_no_ids(both, ids, found):
  run = both[1]
  for name, call in ('text', run.score), ('prompt', run.generate):
    with pytest.raises(UserError, match=found.format(name)):
      call(ids)


def test_calls_that_jax_traces(both):
  run, ids = both[1], np.array(IDS)
  for call in run.score, run.generate, run.attention, run.hidden:
    with pytest.raises(UserError, match=r'cannot be inside jax\.jit'):
      jax.jit(lambda x, call=call: call(x) and x)(ids)
