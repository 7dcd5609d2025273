"""The arguments of a mode."""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Collection, Iterator

import ml_collections

from txl_jax.data.prepared import Prepared
from txl_jax.experiment import restore, sections
from txl_jax.experiment.sections import Config
from txl_jax.parallel import hardware, processes
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import buckets, errors, settings
from txl_jax.runs import workdir
from txl_jax.runs.console import TOKENS, Console

# Keys that may differ from one host to another.
_OF_HOST = ('data.dir', 'data.path', 'data.vocab_file', 'data.tokenizer')


@dataclasses.dataclass(frozen=True)
class Job:
  """One call of the program."""

  config: Config  # checked
  folder: pathlib.Path  # of the run
  console: Console
  watch: Watch  # of the processes, open
  export_file: str = ''  # where --mode=export writes
  text: str = ''  # the file that --mode=score reads
  score_file: str = ''  # where it writes, '' for nowhere
  changed: Collection[str] = ()  # keys that the command sets

  def restored(self) -> restore.Restored:
    """The trained model of the run; UserError as by `restore.load`."""
    mesh = mesh_lib.make_mesh(self.config.mesh)
    with self.console.phase('restoring the model'):
      found = restore.load(self.config, self.folder, mesh)
    self._note_differences(found)
    return found

  def _note_differences(self, found):
    """Names the keys in which --config itself is another than the run's."""
    if not found.corpus:
      return  # converted weights, which have no config of their own
    both = settings.flatten(self.config), found.config
    differ = [
      f'{k} is {errors.shown(here)}, there {errors.shown(there)}'
      for k, here, there in settings.differences(
        self.config, *both, *settings.USED
      )
      if k not in self.changed
    ]
    if differ:
      self.console.say(
        f'warning: {self.folder} was trained with another config: '
        f"{errors.listed(differ)}; without --config the run's own is used"
      )

  def pretrained(self) -> 'pretrained.Pretrained':
    """The model of train.init_from; UserError as by `pretrained.find`."""
    from txl_jax.experiment import pretrained  # reads what others published

    return pretrained.find(self.config)

  def read(self, done: int, of: int, what: str = '') -> None:
    """Shows how many tokens of a text have been read."""
    self.console.progress(what + TOKENS.format(done, of), pause=5.0)

  def corpus(self) -> Prepared:
    """The corpus of the config; process 0 prepares it, if it must be."""
    from txl_jax.data.corpora import preparation  # of no use to most modes

    asked = self.config.data
    if not self.console.live:
      self.console.say(f'data: {asked.folder}')
    given, stored = asked.tokenizer, self.folder / workdir.VOCABULARY
    if given and not os.path.exists(given) and stored.exists():
      self.console.say(f'data.tokenizer: {given} is gone, {stored} is used')
      asked = dataclasses.replace(asked, tokenizer=f'{stored}')
    with self.console.phase('preparing the corpus'):
      found = processes.main_first(lambda: preparation.locate_or_prepare(asked))
    if len({*found.files.values()}) > 1:  # not one file, cut
      each = (f'{name}: {files}' for name, files in found.files.items())
      self.console.say(f'data: {"; ".join(each)}')
    processes.check_same({'the digest of the corpus': found.digest})
    return found


def prepare(values: ml_collections.ConfigDict) -> Config:
  """Reads the config of a run (`sections.read`) and sets XLA_FLAGS as it says.

  It must run before the GPU backend starts.
  """
  config = sections.read(values)
  gpus = ('jax_cuda13_plugin', 'jax_cuda12_plugin', 'jax_rocm7_plugin')
  before = os.environ.get('XLA_FLAGS', '')
  free = config.deterministic and 'xla_gpu_deterministic_ops' not in before
  if free and any(map(importlib.util.find_spec, gpus)):
    os.environ['XLA_FLAGS'] = f'{before} --xla_gpu_deterministic_ops=true'
  return config


@contextlib.contextmanager
def opened(
  config: Config,
  folder: str,
  mode: str,
  *files: str,
  changed: Collection[str] = (),
  program: bool = True,
) -> Iterator[Job]:
  """The Job of a config, see `prepare`, and of a folder, for a mode.

  With train.init_from the config becomes that of the model found there, except
  in the keys that the user has changed. `program` is whether this process is
  the program, see `Watch`.
  """
  hardware.check()
  place = buckets.place(folder, '--workdir')
  console = Console(silent=not processes.is_main())
  watch = Watch(config.watch.lost_seconds, program)
  # The console is closed first: the last line of a failure is one of its own.
  with watch, contextlib.closing(console):
    flat = {'--mode': mode, '--workdir': folder} | settings.flatten(config)
    processes.check_same({k: v for k, v in flat.items() if k not in _OF_HOST})
    if config.train.init_from:
      from txl_jax.experiment import pretrained

      new = mode in ('train', 'summary')
      config, lines = pretrained.adopt(config, place, changed, new)
      for line in lines:
        console.say(line)
    yield Job(config, place, console, watch, *files, changed=changed)
