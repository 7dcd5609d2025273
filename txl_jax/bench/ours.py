"""Our worker, started by `side_by_side`.

A benchmark is made of a config and the specification, and has the parameters
of its model, `params`; `run(steps)` returns a measurement.
"""

import types
from collections.abc import Callable
from typing import Any

import jax

from txl_jax.bench import scoring_speed, training_speed, worker
from txl_jax.errors import UserError
from txl_jax.modes import sections

_BENCHMARKS = {
  'train': training_speed.Training,
  'eval': scoring_speed.Scoring,
}


def config(spec: types.SimpleNamespace) -> Any:
  """What a specification is as a config."""
  c = sections.compose()
  c.seed = spec.seed
  on_cpu = jax.default_backend() == 'cpu'
  c.model.update(
    n_layer=spec.layers,
    d_model=spec.d_model,
    n_head=spec.heads,
    d_head=spec.d_head,
    d_ff=spec.d_ff,
    mem_len=spec.memory,
    dropout=spec.dropout,
    dtype=spec.dtype,
    unroll=spec.layers if on_cpu else 1,
  )
  c.train.update(steps=spec.steps, batch_size=spec.batch)
  c.optim.update(lr=spec.lr, clip=spec.clip, schedule='constant')
  return c


def prepare(spec: types.SimpleNamespace) -> tuple[dict, Callable[[], dict]]:
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
