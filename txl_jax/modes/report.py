"""What a finished run tells: its figures, and what to do next."""

import gzip
import lzma

from txl_jax.evaluation import figures, perplexity
from txl_jax.parallel import processes

# Bytes that are scored and compressed to compare; larger splits are left out.
_LARGEST = 5_000_000


def closing(config, corpus, progress, params, mesh, command):
  """The lines that end a training run.

  Args:
    config: ConfigDict.
    corpus: the `data.prepared.Prepared` that was trained on.
    progress: the `progress.Progress`.
    params: the final parameters, averaged where there is an average.
    mesh: of the devices that score with them.
    command: the command that continues the run.

  Returns:
    A list of lines.
  """
  unit = corpus.vocabulary.unit
  figure = lambda nats: f'{figures.figures(nats, unit)[unit]:.4f} {unit}'
  lines = [
    f'best validation:  {figure(progress.best)} at step {progress.best_step}',
    f'final validation: {figure(progress.last)} at step {progress.evaluated}',
  ]
  lines += _beside_compressors(config, corpus, params, mesh)
  return [
    *lines,
    'evaluate:  ' + command + ' --mode=eval',
    'sample:    ' + command + " --mode=generate --config.generate.prompt='…'",
    'export:    ' + command + ' --mode=export --export_file=model.npz',
  ]


def _beside_compressors(config, corpus, params, mesh):
  """The model beside gzip and xz on the same bytes, where there are bytes."""
  if corpus.manifest['corpus'] not in ('pystdlib', 'text'):
    return []
  if corpus.vocabulary.unit != 'bpc':
    return []  # words do not tell the bytes between them
  tokens = corpus.tokens('validation')
  if len(tokens) > _LARGEST:
    return []
  text = corpus.vocabulary.decode(tokens)
  ev = config.eval
  score = perplexity.score(
    perplexity.model_at_test_time(config, len(corpus.vocabulary), ev),
    params,
    tokens,
    batch_size=ev.batch_size,
    segment_len=ev.segment_len,
    segments_per_call=ev.segments_per_call,
    mesh=mesh,
  )
  assert score is not None  # nothing stops it
  if not processes.is_main():
    return []
  # The first byte is not scored: it is counted as eight bits.
  bits = figures.figures(score.nll, 'bpc')['bpc'] + 8
  rate = lambda packed: 8 * len(packed) / len(text)
  return [
    f'bits per byte on the {len(text):,} validation bytes, final weights:',
    f'  this model  {bits / len(text):.4f}  (T {ev.segment_len}, M '
    f'{ev.mem_len}; its weights are not counted, and it has seen the '
    'training files)',
    f'  gzip -9     {rate(gzip.compress(text, 9)):.4f}',
    f'  xz -9       {rate(lzma.compress(text, preset=9)):.4f}',
  ]
