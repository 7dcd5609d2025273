"""--mode=export: writes the parameters of a checkpoint to one file."""

import jax

from txl_jax.experiment import saved_model
from txl_jax.experiment.job import Job
from txl_jax.parallel import placement, processes
from txl_jax.runs import weights_file


def run(job: Job) -> None:
  """Writes --export_file; UserError if it cannot be written."""
  restored = job.restored()
  params = jax.tree.map(placement.fetch, restored.params)
  # Keys that may change at test time keep their training values.
  model = {
    k: restored.config.get(f'model.{k}', x)
    for k, x in vars(job.config.model).items()
  }
  vocabulary = restored.vocabulary.to_json()
  processes.on_main(
    lambda: weights_file.save(job.export_file, params, model, vocabulary)
  )
  line = saved_model.weights_line(restored)
  processes.print_on_main(f'{line}, written to {job.export_file}')
