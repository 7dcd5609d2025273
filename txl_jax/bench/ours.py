"""Our worker, started and told what to do by `pairs`."""

import json
import os
import sys
import types

import jax

from txl_jax import models
from txl_jax.bench import score, train
from txl_jax.errors import UserError

_PREPARE = {'train': train.prepare, 'eval': score.prepare}


def build(spec):
  """The model of a specification, as its benchmark uses it."""
  on_cpu = jax.default_backend() == 'cpu'
  return models.build(
    dict(
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
      cache_projections=spec.benchmark == 'eval',
    ),
    spec.vocab,
  )


def main(argument):
  """Answers the parent until its input ends.

  Args:
    argument: the specification as JSON.
  """
  # What any library prints goes to stderr: stdout holds answers only.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  tell = lambda answer: print(json.dumps(answer), file=answers, flush=True)

  spec = types.SimpleNamespace(**json.loads(argument))
  try:
    params, measure = _PREPARE[spec.benchmark](build(spec), spec)
  except UserError as e:
    tell(dict(error=str(e)))
    return
  tell(
    dict(
      parameters=sum(x.size for x in jax.tree.leaves(params)),
      versions=f'jax {jax.__version__}',
      device=jax.default_backend(),
    )
  )
  for _ in sys.stdin:
    tell(measure())


if __name__ == '__main__':
  main(sys.argv[1])
