"""A trained model, and everything that can be done with it and a text.

Shapes: n tokens, N layers, H heads, D width of a layer, V vocabulary.
"""

import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, AnyStr

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.api.chat import Chat
from txl_jax.convert import read_weights, write_weights
from txl_jax.data.vocabularies import AnyVocabulary
from txl_jax.evaluation import activations
from txl_jax.experiment import call_options, results, text_score, texts
from txl_jax.experiment.sections import Config
from txl_jax.generation import text_writer
from txl_jax.generation.options import Generate
from txl_jax.models import base
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import errors, hub, settings
from txl_jax.program.errors import UserError

Stops = str | bytes | Sequence[str] | Sequence[bytes]


class TextModel:
  """A trained model; `txl_jax.load` makes one from a run or an exported file.

  Options of a call are keys of the sections `eval` and `generate` of a config
  (docs/config.md); they default to the values of the run. `score` does
  what --mode=eval does; `generate`, `stream` and `chat` what --mode=generate
  does. Compiled programs are kept for calls with the same lengths.

  Attributes:
    config: the `experiment.sections.Config` of the run.
    params: the parameters of the model at test time, on the mesh.
    vocabulary: what token ids stand for.
    mesh: the devices.
    step: the step of the checkpoint; None for an exported file.
    source: where `load` has found it.
  """

  def __init__(
    self,
    config: Config,
    params: Any,
    vocabulary: AnyVocabulary,
    mesh: Mesh,
    step: int | None = None,
    source: str = '',
  ):
    self.config, self.params, self.vocabulary = config, params, vocabulary
    self.mesh, self.step, self.source = mesh, step, source
    self._frozen: Any = (None, None)  # a model, and its variables

  def __repr__(self) -> str:
    n = sum(x.size for x in jax.tree.leaves(self.params))
    name, V = self.config.model.name, len(self.vocabulary)
    return f'TextModel({name}, {n:,} parameters, {V:,} {self.vocabulary.kind})'

  @property
  def model(self) -> base.LanguageModel:
    """The Linen module, unbound, as it was trained; see `txl_jax.models`."""
    return models.build(self.config.model, len(self.vocabulary))

  def encode(self, text: str | bytes) -> np.ndarray:
    """Token ids, int32 [n]; UserError at text the vocabulary has no id for."""
    return texts.tokenise(self.vocabulary, 'text', text, frames=1)[0]

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of token ids; UserError for one that is not in [0, V)."""
    found = self.vocabulary.decode(texts.ids(self.vocabulary, 'ids', ids))
    return found.decode(errors='replace')

  def generate(
    self,
    prompt: Any,
    *,
    samples: int | None = None,
    stop: Stops = (),
    **options: Any,
  ) -> Any:
    """What the model writes after a prompt, or after each of several.

    Args:
      prompt: a str, bytes or token ids, or several of any lengths. An empty
        prompt is the beginning of a text.
      samples: how many samples of each prompt; None means one.
      stop: one text or several; a sample ends before the first to occur.
      **options: keys of the section `generate`.

    Returns:
      For one prompt a text, str or bytes like the prompt; after token ids new
      ones, int32 [n], without the <eos> of a document. For several, or if
      `samples` is given, a list with those of the first prompt first.

    Raises:
      UserError: an option is not allowed, or the vocabulary has no token for a
        part of a prompt.
      TypeError: there is no such option, or a text has the wrong type.
    """
    of_one = isinstance(prompt, (str, bytes)) or texts.is_ids(prompt)
    several = isinstance(prompt, Iterable) and getattr(prompt, 'ndim', 1)
    if not (of_one or several):
      kind = type(prompt).__name__
      raise TypeError(f'prompt is a {kind}; allowed: texts or token ids')
    prompts = [prompt] if of_one else list(prompt)
    each = 1 if samples is None else samples
    entry = settings.keys(Generate)['samples']
    whole = isinstance(each, int | np.integer) and each is not True
    if not whole or not entry.holds(each):
      errors.refuse('samples', samples, f'a whole number {entry.bounds()}')
    rows, pieces = self._rows(prompts, each, stop, options)
    found: list[Any] = [b''.join(parts) for parts in zip(*pieces)]
    for i, text in enumerate(found):
      if isinstance(given := prompts[i // each], str):
        found[i] = text.decode(errors='replace')
      elif not isinstance(given, bytes):
        found[i] = rows[i].ids()
    return found[0] if of_one and samples is None else found

  def stream(
    self, prompt: AnyStr, *, stop: Stops = (), **options: Any
  ) -> Iterator[AnyStr]:
    """The text of `generate`, piece by piece as it is made.

    A str is never split within a character. Errors are those of `generate`,
    raised when `stream` is called.
    """
    texts.to_bytes('prompt', prompt)
    _, pieces = self._rows([prompt], 1, stop, options)
    return texts.like(prompt, (piece for (piece,) in pieces))

  def chat(self, *, stop: Stops = (), **options: Any) -> Chat:
    """A text in turns, see `Chat`; arguments as for `generate`."""
    return Chat(self._writer(options), _stops(stop))

  @mesh_lib.apart
  def score(
    self,
    text: texts.Text,
    *,
    progress: Callable[[int], None] = lambda scored: None,
    **options: Any,
  ) -> results.Score:
    """The nll of each token of a text, read as --mode=eval reads a split.

    Args:
      text: str, bytes, or token ids; at least 2 tokens.
      progress: called with the number of tokens scored so far.
      **options: keys of the section `eval`.
    """
    config = call_options.changed(self.config, 'eval', options)
    encoded = texts.with_offsets(self.vocabulary, 'text', text, frames=2)
    own = config, self.params, self.vocabulary, self.mesh
    return text_score.score(*own, encoded, progress)

  @mesh_lib.apart
  def hidden(
    self, text: texts.Text, layer: int = -1, **options: Any
  ) -> results.Hidden:
    """The states of a layer at each token, with memory carried along.

    Args:
      text: str, bytes, or token ids.
      layer: l from 1 to N is the output of layer l, 0 the embeddings; from N,
        or -1, the next token is predicted.
      **options: lengths, keys of the section `eval`.
    """
    model, encoded, T = self._inside(text, options)
    n = len(activations.shapes(model, self.params, T, 'hidden')) - 1
    whole = isinstance(layer, int | np.integer)
    if not whole or layer not in range(-n - 1, n + 1):
      errors.refuse('layer', layer, f'0 to {n}, or {-n - 1} to -1')
    of_text = encoded.ids, layer, T
    states = activations.hidden(model, self.params, *of_text)
    return results.Hidden(encoded.ids, encoded.offsets, states)

  @mesh_lib.apart
  def attention(self, text: texts.Text, **options: Any) -> results.Attention:
    """The probabilities that each token gives to others, in every head.

    UserError if the model has no attention.
    """
    model, encoded, T = self._inside(text, options)
    if not model.ATTENDS:
      name = type(model).__name__
      raise UserError(f'{name} has no attention; allowed: models that attend')
    found = activations.attention(model, self.params, encoded.ids, T)
    return results.Attention(encoded.ids, encoded.offsets, found)

  def push(
    self, place: str, *, private: bool = True, format: str = 'hub'
  ) -> str:
    """Writes the model to the Hugging Face Hub, with a model card.

    Args:
      place: hf://ORG/NAME. What is replaced in a repository that is there is
        printed before; its history keeps it.
      private: whether a new repository is.
      format: 'hub' for `txl_jax.load`; 'hugging_face' for the TransfoXL of
        transformers as well, which has no other model than Transformer-XL.

    Returns:
      The address of the commit.

    Raises:
      UserError: the Hub is out of reach or refuses, or has no such model.
    """
    if format not in (allowed := ('hub', 'hugging_face')):
      errors.refuse('format', format, ' or '.join(allowed))
    of_run = self.step is not None and '://' not in self.source
    run = pathlib.Path(self.source) if of_run else None
    weights = read_weights.of_run(
      self.config, self.params, self.vocabulary, self.source, self.step
    )
    transformers, where = format == 'hugging_face', hub.place(f'{place}')
    if transformers:
      for line in write_weights.differences(weights, format):
        warnings.warn(line, stacklevel=2)
    return write_weights.push(where, weights, run, private, transformers)

  def _inside(self, text, options):
    """The model without a ring memory, the tokenised text, and T."""
    config = call_options.changed(self.config, 'eval', options)
    encoded = texts.with_offsets(self.vocabulary, 'text', text, frames=3)
    if not (n := len(encoded.ids)):
      errors.refuse('the number of tokens of text', 0, 'at least 1')
    model = models.at_test_time(config, len(self.vocabulary), 'eval')
    model = model.at_test_time(longest=0)
    # Short texts of many lengths share one compiled program.
    longest = config.eval.context + config.eval.segment_len
    most = min(longest, model.reach())
    T = int(min(most, 1 << (n - 1).bit_length()))
    if min(longest, n) > T:
      allowed = f'at most {T} for this model'
      errors.refuse('eval.segment_len', config.eval.segment_len, allowed)
    return model, encoded, T

  def _rows(self, prompts, samples, stop, options):
    """All samples, and their pieces as they are made, see `Writer.stream`."""
    if not prompts:
      errors.refuse('prompt', prompts, 'one text or more')
    ids = []
    for i, prompt in enumerate(prompts):
      name = f'prompt {i}' if len(prompts) > 1 else 'prompt'
      if texts.is_ids(prompt) or isinstance(prompt, list):
        ids.append(texts.ids(self.vocabulary, name, prompt))
      else:
        ids.append(texts.tokenise(self.vocabulary, name, prompt)[0])
    writer = self._writer(options)
    rows = writer.make_rows(ids, samples, _stops(stop))
    return rows, mesh_lib.each_apart(writer.stream(rows, samples))

  def _writer(self, options):
    """The `text_writer.Writer` of a call."""
    config = call_options.changed(self.config, 'generate', options)
    return text_writer.make(config, self.params, self.vocabulary, self._freeze)

  @mesh_lib.apart
  def _freeze(self, model, params):
    """`base.freeze`, kept for the next call of the same model."""
    if self._frozen[0] != model:
      self._frozen = None, None  # before another one is made
      self._frozen = model, base.freeze(model, params)
    return self._frozen[1]


def _stops(stop):
  """The bytes of the texts that end a sample."""
  each = [stop] if isinstance(stop, (str, bytes)) else stop
  found = [texts.to_bytes('stop', x) for x in each]
  if b'' in found:
    errors.refuse('stop', stop, 'texts of one byte or more')
  return found
