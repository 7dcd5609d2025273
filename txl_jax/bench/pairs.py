"""Two implementations measured in turn, each in a process that stays alive.

A process that compiled and warmed up waits until it is told to run, so only
one of the two works at any time, and slow drifts of the machine meet both.

The parent starts a worker with a specification, one JSON object, as its last
argument. The worker answers with one JSON object per line:

  once    {parameters, versions, device} when it is warm; or {error} where it
          cannot run at all
  then    {tokens, seconds, data_seconds, nats} for each line it is sent:
          what it processed in one measurement, in how long, how much of that
          went into making batches, and the mean nll

and ends when its input ends.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

from txl_jax.errors import UserError

BENCHMARKS = ('train', 'eval')

# What both sides have in common besides their sizes.
_COMMON = dict(seed=0, dropout=0.1, lr=2.5e-4, clip=0.25)


class Worker:
  """A process of one side; a context manager that ends it.

  Attributes:
    ready: what it said when it was warm.
  """

  def __init__(self, name, command, spec):
    """Starts it and waits until it is warm; OSError if it cannot start."""
    self._name = name
    # In a session of its own, an interrupt reaches the parent alone.
    self._process = subprocess.Popen(
      [*command, json.dumps(spec)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    stdin, stdout = self._process.stdin, self._process.stdout
    assert stdin and stdout  # they are pipes
    self._stdin, self._stdout = stdin, stdout
    try:
      self.ready = self._read()
    except BaseException:
      self.close()
      raise

  def _read(self):
    line = self._stdout.readline()
    if not line:
      raise UserError(
        f'the {self._name} worker ended with status {self._process.wait()}; '
        'its own message is above'
      )
    return json.loads(line)

  def measure(self):
    """One measurement."""
    with contextlib.suppress(BrokenPipeError):  # then it has no answer
      print('run', file=self._stdin, flush=True)
    return self._read()

  def close(self):
    """Ends the process, at once."""
    self._process.kill()
    self._process.wait()
    self._stdout.close()
    with contextlib.suppress(BrokenPipeError):
      self._stdin.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


def _start_ours(spec):
  command = [sys.executable, '-m', 'txl_jax.bench.ours']
  worker = Worker('txl_jax', command, spec)
  if 'error' in worker.ready:
    worker.close()
    raise UserError(worker.ready['error'])
  return worker


def _start_theirs(spec, hf_python):
  """The other worker, or None and a line that says why there is none."""
  script = pathlib.Path(__file__).with_name('hugging_face.py')
  try:
    worker = Worker('transformers', [hf_python, str(script)], spec)
    reason = worker.ready.get('error')
  except OSError as e:
    worker, reason = None, e.strerror
  if reason:
    print(f'transformers: left out, {hf_python}: {reason}')
    if worker:
      worker.close()
    return None
  return worker


def _describe(name, ready):
  print(
    f'{name}: {ready["versions"]}, {ready["device"]}, '
    f'{ready["parameters"]} parameters',
    flush=True,
  )


def spread(values, form):
  """'median (lowest to highest)' of numbers, in a format like '.1f'."""
  low, high = min(values), max(values)
  median = statistics.median(values)
  return f'{median:{form}} ({low:{form}} to {high:{form}})'


def run(benchmark, spec, *, pairs, hf_python):
  """Measures both sides in turn and prints what came out.

  Args:
    benchmark: one of BENCHMARKS.
    spec: dict of the sizes, see `txl_jax.bench.__main__`.
    pairs: measurements of each side.
    hf_python: path of the interpreter for the other side; where it cannot
      run, our side is measured alone.

  Raises:
    UserError: our side cannot run with this spec, a worker ended, or the two
      models have different numbers of parameters.
  """
  spec = {**_COMMON, **spec, 'benchmark': benchmark}
  sizes = ', '.join(f'{k} {v}' for k, v in spec.items() if k != 'benchmark')
  # Other work on the same cores spoils a comparison: the load is told.
  machine = f'cpus {os.cpu_count()}, load {os.getloadavg()[0]:.1f}'
  print(f'{benchmark}: {sizes}, {machine}', flush=True)
  with contextlib.ExitStack() as stack:
    ours = stack.enter_context(_start_ours(spec))
    _describe('txl_jax', ours.ready)
    spec['device'] = ours.ready['device']
    theirs = _start_theirs(spec, hf_python)
    if theirs:
      stack.enter_context(theirs)
      _describe('transformers', theirs.ready)
      a, b = ours.ready['parameters'], theirs.ready['parameters']
      if a != b:
        raise UserError(f'txl_jax has {a} parameters, transformers {b}')
    rounds = []
    for i in range(pairs):
      mine = ours.measure()
      other = theirs.measure() if theirs else None
      rounds.append((mine, other))
      print(f'{i + 1}/{pairs}: {_line(mine, other)}', flush=True)
  for line in summary(rounds):
    print(line)


def _rate(measured):
  return measured['tokens'] / measured['seconds']


def _line(mine, other):
  text = f'txl_jax {_rate(mine):.1f} tokens/s'
  if other is None:
    return text
  ratio = _rate(mine) / _rate(other)
  return f'{text}, transformers {_rate(other):.1f} tokens/s, ratio {ratio:.3f}'


def summary(rounds):
  """The lines that tell medians, lowest and highest of all rounds.

  Args:
    rounds: pairs of measurements, ours and the other, or ours and None.

  Returns:
    A list of lines.
  """
  mine, others = zip(*rounds)
  sides = {'txl_jax': mine}
  if others[0] is not None:
    sides['transformers'] = others
  lines = []
  for name, measured in sides.items():
    rates = spread([_rate(m) for m in measured], '.1f')
    nats = statistics.mean(m['nats'] for m in measured)
    lines.append(f'{name}: {rates} tokens/s, nll {nats:.3f} nats')
  data = sum(m['data_seconds'] for m in mine)
  share = data / sum(m['seconds'] for m in mine)
  lines.append(f'txl_jax: {share:.3%} of the time spent on batches')
  if len(sides) > 1:
    ratios = [_rate(m) / _rate(o) for m, o in rounds]
    lines.append(f'ratio: {spread(ratios, ".3f")}')
  return lines
