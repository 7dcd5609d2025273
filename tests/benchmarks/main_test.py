import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest

import txl_jax

pytestmark = pytest.mark.thorough

WHAT = 'forward', 'both'
SIDES = 'memory', 'window'
ROOT = pathlib.Path(txl_jax.__file__).parents[1]
DEVICES = '--xla_force_host_platform_device_count'
TINY = '--layers=2', '--d_model=16', '--heads=2', '--d_head=8', '--d_ff=32'
TINY += '--batch=2', '--segment=8', '--memory=8', '--vocab=50'
# Table and output bias, u and v, then per layer q k v r o, the two layers of
# the feed-forward part and two norms.
PARAMETERS = 50 * 16 + 50 + 2 * 16 + 2 * (5 * 256 + 16 * 64 + 48 + 4 * 16)

# Speaks for the interpreter of the other side: 100 tokens/s.
FAKE = """#!{python}
import json, sys
assert sys.argv[1].endswith('peers.py')
spec = json.loads(sys.argv[2])
assert (spec['layers'], spec['dropout'], spec['clip']) == (2, 0.1, 0.25)
ready = dict(parameters={parameters}, versions='fake 1', device='cpu')
print(json.dumps(ready), flush=True)
for i, line in enumerate(sys.stdin):
  if i == {dies}:
    sys.exit('fell over')
  done = dict(rate=100.0, nats=1.5)
  print(json.dumps(done), flush=True)
"""


def run(*args, devices=1):
  return subprocess.run(
    [sys.executable, '-m', 'benchmarks', *map(str, args)],
    cwd=ROOT,
    env={**os.environ, 'XLA_FLAGS': f'{DEVICES}={devices}'},
    capture_output=True,
    text=True,
    timeout=120,
  )


@pytest.fixture
def fake(tmp_path):
  def write(parameters=PARAMETERS, dies=-1):
    path = tmp_path / 'python'
    path.write_text(
      FAKE.format(python=sys.executable, parameters=parameters, dies=dies)
    )
    path.chmod(0o755)
    return path

  return write


def measured(path, benchmark):
  """The results in a JSON file, {name: (unit, values)}."""
  record = json.loads(path.read_text())
  assert record['benchmark'] == benchmark and record['hardware']['cpu_cores']
  assert record['versions']['txl_jax'] == txl_jax.__version__
  for found in record['results'].values():
    assert found['lowest'] <= found['median'] <= found['highest']
  return {n: (x['unit'], x['values']) for n, x in record['results'].items()}


@pytest.mark.slow
def test_attention(tmp_path):
  sizes = '--batch=2', '--segment=6', '--memory=5', '--heads=2', '--d_head=8'
  file = tmp_path / 'attention.json'
  result = run('attention', *sizes, '--pairs=2', f'--json={file}')
  assert result.returncode == 0, result.stderr
  what, *lines = result.stdout.splitlines()
  assert what.startswith('attention: ') and what.endswith(
    'chosen: xla; without positions: xla'
  )
  assert lines[0].startswith('triton: left out, it needs an NVIDIA GPU')
  found = measured(file, 'attention')
  names = [f'{a}, {b}' for a in ('xla', 'without positions') for b in WHAT]
  assert list(found) == names
  for name, line in zip(names, lines[-4:], strict=True):
    assert line.startswith(f'{name}: ') and 'GB of temporaries' in line
    unit, values = found[name]
    assert unit == 'ms' and len(values) == 2 and min(values) > 0


@pytest.mark.slow
def test_sliding(tmp_path):
  file = tmp_path / 'sliding.json'
  sizes = '--lengths=8,800', '--window_tokens=1', '--pairs=1', f'--json={file}'
  result = run('sliding', *TINY, *sizes)
  assert result.returncode == 0, result.stderr
  what, short, long = result.stdout.splitlines()
  assert what.startswith('sliding: seed 0, layers 2, ')
  assert 'batch' not in what and 'memory' not in what
  assert ', lengths (8, 800), window_tokens 1; jax ' in what
  assert short.startswith('attention length 8: memory ')
  assert long.endswith(', paper 363 x')
  found = measured(file, 'sliding')
  assert list(found) == [f'{x}, {n}' for n in (8, 800) for x in SIDES]


@pytest.mark.slow
def test_startup(tmp_path):
  file = tmp_path / 'startup.json'
  result = run('startup', '--pairs=1', f'--json={file}')
  assert result.returncode == 0, result.stderr
  seconds = [x for _, (x,) in measured(file, 'startup').values()]
  assert len(seconds) == 6 and seconds[0] < seconds[2] < seconds[-1]


