import collections
import os
import pickle
import re
import struct
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.convert import guard, pickling
from txl_jax.program import pickles

P = pickling.PROTOCOL

values = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-(2**100), 2**100)
  | st.floats(allow_nan=False)
  | st.text(max_size=300)
  | st.binary(max_size=300),
  lambda x: (
    st.lists(x, max_size=4)
    | st.lists(x, max_size=4).map(tuple)
    | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), x, max_size=4)
  ),
  max_leaves=12,
)


def loads(data):
  return pickles.loads(data, 'a file')[0]


def refused(data, **limits):
  return guard.refused(loads, data, most=500, **limits)


@pytest.mark.thorough
@hypothesis.given(values, st.integers(3, 5))
@hypothesis.settings(deadline=None, max_examples=60, database=None)
def test_plain_values_are_as_pickle_has_them(value, protocol):
  data = pickle.dumps(value, protocol)
  assert pickles.loads(data + b'more', '') == (value, len(data))


def test_strings_of_python_2_are_text():
  pairs = collections.OrderedDict([('the', 0), ('Straße', 1)])
  value = {'words': ['Straße', 'x' * 300], 'ids': pairs}
  found = loads(pickling.python2(value))
  assert found['words'] == value['words']
  assert [*pickles.fields(found['ids']).items()] == [*pairs.items()]


def test_dicts_of_collections():
  value = {
    'a': collections.OrderedDict(x=1),
    'b': collections.Counter('aab'),
    'c': collections.defaultdict(list, {3: [4]}),
  }
  for protocol in 2, 4:
    found = loads(pickle.dumps(value, protocol))
    assert {k: pickles.fields(x) for k, x in found.items()} == value


def test_objects_keep_their_state_alone():
  data = P + b'cvocabulary\nVocab\n)\x81}' + pickling.text('a') + b'K\x01sb.'
  found = loads(data)
  assert type(found) is pickles.Stub
  assert found.state == {'a': 1} and found.args == ()


def test_arrays_of_numpy_are_not_made():
  found = loads(pickle.dumps([np.arange(5), np.float64(3)], 2))
  assert [type(x) for x in found] == [pickles.Stub] * 2


def test_large_bytes_stay_where_they_are():
  data = pickle.dumps([bytes(1 << 24)], 4)
  python2 = pickling.python2(['x' * (1 << 24)])
  with guard.nothing_runs(memory=1 << 20):
    found = loads(data) + loads(python2)
  assert [len(x) for x in found] == [1 << 24] * 2
  assert all(type(x) is memoryview for x in found)


CALLS = [
  pickling.call('os', 'system', 'touch /tmp/x'),
  pickling.call('posix', 'system', 'touch /tmp/x'),
  pickling.call('nt', 'system', 'x'),
  pickling.call('subprocess', 'Popen', 'x'),
  pickling.call('builtins', 'eval', '1+1'),
  pickling.call('__builtin__', 'eval', '1+1'),
  pickling.call('builtins', 'exec', 'x=1'),
  pickling.call('builtins', 'getattr', 'x', 'y'),
  pickling.call('builtins', '__import__', 'os'),
  pickling.call('builtins', 'open', '/etc/passwd'),
  pickling.call('operator', 'attrgetter', 'system'),
  pickling.call('functools', 'partial', 'x'),
  pickling.call('importlib', 'import_module', 'os'),
  pickling.call('runpy', '_run_code', 'x'),
  pickling.call('torch', 'load', 'x'),
  pickling.call('torch.hub', 'load', 'x'),
  pickling.call('numpy', 'load', 'x'),
  pickling.call('numpy.core.multiarray', 'fromfile', 'x'),
  pickling.call('torch.storage', '_load_from_bytes', 'x'),
  pickling.call('torch.utils._config_module', 'ConfigModule', 'x'),
  pickling.call('collections', 'OrderedDict.__init__', 'x'),
  pickling.call('collections', 'abc', 'x'),
  pickling.call('os\x00', 'system', 'x'),
  pickling.call('txl_jax.convert.formats.pickles', '_Stream', 'x'),
  pickle.dumps(pickling.Runs(os.system, 'touch /tmp/x'), 2),
  pickle.dumps(pickling.Runs(eval, '1'), 4),
  pickle.dumps(pickling.Runs(getattr, 'a', 'b'), 5),
  pickle.dumps({'weights': [pickling.Runs(os.system, 'x')]}, 2),
  P + pickling.text('os') + pickling.text('system') + b'\x93.',
]


@pytest.mark.parametrize('data', CALLS, ids=range(len(CALLS)))
def test_what_would_run_is_refused(data):
  said = refused(data, memory=1 << 20)
  assert said.startswith('a file is refused: it names ')


def test_what_is_said_of_a_name():
  expected = 'it names os.system, which no weights or vocabulary need'
  assert refused(CALLS[0]) == f'a file is refused: {expected}'


@pytest.mark.parametrize('data', CALLS, ids=range(len(CALLS)))
def test_names_of_code_run_nothing_either(data, monkeypatch):
  """Were a name allowed by mistake, still nothing would be called."""
  monkeypatch.setattr(pickles, '_ALLOWED', re.compile('(?s).*'))
  with guard.nothing_runs():
    found = loads(data)
  found = found['weights'][0] if type(found) is dict else found
  assert found is pickles.Stub or type(found) is pickles.Stub


