"""A job: one mode of the program, with its config, run folder and console."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from txl_jax.data.data_config import SPLITS
from txl_jax.data.prepared import Prepared
from txl_jax.experiment import saved_model, sections
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import processes
from txl_jax.parallel.watchdog import Watch
from txl_jax.program import errors, settings
from txl_jax.runs import workdir
from txl_jax.runs.terminal import TOKENS, Console


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
  # Called with each record of training and evaluation; a true result ends
  # training.
  on_record: Callable[[dict], Any] | None = None

  def restored(self) -> saved_model.Restored:
    """The trained model of the run; UserError: see `saved_model.load`."""
    mesh = mesh_lib.make_mesh(self.config.mesh)
    with self.console.phase('restoring the model'):
      restored = saved_model.load(self.config, self.folder, mesh)
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

  def show_read(self, done: int, of: int, label: str = '') -> None:
    """Shows the number of tokens of a text read so far."""
    self.console.progress(label + TOKENS.format(done, of), pause=5.0)

  def corpus(self) -> Prepared:
    """The corpus of the config; process 0 prepares it if it does not exist."""
    from txl_jax.data.corpora import preparation  # few modes need it

    data = self.config.data
    if not self.console.live:
      self.console.say(f'data: {data.folder}')
    tokenizer = data.tokenizer
    stored = self.folder / workdir.VOCABULARY
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
