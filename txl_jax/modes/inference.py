"""What one does with a trained model: evaluate, generate, export.

Each function is a mode of `main`, for the run in a workdir.
"""

import io
import sys

import jax

from txl_jax import models, settings
from txl_jax.corpora import preparation
from txl_jax.data import streams
from txl_jax.errors import UserError
from txl_jax.evaluation import figures, perplexity
from txl_jax.generation import decoding
from txl_jax.generation.sampling import Sampling
from txl_jax.generation.text import TextStream
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement, processes
from txl_jax.runs import checkpoint, weights_file, workdir
from txl_jax.training import averaging


def load(config, folder, mesh):
  """Parameters and vocabulary of the run in a folder.

  The parameters are their average where the checkpoint holds one.

  Args:
    config: ConfigDict; `checkpoint` chooses the step.
    folder: pathlib.Path of the run.
    mesh: from `mesh.make_mesh`.

  Returns:
    step, params (on the mesh), how many steps they are averaged over (0
    is no average), vocabulary.

  Raises:
    UserError: there is no such checkpoint, or it is of another model.
  """
  vocabulary = workdir.vocabulary(folder)
  settings.check_model(settings.flatten(config), workdir.config(folder), folder)
  checkpoints = checkpoint.Checkpoints(workdir.checkpoints(folder))
  step = _choose(checkpoints, config.checkpoint)
  model = models.build(config.model, len(vocabulary))

  def restore(item, shapes):
    abstract = jax.eval_shape(shapes)
    abstract = jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      abstract,
      mesh_lib.by_rules(abstract, mesh),
    )
    return checkpoints.restore(step, **{item: abstract})[item]

  init = lambda: base.init_params(model, jax.random.key(0))
  if checkpoints.has_average(step):
    average = restore('average', lambda: averaging.empty(init()))
    if averaged := averaging.count(average):
      return step, average.params, averaged, vocabulary
  return step, restore('params', init), 0, vocabulary


def _choose(checkpoints, which):
  if which.isdecimal():
    if not checkpoints.usable(int(which)):
      raise UserError(
        f'checkpoint is {which!r}; allowed: best, latest or one of '
        f'{checkpoints.steps()}'
      )
    return int(which)
  best = -1  # nothing was evaluated yet
  # The newest knows which is the best.
  if which == 'best' and (knows := checkpoints.newest('host')) is not None:
    best = checkpoints.host(knows)['progress']['best_step']
    if best >= 0 and checkpoints.usable(best):
      return best
  newest = checkpoints.newest()
  if newest is None:
    raise UserError(
      f'{checkpoints.folder} holds no checkpoint that can be used; found: '
      f'{checkpoints.steps() or "nothing"}'
    )
  if best >= 0 and processes.is_main():
    print(
      f'warning: the best checkpoint, {best}, is gone; using {newest}',
      file=sys.stderr,
    )
  return newest


def evaluate(config, folder, console):
  """Scores a whole split and prints the figure.

  Args:
    config: ConfigDict; the section eval has split and lengths.
    folder: pathlib.Path of the run.
    console: a `console.Console`.

  Returns:
    The `perplexity.Score`.

  Raises:
    UserError: see `load`; or the corpus has another vocabulary.
  """
  ev = config.eval
  mesh = mesh_lib.make_mesh(config.mesh)
  step, params, averaged, vocabulary = load(config, folder, mesh)
  corpus = processes.main_first(
    lambda: preparation.locate_or_prepare(config.data)
  )
  processes.check_same({'the digest of the corpus': corpus.digest})
  if corpus.vocabulary.symbols != vocabulary.symbols:
    raise UserError(
      f'corpus {corpus.name} has another vocabulary ({len(corpus.vocabulary)} '
      f'symbols) than the run in {folder} ({len(vocabulary)})'
    )
  split = corpus.tokens(ev.split)
  needed = ev.batch_size + 1
  if len(split) < needed:
    raise UserError(
      f'split {ev.split} has {len(split)} tokens; eval.batch_size '
      f'{ev.batch_size} needs {needed}'
    )
  now = config.data.boundaries
  then = workdir.config(folder).get('data.boundaries', now)
  if then != now:
    console.say(
      f'warning: data.boundaries is {now} and was {then} in training: the '
      'model has learnt another number of <S>'
    )
  tokens = _from_first_token(split, corpus, ev.first_token)
  score = perplexity.score(
    perplexity.model_at_test_time(config, len(vocabulary), ev),
    params,
    tokens,
    batch_size=ev.batch_size,
    segment_len=ev.segment_len,
    segments_per_call=ev.segments_per_call,
    mesh=mesh,
    nll_file=ev.nll_file,
    progress=lambda n: console.progress(
      f'{n:,} of {len(tokens) - 1:,} tokens', pause=5.0
    ),
  )
  assert score is not None  # nothing stops it
  unit = vocabulary.unit
  figure = figures.figures(score.nats, unit)[unit]
  weights = f', weights averaged over {averaged} steps' if averaged else ''
  console.say(f'checkpoint: step {step}{weights}; corpus: {corpus.name}')
  processes.print_on_main(
    f'{ev.split}: {figure:.5f} {unit} ({score.nats:.5f} nats), '
    f'{len(split)} tokens, {score.scored} scored, '
    f'{score.seconds:.1f} s, {score.tokens_per_second:,.0f} tokens/s '
    f'(T {ev.segment_len}, M {ev.mem_len}, {ev.batch_size} streams)'
  )
  if ev.nll_file:
    console.say(f'nll of each scored token: {ev.nll_file}')
  return score