@pytest.mark.slow
def test_softmax():
  sizes = '--words=300', '--cutoffs=20,60', '--width=16', '--tokens=200'
  result = run('softmax', *sizes, '--pairs=2')
  assert result.returncode == 0, result.stderr
  what, *lines = result.stdout.splitlines()
  shares = re.search(r'bins: (\S+)%, (\S+)%, (\S+)%; ', what).groups()
  assert sum(map(float, shares)) == pytest.approx(100, abs=0.2)
  figures = r'[\d.]+ \([\d.]+ to [\d.]+\)'
  names = 'adaptive', 'crowded', 'wide', 'narrow'
  for name, line in zip(names, lines, strict=True):
    form = (
      rf'{name}: {figures} s, [\d.]+ GB; {figures} x the time of adaptive, '
    )
    assert re.fullmatch(rf'{form}[\d.]+ x its memory', line)


@pytest.mark.slow
@pytest.mark.parametrize('benchmark', ['train', 'eval'])
def test_our_side_alone(benchmark):
  nowhere = '/no/such/python'
  flags = '--steps=2', '--pairs=1', f'--hf_python={nowhere}'
  result = run(benchmark, *TINY, *flags)
  assert result.returncode == 0, result.stderr
  what, ours, theirs, first, rate, *limits = result.stdout.splitlines()
  assert what.startswith(f'{benchmark}: ')
  assert f', cpus {os.cpu_count()}, load ' in what
  assert ours.endswith(f', cpu, {PARAMETERS} parameters')
  assert theirs == (
    f'transformers: left out, {nowhere}: No such file or directory'
  )
  speed = re.fullmatch(r'1/1: txl_jax ([\d.]+) tokens/s', first)[1]
  assert float(speed) > 0
  found = re.fullmatch(
    rf'txl_jax: {speed} \({speed} to {speed}\) tokens/s, nll ([\d.]+) nats',
    rate,
  )
  product, copied = limits
  assert re.fullmatch(
    r'product of 2048 x 2048 float32: [\d.]+ GFLOP/s, our share \d+%', product
  )
  assert re.fullmatch(r'sum of \d+ MB: [\d.]+ GB/s', copied)
  # Of random tokens nothing can be learned: a fresh model is near ln V.
  assert math.isclose(float(found[1]), math.log(50), abs_tol=0.1)


@pytest.mark.slow
def test_both_sides_in_turn(fake):
  flags = '--steps=3', '--pairs=3', f'--hf_python={fake()}'
  result = run('eval', *TINY, *flags, '--segments_per_call=2')
  assert result.returncode == 0, result.stderr
  _, _, theirs, *lines = result.stdout.splitlines()
  *rounds, mine, other, ratio, _, _ = lines
  assert theirs == f'transformers: fake 1, cpu, {PARAMETERS} parameters'
  assert other == (
    'transformers: 100.0 (100.0 to 100.0) tokens/s, nll 1.500 nats'
  )
  form = (
    r'./3: txl_jax ([\d.]+) tokens/s, transformers 100.0 tokens/s, '
    r'ratio ([\d.]+)'
  )
  rates, ratios = zip(
    *(map(float, re.fullmatch(form, r).groups()) for r in rounds)
  )
  assert ratios == pytest.approx([r / 100 for r in rates], abs=2e-3)
  low, middle, high = sorted(ratios)
  assert ratio == f'ratio: {middle:.3f} ({low:.3f} to {high:.3f})'
  low, middle, high = sorted(rates)
  assert mine.startswith(f'txl_jax: {middle:.1f} ({low:.1f} to {high:.1f}) ')


@pytest.mark.slow
@pytest.mark.parametrize(
  'what, found',
  [
    ({'parameters': 7}, f'txl_jax has {PARAMETERS} parameters, transformers 7'),
    ({'dies': 0}, 'the transformers worker ended with status 1'),
  ],
)
def test_other_side_that_cannot_be_compared(fake, what, found):
  result = run('eval', *TINY, '--steps=1', f'--hf_python={fake(**what)}')
  assert result.returncode == 1
  assert 'ratio' not in result.stdout
  *_, last = result.stderr.splitlines()
  assert last.startswith(f'error: {found}')


