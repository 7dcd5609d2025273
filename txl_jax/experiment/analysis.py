"""Shared parts of the evaluation modes: the model, the split, the report.

Mode NAME prints a table and writes analysis/NAME.json into the folder of the
run, with the results in the table and the conditions of the measurement; some
modes also write a picture, analysis/NAME.png.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from txl_jax.data.prepared import Prepared
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.experiment import saved_model, sections
from txl_jax.experiment.job import Job
from txl_jax.parallel import hardware, processes
from txl_jax.program import files, settings
from txl_jax.program.errors import UserError
from txl_jax.runs import workdir


@dataclasses.dataclass(frozen=True)
class Subject:
  """A trained model and the tokens of eval.split to measure it on."""

  restored: saved_model.Restored
  corpus: Prepared
  tokens: Any  # integers [n], or `data.documents.Documents` on request
  begin: float  # time.monotonic() when it was opened

  @property
  def vocab_size(self) -> int:
    """V, the number of symbols."""
    return len(self.restored.vocabulary)

  @property
  def unit(self) -> str:
    """The unit of a reported nll, 'bpc' or 'ppl'."""
    return self.restored.vocabulary.unit


def open_run(job: Job, tokens: int = 0, documents: bool = False) -> Subject:
  """The run of a job and the first tokens of its split, 0 for all of them.

  Without `documents`, a split of documents is read as one text, with a warning.
  UserError: the corpus has another vocabulary.
  """
  begin = time.monotonic()
  restored = job.restored()
  # A run with train.init_from encodes its corpus with that model's vocabulary.
  prepared = job.corpus()
  if restored.config.get('train.init_from'):
    corpus = prepared.encoded_with(restored.vocabulary)
    if line := corpus.unknown_line(prepared, job.config.eval.split):
      job.console.say(line)
  else:
    corpus = prepared.ordered_like(restored.vocabulary)
  _check_corpus(job, corpus, restored.vocabulary)
  if restored.corpus not in ('', prepared.digest, corpus.digest):
    job.console.say(
      f'warning: the run in {job.folder} was trained on another corpus (sha256 '
      f'{restored.corpus[:12]}) than {corpus.name} (sha256 '
      f'{corpus.digest[:12]}): the split {job.config.eval.split} may contain '
      'training text'
    )
  if documents:
    split = corpus.token_stream(job.config.eval.split, tokens)
  else:
    split = corpus.tokens(job.config.eval.split)[: tokens or None]
    if corpus.of_documents:
      job.console.say(
        'warning: documents are read as one text here; memory is not reset '
        'between them'
      )
  return Subject(restored, corpus, split, begin)


def _check_corpus(
  job: Job, corpus: Prepared, vocabulary: AnyVocabulary
) -> None:
  """UserError if the corpus has another vocabulary than the run."""
  ended = [x.document_end is not None for x in (corpus.vocabulary, vocabulary)]
  if ended[0] != ended[1]:
    raise UserError(
      f'data.documents is {job.config.data.documents}, and the run in '
      f'{job.folder} was trained with{"" if ended[1] else "out"} documents; '
      'allowed: the value in its own config'
    )
  if corpus.vocabulary.symbols != vocabulary.symbols:
    raise UserError(
      f'corpus {corpus.name} has another vocabulary ({len(corpus.vocabulary)} '
      f'symbols) than the run in {job.folder} ({len(vocabulary)}); allowed: '
      'the same data.level and data.vocab_file or data.tokenizer'
    )


def open_other(
  job: Job, subject: Subject, folder: pathlib.Path
) -> tuple[sections.Config, saved_model.Restored]:
  """Another run to compare with, and its config.

  To read the text in the same way, it takes eval.segment_len from the job, and
  the keys of eval.model that its model has (mem_len only if it was trained with
  a memory). UserError: the folder holds no run, or one with another vocabulary.
  """
  if not workdir.checkpoints(folder).exists():
    raise UserError(f'{folder} holds no run to compare with')
  config = saved_model.recorded(folder)
  values: dict[str, Any] = {'eval.segment_len': job.config.eval.segment_len}
  for k, x in job.config.eval.model.given().items():
    has_memory = getattr(config.model, 'mem_len', 0)
    if hasattr(config.eval.model, k) and (k != 'mem_len' or has_memory):
      values[f'eval.model.{k}'] = x
  config = sections.changed(config, values)
  other = saved_model.load(config, folder, subject.restored.mesh)
  if other.vocabulary.symbols != subject.restored.vocabulary.symbols:
    raise UserError(
      f'the run in {folder} has another vocabulary ({len(other.vocabulary)} '
      f'symbols) than the run in --workdir ({subject.vocab_size}); allowed: a '
      'run with the same vocabulary'
    )
  return config, other


def conditions(job: Job, subject: Subject, name: str) -> dict[str, Any]:
  """The model, data, options and hardware of a measurement, as JSON types."""
  return {
    **setting(job, name, subject.begin),
    **model_of(job.folder, subject.restored),
    'corpus': subject.corpus.name,
    'split': job.config.eval.split,
    'split_tokens': len(subject.corpus.tokens(job.config.eval.split)),
    'tokens': len(subject.tokens),
    'unit': subject.unit,
  }


def setting(job: Job, name: str, begin: float) -> dict[str, Any]:
  """The options of a mode, the seconds since `begin`, and the hardware."""
  return {
    'program': name,
    'options': _without_paths(job.config, name),
    'eval': _without_paths(job.config, 'eval'),
    'seconds': time.monotonic() - begin,
    'hardware': hardware.describe(),
  }


def model_of(
  folder: pathlib.Path, restored: saved_model.Restored
) -> dict[str, Any]:
  """The trained model of a run: its checkpoint, and how it was trained."""
  config = {k: x for k, x in restored.config.items() if k.startswith('model.')}
  for k in 'train.segment_len', 'train.batch_size', 'train.steps':
    config[k] = restored.config.get(k)
  return {
    'run': folder.resolve().name,
    'experiment': restored.config.get('experiment', ''),
    'origin': restored.config.get('origin', ''),
    'checkpoint_step': restored.step,
    'trained_on': restored.trained_on,
    'averaged_over_steps': restored.averaged,
    'config': config,
  }


def _without_paths(config: sections.Config, name: str) -> dict[str, Any]:
  """The values of a section, without folders and files."""
  section = getattr(config, name)
  paths = {k for k, entry in settings.keys(section).items() if entry.is_path}
  values = dataclasses.asdict(section)
  return {k: x for k, x in values.items() if k not in paths}


def report(
  job: Job,
  record: dict[str, Any],
  lines: Sequence[str],
  draw: Callable[[pathlib.Path], bool] | None = None,
) -> bool:
  """Prints the lines; writes the record, and its picture if `draw` does.

  `draw` writes a PNG file on process 0, or returns False. Returns whether there
  is a picture. UserError: a result is not finite, or a file cannot be written.
  """
  # Printed first, so that a full disk does not lose a long measurement.
  processes.print_on_main(*lines)
  folder = job.folder / workdir.ANALYSIS
  name = record['program']
  picture = folder / f'{name}.png'
  record = {**record, 'lines': lines}  # for the report
  try:
    # One line for each entry, however long.
    each = [
      f'"{k}": {json.dumps(x, allow_nan=False)}' for k, x in record.items()
    ]
  except ValueError as e:
    why = 'not written, a result is not finite'
    raise UserError(f'{folder / name}.json: {why}') from e

  def write() -> bool:
    with files.writing(f'{folder}'):
      folder.mkdir(parents=True, exist_ok=True)
      picture.unlink(missing_ok=True)  # of an earlier measurement
    whole = '{\n ' + ',\n '.join(each) + '\n}\n'
    files.write(folder / f'{name}.json', whole)
    return draw is not None and draw(picture)

  drawn = processes.on_main(write)
  job.console.say(f'written: {folder / name}.json{", .png" * drawn}')
  return drawn


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
  """Lines of aligned columns; the first column is text, the others numbers."""
  cells = [[*map(str, row)] for row in (header, *rows)]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  lines = []
  for first, *others in cells:
    numbers = (f'  {x:>{w}}' for x, w in zip(others, widths[1:]))
    lines.append(f'{first:<{widths[0]}}{"".join(numbers)}'.rstrip())
  return lines


def heading(record: Mapping[str, Any]) -> str:
  """The line above a table: the run, its step and the tokens."""
  n, split = record['tokens'], record['split_tokens']
  of = f'{n:,} of ' if n < split else ''
  return (
    f'{record["run"]}, step {record["checkpoint_step"]}, {record["corpus"]} '
    f'{record["split"]}, {of}{split:,} tokens'
  )
