"""Changes the core in small wrong ways, and counts those that a test notices.

pip install cosmic-ray
python -m tests.mutations --sample=40 --seed=0 --report=mutations.json

For each module of the core: cosmic-ray names every small change of its code
(another operator, constant, comparison, condition, decorator, exception; not
those of annotations); so many are drawn of them, each is made in a copy of the
repository, and tests run until the first one fails: those of the module first,
then those of its neighbours. A change that no test notices within --timeout is
printed as a diff that says whether it survived or timed out; neither counts as
noticed. --sample=0 takes all of them: a day on two cores.
"""

import argparse
import ast
import collections
import contextlib
import difflib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from cosmic_ray import plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.work_db import use_db

MODELS = ['tests/models/transformer_xl_test.py']
MODELS += ['tests/models/hf_golden_test.py', 'tests/models/interface_test.py']
MODELS += ['tests/models/stack_test.py']
POSITIONS = ['tests/models/baselines/transformers_test.py']
STEP = ['tests/training/step_test.py', 'tests/training/step_xl_test.py']
LOOP = ['tests/training/loop_test.py', 'tests/training/meshes_test.py']
VOCABULARY = ['tests/models/vocabulary_test.py']
VOCABULARY += ['tests/parallel/vocab_parallel_test.py']
OPTIM = ['tests/training/optim_test.py', 'tests/experiment/sections_test.py']
DOCUMENTS = ['tests/modes/document_runs_test.py']
CHECKPOINTS = ['tests/runs/checkpoint', 'tests/runs/checkpoint_folder_test.py']
KEYS = ['tests/configs_test.py', 'tests/experiment/sections_test.py']
KEYS += ['tests/experiment/sections_together_test.py']

# {module: tests, those that most likely fail first}.
CORE = {
  'attention.py': ['tests/attention_test.py', *MODELS, 'tests/models'],
  'ops/kernels/xla.py': ['tests/ops/kernels/xla_test.py', *MODELS],
  'ops/dropout.py': [
    'tests/ops/dropout_test.py',
    'tests/models/dropout_test.py',
    *MODELS,
  ],
  'ops/matmul.py': [
    'tests/ops/matmul_test.py',
    'tests/models/stack_test.py',
    *MODELS,
  ],
  'ops/softmax.py': ['tests/ops', *VOCABULARY, 'tests/models'],
  'ops/selected_rows.py': ['tests/ops', *VOCABULARY],
  'models/base.py': [
    'tests/models/base_test.py',
    'tests/models/interface_test.py',
    'tests/models/regularisation_test.py',
    'tests/models',
  ],
  'models/config.py': [
    'tests/models/dropout_test.py',
    *MODELS,
    *KEYS,
    'tests/models',
  ],
  'models/inference.py': [*MODELS, 'tests/models', 'tests/generation'],
  'models/inspection.py': ['tests/models/inspection_test.py', *MODELS],
  'models/baselines/shaw.py': [*POSITIONS, *KEYS],
  'models/baselines/vaswani.py': [*POSITIONS, *KEYS],
  'models/baselines/al_rfou.py': [
    'tests/models/baselines/al_rfou_test.py',
    'tests/models',
  ],
  'models/stack.py': [*MODELS, 'tests/models', *STEP],
  'models/transformer_xl.py': [*MODELS, 'tests/models', *STEP],
  'models/vocabulary.py': [*VOCABULARY, 'tests/models', *STEP],
  'models/windowed.py': ['tests/models/windowed_test.py', 'tests/generation'],
  'training/step.py': [*STEP, *LOOP],
  'training/state.py': ['tests/training/state_test.py', *STEP, *LOOP],
  'training/optim.py': [*OPTIM, *STEP],
  'training/averaging.py': ['tests/training/averaging_test.py', *STEP, *LOOP],
  'training/metrics.py': ['tests/training/metrics_test.py', *STEP, *LOOP],
  'data/streams.py': ['tests/data', *DOCUMENTS, *LOOP],
  'runs/checkpoint.py': [
    *CHECKPOINTS,
    'tests/experiment/pretrained_test.py',
    *LOOP,
  ],
}


def changes(path):
  """Every change of a module, as its whole text."""
  source = path.read_text()
  spans = list(_annotations(ast.parse(source)))
  found = set()
  with use_db(':memory:') as db:
    init([path], db, {})
    items = list(db.work_items)
  for item in items:
    (change,) = item.mutations
    inside = (a <= change.start_pos and change.end_pos <= b for a, b in spans)
    if not any(inside):
      operator = plugins.get_operator(change.operator_name)()
      with contextlib.suppress(AttributeError):  # an exception with a dot
        found.add(mutate_code(source, operator, change.occurrence))
  return sorted(found - {None, source})


def _annotations(tree):
  """Where annotations begin and end."""
  for node in ast.walk(tree):
    for name in ('annotation', 'returns'):
      if x := getattr(node, name, None):
        yield (x.lineno, x.col_offset), (x.end_lineno, x.end_col_offset)


def outcome(root, tests, seconds):
  """'survived', 'noticed' or 'timed out': tests in a copy of the repository."""
  command = [sys.executable, '-m', 'pytest', '-x', '-q', '-m', 'not slow']
  command += ['-o', 'addopts=', '-p', 'no:cacheprovider', *tests]
  env = os.environ | {'PYTHONPATH': str(root), 'JAX_PLATFORMS': 'cpu'}
  with subprocess.Popen(
    command,
    cwd=root,
    env=env,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  ) as process:
    try:
      return 'noticed' if process.wait(seconds) else 'survived'
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, 9)
      return 'timed out'


def main():
  """The program."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('modules', nargs='*', help=f'of {", ".join(CORE)}')
  parser.add_argument('--sample', type=int, default=40, help='of each module')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--timeout', type=float, default=900, help='seconds')
  parser.add_argument('--report', type=pathlib.Path, default='mutations.json')
  args = parser.parse_args()
  counts, survivors = collections.Counter(), []
  with tempfile.TemporaryDirectory() as root:
    root = pathlib.Path(root)
    archive = subprocess.Popen(['git', 'archive', 'HEAD'], stdout=-1)
    subprocess.run(['tar', 'x', '-C', root], stdin=archive.stdout, check=True)
    for name in args.modules or CORE:
      path, tests = root / 'txl_jax' / name, list(dict.fromkeys(CORE[name]))
      source, every = path.read_text(), changes(path)
      random.Random(args.seed).shuffle(every)
      drawn = every[: args.sample or None]
      begin, alive = time.monotonic(), 0
      for text in drawn:
        path.write_text(text)
        end = outcome(root, tests, args.timeout)
        if end != 'noticed':
          alive += 1
          lines = source.splitlines(True), text.splitlines(True)
          diff = ''.join(difflib.unified_diff(*lines, name, end, n=2))
          survivors.append(diff)
          print(diff, flush=True)
      path.write_text(source)
      counts += collections.Counter(drawn=len(drawn), alive=alive)
      seconds = time.monotonic() - begin
      noticed = f'{len(drawn) - alive} of {len(drawn)} noticed'
      print(f'{name}: {noticed}, of {len(every)}, {seconds:.0f} s', flush=True)
      report = {'drawn': counts['drawn'], 'survivors': survivors}
      args.report.write_text(json.dumps(report, indent=1))
  killed = counts['drawn'] - counts['alive']
  print(f'{killed} of {counts["drawn"]}, {killed / counts["drawn"]:.1%}')


if __name__ == '__main__':
  main()