def _from_first_token(tokens, corpus, first_token):
  """The tokens, after one more that makes the first one be scored."""
  if first_token == 'none':
    return tokens
  eos = corpus.vocabulary.eos_id
  if eos is None or corpus.sentences('test') is not None:
    what = 'has no <eos>' if eos is None else 'begins with a <S> already'
    raise UserError(
      f'eval.first_token is {first_token!r}; allowed: none, for corpus '
      f'{corpus.name} {what}'
    )
  return streams.Preceded(eos, tokens)


def sample(config, folder):
  """Prints what the model writes after a prompt.

  Args:
    config: ConfigDict; the section generate.
    folder: pathlib.Path of the run.

  Raises:
    UserError: see `load`; or the prompt cannot be read or encoded.
  """
  g = config.generate
  # Standard input is that of process 0.
  prompt = processes.on_main(lambda: _prompt(g).decode('latin-1'))
  prompt = prompt.encode('latin-1')
  mesh = mesh_lib.make_mesh(config.mesh)
  _, params, _, vocabulary = load(config, folder, mesh)
  tokens = vocabulary.encode(prompt, 'the prompt')
  unk = vocabulary.unk_id
  forbidden = ()
  if g.forbid_unk:
    if unk is None:
      raise UserError(
        'generate.forbid_unk is True; allowed: False, for the vocabulary has '
        'no unknown word'
      )
    forbidden = (unk,)
  try:
    sampling = Sampling(
      g.temperature, g.top_k, g.top_p, g.repetition_penalty, forbidden
    )
  except ValueError as e:
    raise UserError(f'generate.{e}') from e
  pieces = decoding.generate(
    perplexity.model_at_test_time(config, len(vocabulary), g),
    params,
    tokens,
    sampling=sampling,
    max_new_tokens=g.max_new_tokens,
    seed=g.seed,
    segment_len=g.segment_len,
    samples=g.samples,
    start=vocabulary.start,
  )
  out = sys.stdout if processes.is_main() else io.StringIO()
  if g.samples == 1:
    stream, decoder = TextStream(), vocabulary.decoder()
    out.write(stream.push(decoder.push(tokens)))
    for piece in pieces:
      out.write(stream.push(decoder.push(piece[0])))
      if g.stream:
        out.flush()
    out.write(stream.close() + '\n')
  else:
    rows = [tokens.tolist()] * g.samples
    for piece in pieces:
      rows = [row + more.tolist() for row, more in zip(rows, piece)]
    for i, row in enumerate(rows):
      out.write(f'=== sample {i + 1} of {g.samples}\n')
      out.write(vocabulary.decode(row).decode(errors='replace') + '\n')
  out.flush()


def _prompt(g):
  if not g.prompt_file:
    return g.prompt.encode()
  if g.prompt_file == '-':
    return sys.stdin.buffer.read()
  try:
    with open(g.prompt_file, 'rb') as f:
      return f.read()
  except OSError as e:
    raise UserError(
      f'generate.prompt_file: {g.prompt_file}: {e.strerror}'
    ) from e


def write_params(config, folder, path):
  """Exports the parameters of a checkpoint to one file.

  Args:
    config: ConfigDict.
    folder: pathlib.Path of the run.
    path: of the file, see `export`.
  """
  mesh = mesh_lib.make_mesh(config.mesh)
  step, params, averaged, vocabulary = load(config, folder, mesh)
  params = jax.tree.map(placement.fetch, params)

  # What is free where a model is used is as it was trained.
  then = workdir.config(folder)
  model = {k: then.get(f'model.{k}', v) for k, v in config.model.items()}

  def save():
    weights_file.save(path, params, model, vocabulary.to_json())

  processes.on_main(save)
  weights = f' (weights averaged over {averaged} steps)' if averaged else ''
  processes.print_on_main(f'step {step}{weights} written to {path}')
