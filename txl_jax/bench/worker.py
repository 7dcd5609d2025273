"""What both workers of `side_by_side` do; the standard library alone."""

import json
import os
import sys
import types
from collections.abc import Callable


def serve(
  prepare: Callable[[types.SimpleNamespace], tuple[dict, Callable[[], dict]]],
  errors: tuple[type[Exception], ...],
) -> None:
  """Answers the parent until its input ends.

  Args:
    prepare: function of the specification that warms up; returns the first
      answer and a function that measures.
    errors: exceptions of `prepare` that mean: this side cannot run.
  """
  # What any library prints goes to stderr: stdout holds answers only.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

  def answer(message):
    print(json.dumps(message), file=answers, flush=True)

  spec = types.SimpleNamespace(**json.loads(sys.argv[1]))
  try:
    ready, measure = prepare(spec)
  except errors as e:
    answer(dict(error=' '.join(str(e).split())))
    return
  answer(ready)
  for _ in sys.stdin:
    answer(measure())