@pytest.mark.slow
def test_preparing_words():
  result = run('prepare', '--megabytes=2', '--words=501')
  assert result.returncode == 0, result.stderr
  what, rate, memory = result.stdout.splitlines()
  found = re.fullmatch(
    r'prepare: (\d+) MB, ([\d,]+) tokens, 501 words in the vocabulary, '
    rf'cpus {os.cpu_count()}',
    what,
  )
  assert int(found[1]) >= 2
  assert re.match(r'txl_jax: [\d,]+ tokens/s, \d+\.\d s with ', rate)
  assert re.match(r'memory: at most [\d,]+ MB', memory)


@pytest.mark.slow
def test_data():
  result = run('data', '--megatokens=1', '--pairs=2')
  assert result.returncode == 0, result.stderr
  what, *lines = result.stdout.splitlines()
  batches = 20  # of 64 x 768 tokens in an epoch
  assert what.startswith(
    f'data: 1,000,000 tokens, {batches} batches of 64 x 768'
  )
  number = r'(\d+\.\d)'
  form = rf'{{}}: median {number} \({number} to {number}\) M tokens/s'
  names = (
    'contiguous, uint8',
    'contiguous, int32',
    'shuffled by sentence, int32',
  )
  for name, line in zip(names, lines, strict=True):
    found = re.match(form.format(name), line)
    middle, low, high = map(float, found.groups())
    assert 0 < low <= middle <= high
  found = re.search(r' sentences drawn in ([\d.]+) s, once an epoch', lines[-1])
  assert float(found[1]) >= 0


SOFTMAX = 'softmax --words=300 --width=16 --cutoffs='
ASCENDING = 'allowed: ascending numbers from 1 to 299'
ERRORS = {
  '': "the benchmark is ''; allowed: train, eval, decode, attention, sliding",
  'speed': "the benchmark is 'speed'; allowed: train, eval, decode, atte",
  'train eval': "argument 'eval' is not expected",
  'train --steps=0': 'flag --steps=0',
  'train --stepz=1': "Unknown command line flag 'stepz'",
  'eval --dtype=float8': 'flag --dtype=float8',
  'hlo --config=ptb --config.model.nokey=1': (
    '--config.model.nokey: there is no such key; '
  ),
  'sliding --lengths=8,x': '--lengths is 8,x; allowed: whole numbers',
  'hlo --json=no/such/a': "--json is 'no/such/a'; allowed: a file",
  'data --json=no/such/a': "--json is 'no/such/a'; allowed: a file",
  'data --json=/dev/null': "--json is '/dev/null'; allowed: a file",
  f'data --json={"x" * 254}': '--json: xxx',  # too long with .tmp
  'eval --d_model=15': '--d_model is 15; allowed: even numbers',
  f'train {" ".join(TINY)} --batch=3': (
    '--batch is 3; allowed: multiples of 2 (dev'
  ),
  'train --threads=100000': (
    f'--threads is 100000; allowed: 1 to {os.cpu_count()}'
  ),
  f'{SOFTMAX}20,300': f'--cutoffs is 20,300; {ASCENDING}',
  f'{SOFTMAX}20,20': f'--cutoffs is 20,20; {ASCENDING}',
  f'{SOFTMAX}20,x': f'--cutoffs is 20,x; {ASCENDING}',
  f'{SOFTMAX}20,60 --div_val=5': (
    '--div_val is 5; allowed: numbers that leave the last tail a width, of 16'
  ),
}


def test_errors_of_the_user():
  """One program that is imported once, and run for each of them."""
  files = (ROOT / 'benchmarks').glob('[a-z]*.py')
  modules = sorted(f'benchmarks.{x.stem}' for x in files if x.stem != 'peers')
  done = subprocess.run(
    [sys.executable, '-m', 'tests.forked', 'benchmarks', *modules],
    input=json.dumps([x.split() for x in ERRORS]),
    cwd=ROOT,
    env={**os.environ, 'XLA_FLAGS': f'{DEVICES}=2'},
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  for command, (status, out, errors) in zip(ERRORS, found, strict=True):
    # Devices are counted after the sizes have been printed.
    assert status == 1 and (not out or '--batch=3' in command), command
    (line,) = errors.splitlines()
    assert line.startswith(f'error: {ERRORS[command]}'), command


@pytest.mark.slow
def test_more_memory_than_there_is():
  sizes = '--batch=1000000', '--segment=200000', '--memory=1', '--pairs=1'
  result = run('attention', *sizes)
  assert result.returncode == 1
  (line,) = result.stderr.splitlines()
  assert line.startswith('error: out of memory: ')
  assert line.endswith(' or model, or more devices')
