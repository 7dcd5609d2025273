"""--mode=train: trains, then prints the results and the next commands."""

import contextlib
import functools

from txl_jax import models
from txl_jax.evaluation import units
from txl_jax.experiment.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import wandb_run, workdir
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.training import plan, start
from txl_jax.training.loop import Trainer


def run(job: Job) -> None:
  """Trains a new run, or resumes one, to its last step; see `loop.Trainer`."""
  config, folder = job.config, job.folder
  mesh = mesh_lib.make_mesh(config.mesh)
  plan.check_rows(config, placement.row_parts(mesh))
  Checkpoints(workdir.checkpoints(folder)).check_path()
  pretrained = None
  if source := config.train.init_from:
    from txl_jax.convert import pretrained as pretrained_lib

    # Recorded as a path that is valid in every working directory.
    absolute = {'train.init_from': buckets.absolute(source)}
    config = settings.replace(config, absolute)
    pretrained = functools.partial(pretrained_lib.find, config)
    # The key `checkpoint` was a step of that model's run.
    config = settings.replace(config, {'checkpoint': 'best'})
  processes.on_main(lambda: wandb_run.check(config.train.wandb))
  corpus = job.corpus()
  with contextlib.ExitStack() as stack:
    processes.on_main(lambda: stack.enter_context(workdir.locked(folder)))
    workdir.check_shared(folder)
    job.console.say(f'run: {folder}')
    with job.watch.signals():
      run, position = start.begin(
        config, folder, corpus, mesh, job.console, pretrained
      )
      sample = _sampler(job, run.corpus.vocabulary)
      trainer = Trainer(run, position, job.watch, sample, job.on_record)
      del position  # its arrays are the trainer's
      progress = trainer.train()
  unit = run.corpus.vocabulary.unit
  command = workdir.command(folder)

  def figure(nats):
    return units.loss_text(units.to_units(nats, unit), unit)

  processes.print_on_main(
    f'best validation:  {figure(progress.best)} at step {progress.best_step}',
    f'final validation: {figure(progress.last)} at step {progress.evaluated}',
    f'evaluate:  {command} --mode=eval',
    f"sample:    {command} --mode=generate --config.generate.prompt='…'",
    f'export:    {command} --mode=export --export_file=model.npz',
  )


def _sampler(job, vocabulary):
  """A function from parameters to a sample, prompt included, or None."""
  config = job.config
  n = config.train.sample_tokens
  if not n:
    return None
  from txl_jax.experiment import call_options, texts
  from txl_jax.generation import text_writer

  try:
    config = call_options.changed(config, 'generate', {'max_new_tokens': n})
    text = texts.plain(vocabulary, config.generate.prompt.encode())
    prompt = vocabulary.encode(text, 'generate.prompt')
    V = len(vocabulary)
    window = config.generate.window
    models.at_test_time(config, V, 'generate', window)
  except UserError as e:
    job.console.say(f'warning: no samples are generated: {e}')
    return None

  def sample(params):
    writer = text_writer.make(config, params, vocabulary)
    rows = writer.make_rows([prompt])
    pieces = writer.stream(rows, len(rows), echo=True)
    return b''.join(piece for (piece,) in pieces).decode(errors='replace')

  return sample