def repeated(piece, size=1 << 18):
  return piece * (size // len(piece))


def tuples(n):
  """A tuple of pairs of the same pair…: two to the power of n."""
  return b')' + b'2\x86' * n


OTHERS = {
  'empty': b'',
  'protocol': b'\x80\x09.',
  'no object': P + b'.',
  'missing mark': P + b'K\x01t.',
  'extension': P + b'\x82\x01.',
  'number': P + b'\x8b' + struct.pack('<i', 1 << 30) + b'\x01' * 99 + b'.',
  'negative length': P + b'T' + struct.pack('<i', -5) + b'abc.',
  'bytes': P + b'\x8e' + struct.pack('<Q', 1 << 62) + b'abc.',
  'text': P + b'\x8d' + struct.pack('<Q', 1 << 40) + b'abc.',
  'array': P + b'\x96' + struct.pack('<Q', 1 << 40) + b'abc.',
  'unknown place': P + b'j' + struct.pack('<I', 1 << 31) + b'.',
  'key': P + b'}' + tuples(60) + b'K\x01s.',
  'key of tuples': P + b'(' + tuples(60) + b'K\x01d.',
  'list key': P + b'}]K\x01s.',
  'name of tuples': P + tuples(60) + b'2\x93.',
  'state of a number': P + b'K\x01}K\x01K\x01sb.',
  'items of a tuple': P + b')K\x01a.',
  'call of text': P + pickling.text('os') + b')R.',
  'names': P + b'cvocabulary\nVocab\n)}' + pickling.text('a') + b'K\x01s\x92.',
  'long name': P + b'c' + b'x' * 100_000 + b'\nx\n.',
  'no line': P + b'cos',
  'lists': P + repeated(b']'),
  'dicts': P + repeated(b'}'),
  'marks': P + repeated(b'('),
  'numbers': P + repeated(b'N'),
  'memo': P + b'N' + repeated(b'\x94'),
  'the same dict': P + b']' + b'(' + b']K\x01aK\x02a' * 2000 + b'eq\x00'
  + b'ccollections\nOrderedDict\nq\x01' + repeated(b'h\x01h\x00\x85R'),
}  # fmt: skip


@pytest.mark.parametrize('name', OTHERS)
def test_what_is_no_pickle_of_weights(name, monkeypatch):
  monkeypatch.setattr(pickles, '_STEPS', 100_000)
  refused(OTHERS[name], memory=24 << 20)


def test_the_cost_of_opcodes(monkeypatch):
  """A list of 8, None and an end of 1, a place in the memo of 4."""
  monkeypatch.setattr(pickles, '_STEPS', 14)  # which are allowed
  stream = pickles._Stream(memoryview(b'N]\x94.'), 0)
  unpickler = pickles._Unpickler(stream, 'a file', None)
  assert unpickler.load() == []
  assert unpickler.steps == 1 + 8 + 4 + 1


PIECES = {
  'numbers': b'G01234567',
  'memo': b'\x94',
  'lists': b']',
  'dicts': b'}',
  'sets': b'\x8f',
  'dicts of one': b'}K\x01Ns',
  'objects': b'h\x00h\x01\x81',
}


@pytest.mark.slow
@pytest.mark.parametrize('name', PIECES)
def test_bombs_up_to_the_last_step(name, tmp_path):
  """They take less than 1.5 GB, the file included, and at most 5 us a step."""
  start = P + b'cvocabulary\nVocab\nq\x00)q\x01N'
  (tmp_path / 'bomb').write_bytes(start + PIECES[name] * 45_000_000)
  code = f"""
import resource, time
from txl_jax.program import files
from txl_jax.program import pickles
from txl_jax.program.errors import UserError
data = files.mapped({str(tmp_path / 'bomb')!r})
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before = memory()
started = time.process_time()
try:
  pickles.loads(data, 'a file')
except UserError as e:
  print(e)
took, most = time.process_time() - started, memory() - before
print(f'{{took:.1f}} s, {{most:,}} bytes')
assert took < 5e-6 * pickles._STEPS and most < 1.5e9
"""
  command = [sys.executable, '-c', code]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert 'steps' in done.stdout, done.stdout
  print(name, done.stdout.splitlines()[-1])


def test_a_far_place_in_the_memo_takes_no_memory():
  data = P + b'Nr' + struct.pack('<I', (1 << 32) - 1) + b'.'
  with guard.nothing_runs(memory=1 << 16):
    assert loads(data) is None


DEEP = {
  'tuples': b')' + b'\x85' * 25_000,
  'lists': b']' * 25_000 + b'a' * 24_999,
  'objects': b'N' + b'q\x00cvocabulary\nVocab\nh\x00\x85\x81' * 25_000,
}


@pytest.mark.default_cases('tuples')
@pytest.mark.parametrize('name', DEEP)
def test_deep_values(name):
  with guard.nothing_runs(memory=1 << 30):
    found = loads(P + DEEP[name] + b'.')
    del found


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=60, database=None)
def test_damage(data):
  """Whatever comes of it, it is told in a line, or is some plain object."""
  value = {'a': [1, 'x' * 9], 'b': collections.OrderedDict(c=(2.5, None))}
  whole = pickle.dumps(value, data.draw(st.sampled_from([2, 4])))
  damaged = guard.damaged(data, whole)
  guard.read_or_refuse(loads, damaged, most=500, memory=16 << 20)
