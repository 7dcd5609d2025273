"""Makes release_1: the folder of a run, as version 1.0.0 writes it.

  python -m tests.golden.make_release

It has a text, the run after step 4, and what the same run logged until step 8.
"""

import contextlib
import json
import pathlib
import shutil
import tempfile

from tests import programs
from txl_jax.runs import metrics_log

FOLDER = pathlib.Path(__file__).parent / 'release_1'
FLAGS = (
  'data.corpus=text', 'data.path=text.txt', 'data.dir=data', 'train.steps=4',
  'model.n_layer=1', 'model.d_model=8', 'model.n_head=2', 'model.d_head=4',
  'model.d_ff=8', 'model.mem_len=8', 'model.dropout=0.1',
  'train.batch_size=2', 'train.segment_len=8', 'train.eval_batch_size=1',
  'train.eval_tokens=0', 'train.log_every=1', 'train.eval_every=4',
  'train.save_every=4', 'train.tensorboard=False', 'train.sample_tokens=0',
  'optim.warmup=2', 'optim.lr=1e-2', 'optim.average=ema', 'seed=3',
)  # fmt: skip
STEPS = 8


def use(folder, *flags):
  """Runs a command on the run in a folder, which also has its text."""
  with contextlib.chdir(folder):
    done = programs.here(
      ['python', '-m', 'txl_jax.main', '--workdir=run', *flags]
    )
  assert not done.returncode, done.stderr
  return done


def figures(folder):
  """{'split step': nats} of the lines of a run's log."""
  lines = metrics_log.read(folder / 'run/metrics.jsonl')
  return {f'{x["split"]} {x["step"]}': x['nats'] for x in lines if 'nats' in x}


def main():
  """Writes the folder anew."""
  shutil.rmtree(FOLDER, ignore_errors=True)
  with tempfile.TemporaryDirectory() as temporary:
    made = pathlib.Path(temporary)
    programs.write_corpus(made, 2_000)
    (made / 'corpus.txt').rename(made / 'text.txt')
    use(made, '--config=common', *(f'--config.{flag}' for flag in FLAGS))
    shutil.copytree(made, FOLDER, ignore=shutil.ignore_patterns('data', 'lock'))
    config = FOLDER / 'run/config.py'
    config.write_text(config.read_text().replace(f'{made.resolve()}/', ''))
    use(made, f'--config.train.steps={STEPS}')
    text = json.dumps(figures(made), indent=1)
    (FOLDER / 'figures.json').write_text(f'{text}\n')


if __name__ == '__main__':
  main()
