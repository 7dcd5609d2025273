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
from collections.abc import Sequence

from txl_jax.errors import UserError

BENCHMARKS = ('train', 'eval')

# What both sides have in common besides their sizes.
_COMMON = dict(seed=0, dropout=0.1, lr=2.5e-4, clip=0.25)


@contextlib.contextmanager
def _worker(name, command, spec):
  """Starts a process with a specification; OSError if it cannot start.

  Yields:
    A function that sends it a line, where one is given, and returns its next
    answer; UserError if it has ended.
  """
  # In a session of its own, an interrupt reaches the parent alone.
  process = subprocess.Popen(
    [*command, json.dumps(spec)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
  )
  stdin, stdout = process.stdin, process.stdout
  assert stdin and stdout  # they are pipes

  def ask(line=''):
    with contextlib.suppress(BrokenPipeError):  # then it has no answer
      print(line, file=stdin, end='', flush=True)
    answer = stdout.readline()
    if not answer:
      raise UserError(
        f'the {name} worker ended with status {process.wait()}; '
        'its own message is above'
      )
    return json.loads(answer)

  try:
    yield ask
  finally:
    process.kill()
    process.wait()
    stdout.close()
    with contextlib.suppress(BrokenPipeError):
      stdin.close()


def run(benchmark: str, spec: dict, *, pairs: int, hf_python: str) -> None:
  """Measures both sides in turn and prints what came out.

  Args:
    benchmark: one of BENCHMARKS.
    spec: the sizes, see `txl_jax.bench.__main__`.
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

    def start(name, *command):
      ask = stack.enter_context(_worker(name, command, spec))
      ready = ask()
      if 'error' not in ready:
        print(
          f'{name}: {ready["versions"]}, {ready["device"]}, '
          f'{ready["parameters"]} parameters',
          flush=True,
        )
      return ask, ready

    ours, ready = start('txl_jax', sys.executable, '-m', 'txl_jax.bench.ours')
    if 'error' in ready:
      raise UserError(ready['error'])
    spec['device'] = ready['device']
    script = pathlib.Path(__file__).with_name('hugging_face.py')
    try:
      theirs, other = start('transformers', hf_python, str(script))
    except OSError as e:
      theirs, other = None, dict(error=e.strerror)
    if 'error' in other:
      print(f'transformers: left out, {hf_python}: {other["error"]}')
      theirs = None
    elif ready['parameters'] != other['parameters']:
      raise UserError(
        f'txl_jax has {ready["parameters"]} parameters, transformers '
        f'{other["parameters"]}'
      )
    rounds = []
    for i in range(pairs):
      rounds.append((ours('run\n'), theirs('run\n') if theirs else None))
      print(f'{i + 1}/{pairs}: {_line(*rounds[-1])}', flush=True)
  for line in summary(rounds):
    print(line)


def spread(values: Sequence[float], form: str) -> str:
  """'median (lowest to highest)' of numbers, in a format like '.1f'."""
  low, high = min(values), max(values)
  median = statistics.median(values)
  return f'{median:{form}} ({low:{form}} to {high:{form}})'


def _rate(measured):
  return measured['tokens'] / measured['seconds']


def _line(mine, other):
  text = f'txl_jax {_rate(mine):.1f} tokens/s'
  if other is None:
    return text
  ratio = _rate(mine) / _rate(other)
  return f'{text}, transformers {_rate(other):.1f} tokens/s, ratio {ratio:.3f}'


def summary(rounds: list[tuple[dict, dict | None]]) -> list[str]:
  """The lines that tell medians, lowest and highest of all rounds.

  Args:
    rounds: pairs of measurements, ours and the other, or ours and None.
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
