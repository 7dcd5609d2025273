import dataclasses
import json
import math

from configs import common
from txl_jax.training import averaging, optim, resume


def section(**changes):
  config = common.get_config().optim
  config.update(changes)
  return config


def after(figures, config):
  p = resume.Progress()
  for n, figure in enumerate(figures, 1):
    p = p.after(10 * n, figure, config)
  return p


def test_best_and_last():
  assert resume.Progress().best_step == -1
  p = after([3.0, 2.0, 2.0, 2.5], section())
  assert (p.evaluated, p.last) == (40, 2.5)
  assert (p.best_step, p.best) == (20, 2.0)
  p = p.after(50, math.nan, section())
  assert (p.evaluated, p.best_step, p.best) == (50, 20, 2.0)


def test_only_what_the_config_asks_for_is_kept():
  figures = [3.0, 2.0, 2.5, 2.6, 2.7]
  p = after(figures, section(average_patience=1))
  assert p.plateau == optim.Plateau() and p.trigger == averaging.Trigger()
  p = after(figures, section(schedule='plateau'))
  assert p.plateau.scale == 0.125 and p.trigger == averaging.Trigger()
  p = after(figures, section(average='nt', average_patience=1))
  assert p.plateau == optim.Plateau() and p.trigger.start == 40


def test_json_gives_it_back():
  config = section(schedule='plateau', average='nt', average_patience=2)
  for figures in [], [3.0], [3.0, 2.0, 0.1 + 0.2, 4.0, 5.0, 6.0]:
    p = after(figures, config)
    text = json.dumps(dataclasses.asdict(p))
    assert resume.Progress.from_json(json.loads(text)) == p
    # What is in a checkpoint is compared with what would be written.
    assert json.loads(text) == dataclasses.asdict(p)
    assert json.loads(text).keys() == {
      field.name for field in dataclasses.fields(p)
    }
