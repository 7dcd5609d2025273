"""The batches that training compiles for, beside those that it reads."""

from unittest import mock

import jax
import numpy as np
import pytest

from tests import plain
from txl_jax.configs import common
from txl_jax.data.documents import Documents
from txl_jax.experiment import sections
from txl_jax.ops.kernels import proof
from txl_jax.parallel import mesh as mesh_lib
from txl_jax.parallel import placement
from txl_jax.program import target_device
from txl_jax.training import plan

B, T, E = 4, 6, 5
PTB = dict(context=E, varlen=True, varlen_limit=0, varlen_rate=True)


class Corpus(plain.Corpus):
  """Random text; of documents of 1 to 20 tokens on request."""

  def __init__(self, documents):
    rng = np.random.default_rng(0)
    self._text = rng.integers(0, 9, 3000)
    if documents:
      starts = np.append(0, np.cumsum(rng.integers(2, 21, 100)))
      self._text = Documents(self._text[: starts[-1] + 1], starts)

  def token_stream(self, split, count=0):
    return self._text


# What data.documents and `train` can say about the shapes of batches.
CASES = [
  ('none', {}),
  ('none', dict(rows='apart')),
  ('none', dict(varlen=True)),
  ('none', dict(context=E)),
  ('none', PTB | dict(rows='apart')),
  ('file', {}),
  ('file', dict(context=E)),
]


def config(documents, options):
  """The config of a case."""
  c = common.get_config()
  c.data.update(corpus='text', path=__file__, documents=documents)
  c.train.update(batch_size=B, segment_len=T, **options)
  c.model.mem_len = 0
  return sections.read(c)


@pytest.mark.parametrize('documents, options', CASES)
def test_shapes_are_those_of_batches(documents, options):
  c = config(documents, options)
  text = plan.make_streams(c, Corpus(documents != 'none'))
  assert plan.eval_batching(c)['context'] == text.context
  mesh = mesh_lib.make_mesh(devices=jax.devices()[:2])
  described = plan.batch_shapes(c, text, mesh)
  placed = placement.by_rows(mesh)
  used = set()

  def kind(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)

  for step in range(200):
    read = jax.make_array_from_process_local_data(
      placed, vars(text.batch(step))
    )
    (shapes,) = (
      x for x in described if x['targets'].shape == read['targets'].shape
    )
    assert kind(read) == kind(shapes)
    used.add(read['targets'].shape[1])
  widths = [x['targets'].shape[1] for x in described]
  assert widths == sorted(widths) and used <= {*widths}
  assert len(used) == (3 if 'varlen' in options else 1)


def test_the_attention_of_the_widest_batch(monkeypatch):
  monkeypatch.setattr(proof, 'proven', lambda case, before: (case.T, before))
  batches = mock.Mock(context=E, widths=(6, 9, 12))
  assert plan._kernel(config('none', {}), batches, 'xla') == (17, 'xla')
  assert plan._kernel(sections.compose('lstm'), batches, 'xla').name == ''


def test_programs_that_are_compiled_at_a_time(monkeypatch):
  pool = mock.MagicMock()
  monkeypatch.setattr(plan.futures, 'ThreadPoolExecutor', pool)
  for platform in 'cpu', 'gpu':
    device = mock.Mock(return_value=target_device.Device(platform))
    monkeypatch.setattr(target_device, 'device', device)
    text = mock.Mock(widths=())
    plan._compile(config('none', {}), None, mesh_lib.make_mesh(), text)
  assert [x.args for x in pool.call_args_list] == [(1,), (None,)]
