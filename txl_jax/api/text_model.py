"""A trained model with its vocabulary: generates, scores and reads texts.

Shapes: n tokens, N layers, H heads, T segment, V vocabulary.
"""

import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, AnyStr

import jax
import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.data.vocabularies import AnyVocabulary, Ids
from txl_jax.experiment import call_options, results, text_score, texts
from txl_jax.experiment.sections import Config
from txl_jax.generation import text_writer
from txl_jax.generation.generate_config import Generate
from txl_jax.models import base, inspection
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.program import errors, settings
from txl_jax.program.errors import UserError

if TYPE_CHECKING:
  from txl_jax.api.chat import Chat

Stops = str | bytes | Sequence[str] | Sequence[bytes] | None


class TextModel:
  """A trained model; `txl_jax.load` makes one from a run or an exported file.

  Options of a call are keys of the sections `eval` and `generate` of a config
  (docs/config.md); their defaults are the values of the run. `score` works like
  --mode=score; `generate`, `stream` and `chat` work like --mode=generate. For
  errors see `generate`. Calls with equal lengths share compiled programs.

  Attributes:
    config: the `experiment.sections.Config` of the run.
    params: the parameters for inference, on the mesh.
    vocabulary: encodes text as token ids.
    mesh: the devices.
    step: the training step of the checkpoint; None without a run.
    source: absolute path or address of the run or file.
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
    self._frozen: tuple[Any, Any] = None, None  # a model, and its variables

  def __repr__(self) -> str:
    n = sum(x.size for x in jax.tree.leaves(self.params))
    name = self.config.model.name
    V = len(self.vocabulary)
    return f'TextModel({name}, {n:,} parameters, {V:,} {self.vocabulary.kind})'

  @property
  def model(self) -> base.LanguageModel:
    """The unbound Linen module with its training config."""
    return models.build(self.config.model, len(self.vocabulary))

  def encode(self, text: str | bytes) -> np.ndarray:
    """Token ids of a text, int32 [n]; UserError if a part has no token."""
    return texts.tokenise(self.vocabulary, 'text', text, frames=1)[0]

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of integers [n]; UserError unless they are in [0, V)."""
    data = self.vocabulary.decode(texts.ids(self.vocabulary, 'ids', ids))
    return data.decode(errors='replace')

  @mesh_lib.without_mesh
  def generate(
    self,
    prompt: Any,
    *,
    samples: int | None = None,
    stop: Stops = (),
    **options: Any,
  ) -> Any:
    """Continues a prompt, or each of several prompts.

    Args:
      prompt: a str, bytes or token ids, or an iterable of prompts, of any
        lengths. An empty prompt starts a new text.
      samples: number of samples of each prompt; None means one.
      stop: stop texts, one or several; a sample ends before the first of them.
        In texts of token ids between spaces they are whole ids.
      **options: keys of the section `generate`.

    Returns:
      The continuation of one prompt, in its type: a str, bytes or, for token
      ids, int32 [n] without the <eos> of a document. A list for several prompts
      or if `samples` is given, ordered by prompt, then sample.

    Raises:
      UserError: an option is not allowed, or the vocabulary has no token for a
        part of a prompt.
      TypeError: an option does not exist, or a text has the wrong type.
    """
    is_one = isinstance(prompt, (str, bytes)) or texts.is_ids(prompt)
    several = isinstance(prompt, Iterable) and getattr(prompt, 'ndim', 1)
    if not (is_one or several):
      kind = type(prompt).__name__
      raise TypeError(f'prompt is of type {kind}; allowed: texts or token ids')
    prompts = [prompt] if is_one else list(prompt)
    count = 1 if samples is None else samples
    entry = settings.keys(Generate)['samples']
    is_whole = isinstance(count, int | np.integer) and count is not True
    if not is_whole or not entry.holds(count):
      errors.refuse('samples', samples, f'a whole number {entry.bounds()}')
    rows, pieces = self._rows(prompts, count, stop, options)
    outputs: list[Any] = [b''.join(parts) for parts in zip(*pieces)]
    for i, data in enumerate(outputs):
      if isinstance(prompts[i // count], str):
        outputs[i] = data.decode(errors='replace')
      elif not isinstance(prompts[i // count], bytes):
        outputs[i] = rows[i].ids()
    return outputs[0] if is_one and samples is None else outputs

  @mesh_lib.without_mesh
  def stream(
    self, prompt: AnyStr, *, stop: Stops = (), **options: Any
  ) -> Iterator[AnyStr]:
    """Yields the text of `generate` in pieces as it is generated.

    A str is never split within a character. `stream` itself raises the errors
    of `generate`, before the first piece.
    """
    texts.to_bytes('prompt', prompt)
    _, pieces = self._rows([prompt], 1, stop, options)
    return texts.like(prompt, (piece for (piece,) in pieces))

  def chat(self, *, stop: Stops = (), **options: Any) -> 'Chat':
    """Starts a dialogue, see `Chat`; arguments as for `generate`."""
    from txl_jax.api.chat import Chat

    return Chat(self._writer(options), _stops(self.vocabulary, stop))

  @mesh_lib.without_mesh
  def score(
    self,
    text: texts.Text,
    *,
    top: int = 0,
    progress: Callable[[int], None] = lambda scored: None,
    **options: Any,
  ) -> results.Score:
    """The nll of each token of a text, which is scored like a split.

    Args:
      text: str, bytes or token ids; at least 2 tokens, or 1 after an <eos>.
      top: K, how many of the most likely tokens to return; see `Score`.
      progress: called with the number of tokens scored so far.
      **options: keys of the section `eval`.
    """
    if type(top) is bool or not isinstance(top, int | np.integer) or top < 0:
      errors.refuse('top', top, 'a whole number, at least 0')
    config = call_options.changed(self.config, 'eval', options)
    encoded = texts.with_offsets(self.vocabulary, 'text', text, frames=3)
    return text_score.score(
      config, self.params, self.vocabulary, self.mesh, encoded, progress, top
    )

  @mesh_lib.without_mesh
  def hidden(
    self, text: texts.Text, layer: int = -1, **options: Any
  ) -> results.Hidden:
    """Output of a layer at each token; memory is carried across segments.

    Args:
      text: str, bytes or token ids; at least 1 token.
      layer: from 1 to N, or 0 for the embeddings; -1 is N, whose output
        predicts the next token.
      **options: `eval` keys, such as segment_len.
    """
    from txl_jax.evaluation import activations

    model, encoded, T = self._segmented(text, options)
    N = len(activations.shapes(model, self.params, T, inspection.STATES)) - 1
    is_whole = isinstance(layer, int | np.integer) and type(layer) is not bool
    if not is_whole or layer not in range(-N - 1, N + 1):
      errors.refuse('layer', layer, f'0 to {N}, or {-N - 1} to -1')
    states = activations.hidden(model, self.params, encoded.ids, layer, T)
    return results.Hidden(encoded.ids, encoded.offsets, states)

  @mesh_lib.without_mesh
  def attention(self, text: texts.Text, **options: Any) -> results.Attention:
    """Attention probabilities of all layers and heads; see `hidden`.

    UserError if the model has no attention.
    """
    from txl_jax.evaluation import activations

    model, encoded, T = self._segmented(text, options)
    if not model.ATTENDS:
      name = type(model).__name__
      raise UserError(f'{name} has no attention; allowed: models that attend')
    maps = activations.attention(model, self.params, encoded.ids, T)
    return results.Attention(encoded.ids, encoded.offsets, maps)

  def push(
    self, place: str, *, private: bool = True, format: str = 'hub'
  ) -> str:
    """Pushes the model to the Hugging Face Hub, with a model card.

    Args:
      place: hf://ORG/NAME. In an existing repository, the names of the files to
        be replaced are printed first; its git history keeps the old ones.
      private: whether a new repository is private.
      format: 'hub' for `txl_jax.load`; 'hugging_face' also for the TransfoXL of
        transformers, if the model is a Transformer-XL.

    Returns:
      The address of the commit.

    Raises:
      UserError: the Hub cannot be reached or refuses, or the format does not
        support the model.
    """
    from txl_jax.convert import read_weights, write_weights
    from txl_jax.program import hub

    if format not in (allowed := ('hub', 'hugging_face')):
      errors.refuse('format', format, ' or '.join(allowed))
    has_run = self.step is not None and '://' not in self.source
    run = pathlib.Path(self.source) if has_run else None
    weights = read_weights.of_run(
      self.config, self.params, self.vocabulary, self.source, self.step
    )
    transformers = format == 'hugging_face'
    where = hub.place(f'{place}')
    if transformers:
      for line in write_weights.differences(weights, format):
        warnings.warn(line, stacklevel=2)
    return write_weights.push(
      where, weights, run=run, private=private, transformers=transformers
    )

  def _segmented(self, text, options):
    """The model without a ring buffer, the `texts.TokenisedText`, and T."""
    config = call_options.changed(self.config, 'eval', options)
    encoded = texts.with_offsets(self.vocabulary, 'text', text, frames=4)
    if not (n := len(encoded.ids)):
      errors.refuse('the number of tokens of text', 0, 'at least 1')
    model = models.at_test_time(config, len(self.vocabulary), 'eval')
    model = model.at_test_time(longest=0)
    # Short texts share a compiled program per power of two.
    segment_len = config.eval.context + config.eval.segment_len
    T = int(min(segment_len, model.reach(), 1 << (n - 1).bit_length()))
    if min(segment_len, n) > T:
      allowed = f'at most {T} for this model'
      errors.refuse('eval.segment_len', config.eval.segment_len, allowed)
    return model, encoded, T

  def _rows(self, prompts, samples, stop, options):
    """The rows of all samples, and their text in pieces (`Writer.stream`)."""
    if not prompts:
      errors.refuse('prompt', prompts, 'one text or more')
    ids = []
    for i, prompt in enumerate(prompts):
      name = f'prompt {i}' if len(prompts) > 1 else 'prompt'
      if texts.is_ids(prompt) or isinstance(prompt, list):
        ids.append(texts.ids(self.vocabulary, name, prompt))
      else:
        ids.append(texts.tokenise(self.vocabulary, name, prompt, frames=3)[0])
    writer = self._writer(options)
    rows = writer.make_rows(ids, samples, _stops(self.vocabulary, stop))
    return rows, mesh_lib.iterate_without_mesh(writer.stream(rows, samples))

  def _writer(self, options):
    """The `text_writer.Writer` of a call with these options."""
    config = call_options.changed(self.config, 'generate', options)
    return text_writer.make(config, self.params, self.vocabulary, self._freeze)

  @mesh_lib.without_mesh
  def _freeze(self, model, params):
    """Calls `base.freeze`, or returns its result for an equal model."""
    if self._frozen[0] != model:
      self._frozen = None, None  # frees memory for the new variables
      self._frozen = model, base.freeze(model, params)
    return self._frozen[1]


def _stops(vocabulary: AnyVocabulary, stop: Stops) -> list[bytes]:
  """The bytes of each text that ends a sample, as they are generated."""
  is_one = isinstance(stop, (str, bytes)) or not isinstance(stop, Iterable)
  stops: Any = () if stop is None else [stop] if is_one else stop
  encoded = [texts.to_bytes('stop', text) for text in stops]
  if isinstance(vocabulary, Ids) and vocabulary.spaced:
    ids = (vocabulary.encode(text, 'stop') for text in encoded)
    encoded = [vocabulary.decode(x) for x in ids]
  if b'' in encoded:
    allowed = 'texts of one byte or more; of token ids, one id or more'
    errors.refuse('stop', stop, allowed)
  return encoded
