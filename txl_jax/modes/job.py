"""The arguments of a mode."""

import dataclasses
import os
import pathlib

from txl_jax.data.corpora import preparation
from txl_jax.data.options import Data
from txl_jax.data.prepared import Prepared
from txl_jax.modes import restore
from txl_jax.modes.sections import Config
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import settings
from txl_jax.runs import workdir
from txl_jax.runs.console import TOKENS, Console


@dataclasses.dataclass(frozen=True)
class Job:
  """One call of the program."""

  config: Config  # checked
  folder: pathlib.Path  # of the run
  console: Console
  watch: Watch  # of the processes, open
  export_file: str  # where --mode=export writes
  text: str = ''  # the file that --mode=score reads
  score_file: str = ''  # where it writes, '' for nowhere

  def restored(self) -> restore.Restored:
    """The trained model of the run; UserError as by `restore.load`."""
    mesh = mesh_lib.make_mesh(self.config.mesh)
    with self.console.phase('restoring the model'):
      return restore.load(self.config, self.folder, mesh)

  def read(self, done: int, of: int, what: str = '') -> None:
    """Shows how many tokens of a text have been read."""
    self.console.progress(what + TOKENS.format(done, of), pause=5.0)

  def corpus(self) -> Prepared:
    """The corpus of the config; process 0 prepares it, if it must be."""
    asked = settings.read(Data, self.config.data)
    if not self.console.live:
      self.console.say(f'data: {asked.folder}')
    given, stored = asked.tokenizer, self.folder / workdir.VOCABULARY
    if given and not os.path.exists(given) and stored.exists():
      self.console.say(f'data.tokenizer: {given} is gone, {stored} is used')
      asked = dataclasses.replace(asked, tokenizer=f'{stored}')
    section = dataclasses.asdict(asked)
    with self.console.phase('preparing the corpus'):
      found = processes.main_first(
        lambda: preparation.locate_or_prepare(section)
      )
    if len({*found.files.values()}) > 1:  # not one file, cut
      each = (f'{name}: {files}' for name, files in found.files.items())
      self.console.say(f'data: {"; ".join(each)}')
    processes.check_same({'the digest of the corpus': found.digest})
    return found
