"""A job: one mode of the program, with its config, run folder and console."""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import ml_collections

from txl_jax.data.options import SPLITS
from txl_jax.data.prepared import Prepared
from txl_jax.experiment import restore, sections
from txl_jax.parallel import hardware, processes
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import buckets, errors, settings
from txl_jax.runs import workdir
from txl_jax.runs.terminal import TOKENS, Console

# Keys that may differ between hosts.
_PER_HOST = ('data.dir', 'data.path', 'data.vocab_file', 'data.tokenizer')


@dataclasses.dataclass(frozen=True)
class Job:
  """The arguments of a mode."""

  config: sections.Config  # checked
  folder: pathlib.Path  # of the run
  console: Console
  watch: Watch  # of the processes, open
  export_file: str = ''  # where --mode=export writes
  text: str = ''  # the file that --mode=score reads
  score_file: str = ''  # where it writes the nll of each token, '' to skip
  changed: Collection[str] = ()  # keys that the command sets
  # Called with each record of the log; a true result ends training.
  on_record: Callable[[dict], Any] | None = None

  def restored(self) -> restore.Restored:
    """The trained model of the run; UserError: see `restore.load`."""
    mesh = mesh_lib.make_mesh(self.config.mesh)
    with self.console.phase('restoring the model'):
      restored = restore.load(self.config, self.folder, mesh)
    if restored.corpus:  # converted weights have no config of their own
      self._warn_of_differences(restored.config)
    return restored

  def _warn_of_differences(self, saved: Mapping[str, Any]) -> None:
    """Warns of keys that differ from the run's, except those in `changed`."""
    differences = settings.differences(
      self.config, settings.flatten(self.config), saved, *settings.USED
    )
    differ = [
      f'{k} is {errors.shown(value)}, not {errors.shown(saved_value)}'
      for k, value, saved_value in differences
      if k not in self.changed
    ]
    if differ:
      self.console.say(
        f'warning: {self.folder} was trained with another config: '
        f"{errors.listed(differ)}; without --config the run's own is used"
      )

  def pretrained(self) -> 'pretrained.Pretrained':
    """The model of train.init_from; UserError: see `pretrained.find`."""
    from txl_jax.experiment import pretrained  # imports all of txl_jax.convert

    return pretrained.find(self.config)

  def show_read(self, done: int, of: int, label: str = '') -> None:
    """Shows the number of tokens of a text read so far."""
    self.console.progress(label + TOKENS.format(done, of), pause=5.0)

  def corpus(self) -> Prepared:
    """The corpus of the config; process 0 prepares it if it does not exist."""
    from txl_jax.data.corpora import preparation  # few modes need it

    data = self.config.data
    if not self.console.live:
      self.console.say(f'data: {data.folder}')
    tokenizer, stored = data.tokenizer, self.folder / workdir.VOCABULARY
    if tokenizer and not os.path.exists(tokenizer) and stored.exists():
      self.console.say(f'data.tokenizer: {tokenizer} is gone, using {stored}')
      data = dataclasses.replace(data, tokenizer=f'{stored}')
    with self.console.phase('preparing the corpus'):
      corpus = processes.main_first(lambda: preparation.locate_or_prepare(data))
    files = corpus.files
    if {*files} > {*SPLITS} or len({*files.values()}) > 1:  # not just one file
      each = (f'{name}: {of}' for name, of in files.items())
      self.console.say(f'data: {"; ".join(each)}')
    processes.check_same({'the digest of the corpus': corpus.digest})
    return corpus


def prepare(values: ml_collections.ConfigDict) -> sections.Config:
  """Reads the config of a run (`sections.read`) and sets its XLA_FLAGS.

  Must run before the GPU backend starts.
  """
  config = sections.read(values)
  gpus = ('jax_cuda13_plugin', 'jax_cuda12_plugin', 'jax_rocm7_plugin')
  on_gpu = any(map(importlib.util.find_spec, gpus))
  xla_flags = os.environ.get('XLA_FLAGS', '')
  unset = 'xla_gpu_deterministic_ops' not in xla_flags
  if config.deterministic and unset and on_gpu:
    os.environ['XLA_FLAGS'] = f'{xla_flags} --xla_gpu_deterministic_ops=true'
  return config


@contextlib.contextmanager
def opened(
  config: sections.Config,
  folder: str,
  mode: str,
  *,
  changed: Collection[str] = (),
  program: bool = True,
  **fields: Any,
) -> Iterator[Job]:
  """Opens the Job of a mode, with a config from `prepare`.

  With train.init_from, the config takes the keys of that model, except the
  `changed` ones. `program` is False in a notebook or library call, see `Watch`;
  `fields` are further ones of the `Job`.
  """
  hardware.check()
  place = buckets.place(folder, '--workdir')
  console = Console(silent=not processes.is_main())
  watch = Watch(config.watch.lost_seconds, program)
  # The console closes first, because it prints the last line of a failure.
  with watch, contextlib.closing(console):
    flat = {'--mode': mode, '--workdir': folder} | settings.flatten(config)
    processes.check_same({k: v for k, v in flat.items() if k not in _PER_HOST})
    if config.train.init_from:
      from txl_jax.experiment import pretrained

      new = mode in ('train', 'summary')
      config, lines = pretrained.adopt(config, place, changed, new)
      for line in lines:
        console.say(line)
    yield Job(config, place, console, watch, changed=changed, **fields)
