"""The programs that `benchmarks hlo` compiles, for devices that may be absent.

Each function returns a `Call` of the program that a run with this config would
compile for the devices of the mesh, as the run itself builds it.

Shapes: B batch, E context, T segment, G segments in a call, V vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from txl_jax import models
from txl_jax.data.documents import Documents
from txl_jax.data.vocabularies import Ids
from txl_jax.evaluation import scoring
from txl_jax.generation import decoding, text_writer
from txl_jax.models import base
from txl_jax.ops import kernels
from txl_jax.ops.kernels import proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import settings, target_device
from txl_jax.training import cost, plan
from txl_jax.training import step as step_lib


class Call(NamedTuple):
  """A call of a program, before it is compiled."""

  shown: str  # the shapes of its tokens, as text
  tokens: int  # that it trains on, scores or writes, on all devices
  flops: float  # of its matrix products, on all devices
  lower: Callable[[], Any]  # returns a `jax.stages.Lowered`
  params: Any  # their shapes
  memory: str  # the argument that holds the memory states


class _Zeros:
  """A corpus of zeros, long enough for one batch."""

  def __init__(self, config: Any):
    zeros = np.zeros(config.train.batch_size * (config.train.segment_len + 1))
    self._text = _zeros(len(zeros), config.data.ends_documents)

  def token_stream(self, split: str) -> Any:
    """The tokens of any split."""
    return self._text

  def sentences(self, split: str) -> None:
    """None: their order changes no shape."""


def _zeros(n, of_documents):
  zeros = np.zeros(n, np.int32)
  return Documents(zeros, np.array([0, n - 1])) if of_documents else zeros


def widest_batch(config: Any, mesh: Mesh) -> dict[str, Any]:
  """The shapes of the batch of training that needs the most memory."""
  corpus: Any = _Zeros(config)
  text = plan.make_streams(config, corpus)
  return plan.batch_shapes(config, text, mesh)[-1]


def training(config: Any, vocab_size: int, mesh: Mesh) -> Call:
  """A training step. UserError if the batch does not fit the mesh."""
  plan.check_rows(config, placement.row_parts(mesh))
  batch = widest_batch(config, mesh)
  (B, read), (_, width) = (batch[k].shape for k in ('inputs', 'targets'))
  widest = ', the longest of varying lengths' if config.train.varlen else ''
  # As wide as the batch; half of a loss costs as much as all of it.
  wide = {'train.segment_len': width, 'train.loss': 'full'}
  flops = cost.flops_per_token(settings.replace(config, wide), vocab_size)
  built = step_lib.build(config, vocab_size, mesh)
  with mesh_lib.ambient(mesh):
    attention = _attention(config.model, read)
  return Call(
    f'inputs {B} x {read}, targets {B} x {width}{widest}{attention}',
    B * width,
    B * width * flops,
    lambda: built.step.lower(built.abstract, batch),
    built.abstract.params,
    'state.memory',
  )


def _attention(model_config, T):
  """The implementation of attention, as text, if there is any."""
  name = getattr(model_config, 'attention', '')
  if name == 'auto':
    name, _ = kernels.choose(proof.case(model_config, T))
  return f'; attention: {name}' if name else ''


def _variables(model, params, mesh):
  """Shapes and shardings of `base.freeze`, compiled for several devices."""
  with mesh_lib.ambient(mesh):
    shapes = jax.eval_shape(functools.partial(base.freeze, model), params)
    if mesh.size == 1:
      return _replicated(shapes, mesh)
    placed = base.freeze.lower(model, params).compile().output_shardings
  return placement.with_shardings(shapes, placed)


def _replicated(shapes, mesh):
  everywhere = jax.tree.map(lambda _: placement.replicated(mesh), shapes)
  return placement.with_shardings(shapes, everywhere)


def _params(config, vocab_size, mesh):
  """Shapes and shardings of parameters at test time, as `restore` has them."""
  model = models.build(config.model, vocab_size)
  shapes = base.param_shapes(model)
  placed = placement.by_rules(shapes, mesh, model.SHARDING)
  return model.inference_params(placement.with_shardings(shapes, placed))


def evaluation(config: Any, vocab_size: int, mesh: Mesh) -> Call:
  """A call of `scoring.score_segments` with the options of section `eval`."""
  ev = config.eval
  params = _params(config, vocab_size, mesh)
  with mesh_lib.ambient(mesh):
    model = models.at_test_time(config, vocab_size, 'eval', ev.window)
    B, T, G = ev.batch_size, ev.segment_len, ev.segments_per_call
    text = _zeros(B * G * T + 1, config.data.ends_documents)
    rows, batches = scoring.batches(model, text, B, T, G, ev.context, mesh)
    (inputs, targets, *others), _ = next(batches)
    shapes = jax.eval_shape(functools.partial(model.init_memory, rows))
  placed = base.memory_shardings(model, mesh)
  memory = placement.with_shardings(shapes, placed)
  variables = _variables(model, params, mesh)
  with mesh_lib.ambient(mesh):
    traced = scoring.jit_score.trace(
      variables, memory, inputs, targets, *others, model=model, mesh=mesh
    )
  shown = (
    f'inputs {" x ".join(map(str, inputs.shape))} (segments, rows, tokens)'
  )
  n, flops = targets.size, cost.flops(traced.jaxpr.jaxpr)
  return Call(shown, n, flops, traced.lower, params, 'memory')


def decode(config: Any, vocab_size: int, mesh: Mesh) -> Call:
  """A call of `decoding.decode` with the options of section `generate`."""
  g = config.generate
  params = _params(config, vocab_size, mesh)
  vocabulary = Ids.of_names({}, vocab_size)
  freeze = functools.partial(_variables, mesh=mesh)
  with mesh_lib.ambient(mesh):
    writer = text_writer.make(config, params, vocabulary, freeze)
    model, variables, n = writer.model, writer.variables, decoding.CHUNK
    state = jax.eval_shape(
      lambda: decoding.repeat_rows(
        model, decoding.start_state(model, ()), g.samples
      )
    )
    done = jax.ShapeDtypeStruct([g.samples], jnp.bool)
    traced = decoding.compiled_chunk(target_device.device().platform).trace(
      model, variables, *_replicated((state, done), mesh),
      jax.random.key(g.seed, impl='threefry2x32'), g.max_new_tokens,
      np.array([-1], np.int32), writer.options['sampling'], n,
    )  # fmt: skip
  shown = f'{n} tokens, one after the other, in {g.samples} rows'
  count, flops = n * g.samples, cost.flops(traced.jaxpr.jaxpr)
  return Call(shown, count, flops, traced.lower, params, 'state.memory')


PROGRAMS = {'train': training, 'eval': evaluation, 'decode': decode}
