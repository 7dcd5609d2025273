"""Kills a run again and again, and checks that nothing of it is lost.

python -m tests.kills --kills=100 --seed=0

One run of a tiny model is killed with SIGKILL and started again, at steps that
are drawn uniformly over the run. Every third kill waits for a save to be under
way. After each restart and at the end:

- the log is that of an uninterrupted run, bit for bit, every step once
- every checkpoint is whole, and from the first one on there is always one
- the run continues at or behind the newest checkpoint that was sealed
- what was lost is at most one save interval, and the steps made while the
  checkpoint under way was written: none with --synchronous
- no temporary folder is left when training begins

Prints a table. The status is 1 if anything does not hold.
"""

import argparse
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from tests import programs
from txl_jax.runs import checkpoint, checkpoint_folder

TEMPORARY = ('.orbax-checkpoint-tmp', '.new', '.old')
COLUMNS = ('kill', 'at step', 'phase', 'continued from', 'steps lost')
COLUMNS += ('temporary folders', 'good checkpoints')


class Run:
  """A run that is killed; `problems` says what did not hold.

  Attributes:
    rows: of the table, a tuple for each kill.
    in_saves: how many kills came within a save.
    problems: list of str.
  """

  def __init__(self, folder, options, whole, save_every):
    """Nothing is started.

    Args:
      folder: pathlib.Path with a corpus.
      options: of the run, as for `programs.command`.
      whole: `programs.record` of the same run, uninterrupted.
      save_every: steps.
    """
    self.rows, self.problems, self.in_saves = [], [], 0
    self._folder, self._command = folder, programs.command(folder, *options)
    self._checkpoints = folder / 'run/checkpoints'
    self._log = folder / 'run/metrics.jsonl'
    self._whole, self._every = whole, save_every
    self._sealed = 0  # the newest step that was sealed
    self._killed = []  # kills until it is known where the run continues
    self._from = 0  # where this process continued

  def kill(self, step, delay, aimed=False):
    """Starts the run and kills it.

    Args:
      step: that is waited for.
      delay: seconds to wait longer.
      aimed: whether to wait for a save to be under way, too.
    """
    process, before = self._start(), self._inode()
    begun = False
    if step > self._sealed or aimed:
      begun = self._wait(process, lambda: self._is_new(before))
      self._began()
      self._wait(process, lambda: self._at() >= step)
      if aimed:
        self._wait(process, lambda: self._under_way()[0])
    time.sleep(delay)
    process.kill()
    if process.wait() != -signal.SIGKILL:
      self._problem(f'status {process.returncode} before it was killed')
    # It may have begun since.
    if not begun and self._is_new(before):
      begun = True
      self._began()
    phase, step_under_way = self._under_way()
    self.in_saves += bool(phase)
    good = self._good()
    if self._sealed and not good:
      self._problem('no good checkpoint')
    self._sealed = max([self._sealed, *good])
    at = max(self._at(), self._from) if begun else self._from
    self._check_log()
    kill = {
      'kill': len(self.rows) + len(self._killed) + 1,
      'at step': at,
      'phase': phase or ('trains' if begun else 'starts'),
      'under way': step_under_way,
      'temporary folders': len(self._temporary()),
      'good checkpoints': len(good),
      'begun': begun,
    }
    self._killed.append(kill)

  def finish(self):
    """Starts the run and lets it end."""
    process, before = self._start(), self._inode()
    self._wait(process, lambda: self._is_new(before))
    self._began()
    if process.wait():
      self._problem(f'status {process.returncode} at the end')
    if self._temporary():
      self._problem(f'at the end there are {self._temporary()}')
    if programs.record(self._folder) != self._whole:
      self._problem('the log is not that of an uninterrupted run')

  def _start(self):
    with (self._folder / 'errors.txt').open('w') as errors:
      return subprocess.Popen(
        self._command,
        cwd=programs.ROOT,
        env=programs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=errors,
      )

  def _problem(self, text):
    self.problems.append(f'after {len(self.rows)} kills: {text}')

  def _wait(self, process, condition):
    deadline = time.monotonic() + 300
    while not (found := condition()):
      if process.poll() is not None or time.monotonic() > deadline:
        self._problem((self._folder / 'errors.txt').read_text()[-1000:])
        break
      time.sleep(0.002)
    return found

  def _inode(self):
    """Of the log; it is another one when training begins."""
    return self._log.stat().st_ino if self._log.exists() else 0

  def _is_new(self, before):
    """Whether the log is another one; without a checkpoint the old one is kept
    under another name first."""
    return self._inode() not in (0, before)

  def _began(self):
    """Training has begun: all is put in order, and nothing saved yet."""
    left = self._temporary()
    said = (self._folder / 'errors.txt').read_text()
    found = re.search(r'continuing from step (\d+)', said)
    self._from = int(found[1]) if found else 0
    if left:
      self._problem(f'when training began there were {left}')
    if self._from < self._sealed:
      self._problem(f'continues from {self._from}, {self._sealed} was sealed')
    for k in self._killed:
      lost = k['at step'] - self._from if k['begun'] else 0
      overlap = k['at step'] - k['under way'] if k['under way'] else 0
      if lost > self._every + max(overlap, 0):
        self._problem(f'{lost} steps are lost')
      k |= {'continued from': self._from, 'steps lost': lost}
      self.rows.append(tuple(k[column] for column in COLUMNS))
    self._killed = []

  def _at(self):
    """The last step in the log."""
    lines = self._log.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines[-2:] if line.endswith(b'\n')]
    return json.loads(whole[-1])['step'] if whole else 0

  def _names(self):
    folder = self._checkpoints
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []

  def _temporary(self):
    return [n for n in self._names() if any(t in n for t in TEMPORARY)]

  def _under_way(self):
    """(phase, step not yet sealed) of the save under way, or ('', 0)."""
    phases = {'-tmp': 'writes', '.new': 'seals', '.old': 'deletes'}
    names = self._temporary()
    for part, phase in phases.items():
      if found := [n for n in names if part in n]:
        step = int(found[0].split('.')[0])
        return phase, 0 if phase == 'deletes' else step
    return '', 0

  def _good(self):
    good = []
    for step in checkpoint.Checkpoints(self._checkpoints).steps():
      if problem := checkpoint_folder.damage(self._checkpoints / f'{step}'):
        self._problem(f'checkpoint {step}: {problem}')
      else:
        good.append(step)
    return good

  def _check_log(self):
    lines = programs.record(self._folder)
    if lines != self._whole[: len(lines)]:
      self._problem('the log is not the begin of that of an uninterrupted run')


