"""Logging to Weights & Biases, if train.wandb is set.

The W&B id is kept in the run's folder, so a resumed run continues the same W&B
run. The package is imported only if needed.
"""

import json
import pathlib
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any

from txl_jax.program import buckets, files
from txl_jax.program.errors import UserError, extra, first_line, shown
from txl_jax.runs import workdir


def check(project: str) -> None:
  """UserError if a project is set and the package is missing."""
  if project:
    extra('wandb', 'wandb', 'train.wandb')


class Run:
  """An open Weights & Biases run."""

  def __init__(
    self, folder: pathlib.Path, project: str, config: Mapping[str, Any]
  ):
    """Starts or continues the W&B run; UserError if that fails."""
    wandb = extra('wandb', 'wandb', 'train.wandb')
    path = folder / workdir.WANDB
    in_bucket = isinstance(folder, buckets.Path)
    known = _known(path)
    if known.get('project') != project:
      known = {'project': project, 'id': secrets.token_hex(4)}
    try:
      self._run = wandb.init(
        project=project,
        id=known['id'],
        name=folder.name,
        dir=tempfile.gettempdir() if in_bucket else str(folder),
        config=dict(config),
        resume='allow',
        # By default wandb is verbose and captures our output.
        settings=wandb.Settings(silent=True, console='off'),
      )
    except wandb.Error as e:
      allowed = "allowed: '', or WANDB_MODE=offline in the environment"
      raise UserError(
        f'train.wandb is {shown(project)}: {first_line(e)}; {allowed}'
      ) from e
    files.write(path, json.dumps(known) + '\n')

  @property
  def url(self) -> str:
    """URL of the run or, offline, its folder."""
    run = self._run
    return run.dir if run.offline else run.url

  def write(self, record: Mapping[str, Any]) -> None:
    """Logs a `metrics_log` record, unless W&B already has its step."""
    step, split = record['step'], record['split']
    if step >= self._run.step:  # W&B ignores earlier steps
      names = record.keys() - {'step', 'split'}
      self._run.log({f'{split}/{k}': record[k] for k in names}, step=step)

  def close(self) -> None:
    """Waits until all records are sent."""
    self._run.finish()


def _known(path):
  """Project and id of the existing W&B run; {} if there is none."""
  fields = files.read_json(path) if path.exists() else {}
  return fields if isinstance(fields.get('id'), str) else {}
