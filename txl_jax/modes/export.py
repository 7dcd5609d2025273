"""--mode=export: the parameters of a checkpoint in one file."""

import jax

from txl_jax.experiment import restore
from txl_jax.experiment.job import Job
from txl_jax.parallel import placement, processes
from txl_jax.runs import weights_file


def run(job: Job) -> None:
  """Writes the file; UserError if it cannot be written."""
  found = job.restored()
  params = jax.tree.map(placement.fetch, found.params)
  # What is free where a model is used is as it was trained.
  then = found.config
  model = {
    k: then.get(f'model.{k}', v) for k, v in vars(job.config.model).items()
  }
  what = params, model, found.vocabulary.to_json()
  processes.on_main(lambda: weights_file.save(job.export_file, *what))
  line = restore.weights_line(found)
  processes.print_on_main(f'{line}, written to {job.export_file}')
