"""Two implementations measured in turn: ours here, the other in a process.

Each has compiled and is warm, and waits while the other runs: only one of the
two works at any time, and slow drifts of the machine meet both.
"""

import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import types
from typing import Any

from benchmarks import ours
from benchmarks.results import Measured, spread
from txl_jax.program import target_device
from txl_jax.program.errors import UserError

# What both sides have in common besides their sizes.
COMMON = dict(seed=0, dropout=0.1, lr=2.5e-4, clip=0.25)


@contextlib.contextmanager
def _peer(python, spec):
  """The first answer of `peers`, and what measures there, or is None."""
  script = pathlib.Path(__file__).with_name('peers.py')
  try:
    # In a session of its own, an interrupt reaches the parent alone.
    command = [python, script, json.dumps(spec)]
    pipes: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, **pipes, start_new_session=True)
  except OSError as e:
    yield dict(error=e.strerror), lambda: None
    return
  stdin, stdout = process.stdin, process.stdout
  assert stdin and stdout  # they are pipes

  def answer():
    if line := stdout.readline():
      return json.loads(line)
    raise UserError(
      f'the {spec["peer"]} worker ended with status {process.wait()}; '
      'its own message is above'
    )

  def measure():
    if 'error' in ready:
      return None
    with contextlib.suppress(BrokenPipeError):  # then it has no answer
      print('run', file=stdin, flush=True)
    return answer()

  try:
    ready = answer()
    yield ready, measure
  finally:
    process.kill()
    process.communicate()  # closes the pipes


def run(
  benchmark: str, sizes: dict, pairs: int, peer: str, hf_python: str
) -> dict[str, Measured]:
  """Measures both sides in turn, and prints and returns what came out.

  The benchmark is train, eval or decode, the sizes are those of the flags, the
  peer is a model of `peers`. Where the interpreter hf_python cannot run it,
  ours is measured alone.

  UserError: our side cannot run with these sizes, the other has ended, or the
  Transformer-XL of transformers has another number of parameters.
  """
  spec = COMMON | sizes
  # Other work on the same cores spoils a comparison: the load is told.
  machine = {'cpus': os.cpu_count(), 'load': f'{os.getloadavg()[0]:.1f}'}
  machine['instructions'] = target_device.cpu_units() or 'unknown'
  told = ', '.join(f'{k} {v}' for k, v in (spec | machine).items())
  print(f'{benchmark}: {told}', flush=True)
  ready, measure = ours.prepare(benchmark, types.SimpleNamespace(**spec))
  about = '{versions}, {device}, {parameters} parameters'
  print(f'txl_jax: {about.format(**ready)}', flush=True)
  spec |= dict(benchmark=benchmark, device=ready['device'], peer=peer)
  with _peer(hf_python, spec) as (other, measure_other):
    if 'error' in other:
      print(f'{peer}: left out, {hf_python}: {other["error"]}')
    else:
      print(f'{peer}: {about.format(**other)}', flush=True)
      here, there = ready['parameters'], other['parameters']
      if here != there and peer == 'transformers':
        raise UserError(f'txl_jax has {here} parameters, transformers {there}')
    rounds = []
    for i in range(pairs):
      rounds.append((measure(), measure_other()))
      mine, other = rounds[-1]
      text = f'{i + 1}/{pairs}: txl_jax {mine["rate"]:.1f} tokens/s'
      if other:
        ratio = mine['rate'] / other['rate']
        text += f', {peer} {other["rate"]:.1f} tokens/s, '
        text += f'ratio {ratio:.3f}'
      print(text, flush=True)
  print(*summary(rounds, peer), sep='\n')
  rates = _rates(rounds, peer)
  measured = {x: Measured(each, 'tokens/s') for x, each in rates.items()}
  rate = statistics.median(rates['txl_jax'])
  for name, (limit, share) in ours.limits(ready, sizes['dtype']).items():
    used = f', our share {share * rate:.0%}' if share else ''
    print(f'{name}: {max(limit.values):.1f} {limit.unit}{used}')
    measured[name] = limit
  return measured


def _rates(rounds, peer):
  """{side: tokens/s in each round}, of those that were measured."""
  sides = zip(('txl_jax', peer), zip(*rounds))
  return {x: [m['rate'] for m in each] for x, each in sides if None not in each}


def summary(rounds: list[tuple[Any, Any]], peer: str) -> list[str]:
  """Median, lowest and highest of measurements: ours and the other, or None."""
  lines, rates = [], _rates(rounds, peer)
  for i, (name, each) in enumerate(rates.items()):
    nats = statistics.mean(measured[i]['nats'] for measured in rounds)
    loss = f', nll {nats:.3f} nats' if nats else ''  # decoding has none
    lines.append(f'{name}: {spread(each, ".1f")} tokens/s{loss}')
  if len(rates) == 2:
    ratios = [a / b for a, b in zip(*rates.values())]
    lines.append(f'ratio: {spread(ratios, ".3f")}')
  return lines
