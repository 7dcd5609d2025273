"""Our worker, started by `side_by_side`.

A benchmark is made of a config and the specification, and has the parameters
of its model, `params`; `run(steps)` returns a measurement.
"""

import types

import jax
import ml_collections

from txl_jax.bench import scoring_speed, training_speed, worker
from txl_jax.errors import UserError

_BENCHMARKS = {
  'train': training_speed.Training,
  'eval': scoring_speed.Scoring,
}


def config(spec: types.SimpleNamespace) -> ml_collections.ConfigDict:
  """What a specification is as a config; of its sections what we read."""
  on_cpu = jax.default_backend() == 'cpu'
  return ml_collections.ConfigDict(
    dict(
      seed=spec.seed,
      model=dict(
        name='transformer_xl',
        n_layer=spec.layers,
        d_model=spec.d_model,
        n_head=spec.heads,
        d_head=spec.d_head,
        d_ff=spec.d_ff,
        mem_len=spec.memory,
        dropout=spec.dropout,
        dtype=spec.dtype,
        unroll=spec.layers if on_cpu else 1,
      ),
      train=dict(
        steps=spec.steps,
        batch_size=spec.batch,
        accumulate=1,
        steps_per_dispatch=1,
        nonfinite='stop',
      ),
      optim=dict(
        name='adam',
        lr=spec.lr,
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        state_dtype='float32',
        clip=spec.clip,
        weight_decay=0.0,
        schedule='constant',
        warmup=0,
        lr_floor=0.0,
        average='off',
      ),
    )
  )


def prepare(spec: types.SimpleNamespace):
  """See `worker.serve`; UserError if the devices cannot share the batch."""
  benchmark = _BENCHMARKS[spec.benchmark](config(spec), spec)
  benchmark.run(2)  # compiles
  ready = dict(
    parameters=sum(x.size for x in jax.tree.leaves(benchmark.params)),
    versions=f'jax {jax.__version__}',
    device=jax.default_backend(),
  )
  return ready, lambda: benchmark.run(spec.steps)


if __name__ == '__main__':
  worker.serve(prepare, (UserError,))
