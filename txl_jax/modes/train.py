"""--mode=train: trains, then prints the results and the next commands."""

import contextlib
import dataclasses

from txl_jax import models
from txl_jax.evaluation import units
from txl_jax.experiment.job import Job
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.program import buckets, errors, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import wandb_run, workdir
from txl_jax.runs.checkpoint import Checkpoints
from txl_jax.training import plan as plan_lib
from txl_jax.training import resume
from txl_jax.training import step as step_lib
from txl_jax.training.loop import Trainer


def run(job: Job) -> None:
  """Trains a new run, or resumes one, to its last step; see `loop.Trainer`."""
  config, folder = job.config, job.folder
  mesh = mesh_lib.make_mesh(config.mesh)
  step_lib.check_rows(config, placement.row_parts(mesh))
  Checkpoints(workdir.checkpoints(folder)).check_path()
  if source := config.train.init_from:
    # Recorded as a path that is valid in every working directory.
    absolute = {'train.init_from': buckets.absolute(source)}
    config = settings.replace(config, absolute)
    job = dataclasses.replace(job, config=config)
  processes.on_main(lambda: wandb_run.check(config.train.wandb))
  corpus = job.corpus()
  checkpoints = _checkpoints(job, corpus)
  with contextlib.ExitStack() as stack:

    def lock():
      stack.enter_context(workdir.locked(folder))

    processes.on_main(lock)
    workdir.check_shared(folder)
    job.console.say(f'run: {folder}')
    with job.watch.signals():
      start = resume.start(checkpoints, folder, config.train.resume)
      saved, pretrained = None, None
      if start is not None:
        saved = resume.HostState.read(checkpoints, start)
        corpus = _encoded_as_saved(job, corpus, saved, start)
      elif config.train.init_from:
        from txl_jax.convert import pretrained as pretrained_lib

        pretrained, prepared = pretrained_lib.find(config), corpus
        corpus = prepared.encoded_with(pretrained.vocabulary)
        if line := corpus.unknown_line(prepared, 'train', 'validation'):
          job.console.say(line)
      origin = saved.config.get('origin', '') if saved else ''
      # With train.init_from, the key `checkpoint` is a step of the other run.
      config = dataclasses.replace(
        config,
        origin=pretrained.origin if pretrained else origin,
        checkpoint='best' if source else config.checkpoint,
      )
      checkpoints = _checkpoints(job, corpus)
      processes.on_main(lambda: workdir.compare(folder, config, corpus, saved))
      resume.check_length(config, folder, start or 0)
      with job.console.phase('compiling', plain='compiling'):
        attention = saved.attention if saved else ''
        told = attention, job.console.say
        plan = plan_lib.make(config, corpus, mesh, start or 0, *told)
      for line in plan_lib.summary_lines(config, plan.streams):
        job.console.say(line)
      trainer = Trainer(
        config, corpus, folder, mesh=mesh, watch=job.watch,
        console=job.console, plan=plan, checkpoints=checkpoints, start=start,
        sample=_sampler(job, corpus.vocabulary), on_record=job.on_record,
      )  # fmt: skip
      if pretrained:
        trainer.state, line = pretrained.into(trainer.state, config, mesh)
        trainer.pretrained = True
        job.console.say(line)
      processes.on_main(lambda: workdir.describe(folder, config, corpus, saved))
      progress = trainer.run()
  unit, command = corpus.vocabulary.unit, workdir.command(folder)

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
  config, n = job.config, job.config.train.sample_tokens
  if not n:
    return None
  from txl_jax.experiment import call_options, texts
  from txl_jax.generation import text_writer

  try:
    config = call_options.changed(config, 'generate', {'max_new_tokens': n})
    text = texts.plain(vocabulary, config.generate.prompt.encode())
    prompt = vocabulary.encode(text, 'generate.prompt')
    V, window = len(vocabulary), config.generate.window
    models.at_test_time(config, V, 'generate', window)
  except UserError as e:
    job.console.say(f'warning: no samples are generated: {e}')
    return None

  def sample(params):
    writer = text_writer.make(config, params, vocabulary)
    pieces = writer.stream(writer.make_rows([prompt]), echo=True)
    return b''.join(piece for (piece,) in pieces).decode(errors='replace')

  return sample


def _encoded_as_saved(job, corpus, saved, step):
  """The corpus with the vocabulary of the checkpoint; UserError if impossible.

  Converted weights may have the symbols of the corpus in another order; with
  train.init_from, the symbols themselves may differ.
  """
  init_from = job.config.train.init_from
  if init_from and not saved.trained:
    allowed = f"'', because {job.folder} already holds initial weights"
    errors.refuse('train.init_from', init_from, allowed)
  if saved.corpus == corpus.digest:
    return corpus
  vocabulary = workdir.vocabulary(job.folder, step)
  began = saved.config.get('train.init_from')
  if init_from and began and init_from == buckets.absolute(began):
    return corpus.encoded_with(vocabulary)
  return corpus.ordered_like(vocabulary)


def _checkpoints(job, corpus):
  """The checkpoints of the run, saved with the vocabulary of the corpus."""
  return Checkpoints(
    workdir.checkpoints(job.folder),
    asynchronous=job.config.train.async_checkpoints,
    texts={workdir.VOCABULARY: workdir.vocabulary_text(corpus.vocabulary)},
  )