def plan(kills, steps, seed):
  """(step, delay, aimed) of each kill, as for `Run.kill`."""
  rng = random.Random(seed)
  drawn = sorted(rng.uniform(0, 0.95 * steps) for _ in range(kills))
  aimed = [k % 3 == 1 for k in range(kills)]
  return [(int(s), rng.uniform(0, 0.1), a) for s, a in zip(drawn, aimed)]


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--kills', type=int, default=100)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument(
    '--synchronous', action='store_true', help='training waits for a save'
  )
  args = parser.parse_args()
  steps, save_every = 40 * args.kills, 60
  options = (
    f'train.steps={steps}',
    f'train.save_every={save_every}',
    'train.eval_every=150',
    'train.log_every=1',
    'train.tensorboard=False',
    'model.dropout=0.2',
    f'train.async_checkpoints={not args.synchronous}',
  )
  with tempfile.TemporaryDirectory() as path:
    folders = [pathlib.Path(path) / name for name in ('whole', 'killed')]
    for folder in folders:
      folder.mkdir()
      programs.write_corpus(folder)
    done = programs.run(programs.command(folders[0], *options), timeout=1200)
    if done.returncode:
      sys.exit(done.stderr)
    run = Run(folders[1], options, programs.record(folders[0]), save_every)
    print(f'seed {args.seed}, {steps} steps, a save every {save_every}')
    widths = [len(c) for c in COLUMNS]
    row = lambda cells: ' | '.join(f'{c:>{w}}' for c, w in zip(cells, widths))
    print(row(COLUMNS), flush=True)

    def show(run, printed):
      for cells in run.rows[printed:]:
        print(row(cells), flush=True)
      return len(run.rows)

    printed = 0
    for step, delay, aimed in plan(args.kills, steps, args.seed):
      run.kill(step, delay, aimed)
      printed = show(run, printed)
    run.finish()
    show(run, printed)
  if run.in_saves < args.kills / 5:
    run.problems.append('too few kills within a save')
  print(f'{args.kills} kills, {run.in_saves} of them within a save')
  print('\n'.join(run.problems) or 'all holds')
  sys.exit(bool(run.problems))


if __name__ == '__main__':
  main()
