"""slurm_job.sh, with the tools of SLURM played."""

import os
import shlex
import signal
import subprocess

import pytest

from tests.launch import launchers
from tests.launch.launchers import WORKDIR

# A step whose program saves and stops when SLURM sends it TERM.
STEP = """
echo $$ >"$(dirname "$0")/step"
trap 'exit 143' TERM
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(
  ('number', 'expected'),
  [
    (signal.SIGUSR1, ['srun', 'scancel --signal=TERM 7', 'scontrol requeue 7']),
    (signal.SIGTERM, ['srun']),  # scancel
    (None, ['srun', 'scontrol requeue 7']),  # preempted: only the step has it
  ],
)
def test_slurm_job(number, expected, tools):
  """A job goes back into the queue unless it was cancelled."""
  launchers.write_tool(tools, 'srun', STEP)
  launchers.write_tool(
    tools, 'scancel', 'kill -TERM "$(cat "$(dirname "$0")/step")"'
  )
  flags = ['--config=c.py', WORKDIR]
  with subprocess.Popen(
    [launchers.LAUNCH / 'slurm_job.sh', 'gpu', '8', 'python', *flags],
    cwd=launchers.ROOT,
    env=launchers.environment(tools, SLURM_JOB_ID='7'),
  ) as job:
    step = tools / 'step'
    launchers.wait_for(lambda: step.exists() and step.read_text())
    if number is not None:
      job.send_signal(number)
    if number != signal.SIGUSR1:  # SLURM sends it to the step by itself
      os.kill(int(step.read_text()), signal.SIGTERM)
    assert job.wait(30) == 143
  found = launchers.calls(tools)
  assert shlex.split(found[0])[-4:] == ['-m', 'txl_jax.main', *flags]
  assert ['srun', *found[1:]] == expected


@pytest.mark.parametrize('status', [0, 1])
def test_slurm_job_ends(status, tools):
  """What has finished, or failed, is not started again."""
  launchers.write_tool(tools, 'srun', f'exit {status}')
  done = launchers.call(
    'slurm_job', 'gpu', '8', 'python', '--a', folder=tools, SLURM_JOB_ID='7'
  )
  assert done.returncode == status
  assert len(launchers.calls(tools)) == 1
