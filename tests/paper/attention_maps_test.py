"""--mode=attention_maps of a tiny run."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.modes import runs, subjects
from txl_jax.paper import attention_maps
from txl_jax.program.errors import UserError


def config(**values):
  c = subjects.config()
  c.attention_maps.update({'tokens': 30, 'passage': 7} | values)
  return c


def test_a_run(folder, corpus, capfd):
  c = config(start=20, context=16)
  record = subjects.measure(attention_maps, c, folder, 'attention_maps')
  assert record['keys'] == 4 + 5 and record['averaged_tokens'] == 30
  mean = np.array(record['mean_attention_by_distance'])
  assert mean.shape == (1, 2, 9)
  np.testing.assert_allclose(mean.sum(-1), 1, atol=1e-6)
  far = mean @ np.arange(9)
  np.testing.assert_allclose(record['mean_distance_tokens'], far, atol=1e-3)
  beyond = mean[..., 5:].sum(-1)
  np.testing.assert_allclose(record['beyond_segment'], beyond, atol=1e-5)
  passage = np.array(record['passage_attention_by_distance_range'])
  assert passage.shape == (1, 2, 7, 9)
  symbols = [' ', 'a', 'b']
  text = [symbols[i] for i in subjects.text(80)[20:27]]
  assert record['passage_text'] == text
  subjects.assert_picture(folder / 'analysis/attention_maps.png')
  scores = record['mean_score_by_distance']
  assert [*scores] == ['a', 'b', 'c', 'd']
  assert all(np.shape(x) == (1, 2, 9) for x in scores.values())
  assert 'v·r ' in capfd.readouterr().out


@pytest.mark.thorough
def test_the_text_begins_where_the_memory_is_full(folder, corpus):
  """The passage sees M + P keys at most, and its panels show no more."""
  c = config(passage=3, context=1)  # T is 5 and M is 4
  record = subjects.measure(attention_maps, c, folder, 'attention_maps')
  assert (record['start'], record['keys']) == (5, 9)
  assert record['distance_range_edges_tokens'] == [*range(4 + 3 + 1)]
  passage = np.array(record['passage_attention_by_distance_range'])
  assert passage[..., 0, :5].all() and not passage[..., 0, 5:].any()
  c = config(passage=30, context=70, tokens=79)  # which the text has not
  record = subjects.measure(attention_maps, c, folder, 'attention_maps')
  assert (record['start'], record['averaged_tokens']) == (50, 30)


def test_a_text_at_the_end(folder, corpus):
  record = subjects.measure(
    attention_maps, config(start=73), folder, 'attention_maps'
  )
  assert record['averaged_tokens'] == 7
  with pytest.raises(UserError, match=r'attention_maps.start is 74; .* 73'):
    attention_maps.run(runs.job(config(start=74), folder))


def test_without_matplotlib(folder, corpus, without_matplotlib, capfd):
  """The table and the record are there, and no picture of another time."""
  (folder / 'analysis').mkdir(exist_ok=True)
  (folder / 'analysis/attention_maps.png').write_text('old')
  attention_maps.run(runs.job(config(), folder, silent=False))
  told = capfd.readouterr()
  assert 'mean distance' in told.out
  last = 'picture left out: pip install matplotlib'
  assert told.err.splitlines()[-1] == last
  assert (folder / 'analysis/attention_maps.json').exists()
  assert not (folder / 'analysis/attention_maps.png').exists()


@pytest.mark.parametrize('N, labels', [(3, '1 2 3'), (24, '1 3 5 7 9 11')])
def test_layers_are_named(N, labels):
  """At most twelve of them, in the middle of the rows of their heads."""
  axes, H = Figure().subplots(), 2
  attention_maps._name_layers(axes, N, H)
  texts = [x.get_text() for x in axes.get_yticklabels()]
  assert len(texts) <= 12 and texts[:6] == labels.split()
  places = [H * (int(x) - 1) + 0.5 for x in texts]
  assert axes.get_yticks().tolist() == places


def test_a_label_is_short_and_printable():
  x = 'x' * 12
  labels = {'a b\n': 'a␣b↵', '\x07é': '\\x07é', x: x, f'{x}x': f'{x}…'}
  assert {k: attention_maps._label(k) for k in labels} == labels


def test_the_table():
  record = {
    'run': 'xl', 'checkpoint_step': 7, 'corpus': 'c', 'split': 's',
    'tokens': 900, 'split_tokens': 5000, 'averaged_tokens': 1000,
    'start': 2000, 'keys': 3000, 'segment_tokens': 5,
    'mean_distance_tokens': [[2.0, 4.5, 1.0], [8.0, 2.0, 2.0]],
    'beyond_segment': [[0.5, 0.0, 0.1], [0.25, 0.0, 0.05]],
    'score_spread': {'a': [[0.5, 1.5, 1.0], [2.0, 2.0, 3.5]]},
  }  # fmt: skip
  found = [' '.join(x.split()) for x in attention_maps.table(record)[1:]]
  assert found == [
    'attention of 1,000 tokens, from token 2,000 on, to 3,000 keys at most',
    'layer mean distance farthest head 5 tokens or farther',
    '1 2.5 4.5 (head 2) 20.0%',
    '2 4.0 8.0 (head 1) 10.0%',
    '',
    'standard deviation of scores over keys layer 1 layer 2',
    'query by key, q·k 1.000 2.500',
  ]


def test_what_is_drawn():
  rng = np.random.default_rng(0)
  N, H, S, P = 2, 2, 130, 65
  mean, scores = rng.random([2, N, H, S])
  borders = [*range(0, S, 3), S]  # at most 64 ranges
  passage = rng.random([N, H, P, len(borders) - 1])
  without = scores.astype(object)
  without[0, 1, 7] = None
  scores[0, 1, 7] = 0
  record = {
    'mean_attention_by_distance': mean.tolist(),
    'distance_range_edges_tokens': borders,
    'passage_attention_by_distance_range': passage.tolist(),
    'mean_distance_tokens': [[5.0, 9.0], [7.0, 1.0]],
    'passage_text': [f'w{i}' for i in range(P)],
    'mean_score_by_distance': {'a': without.tolist()},
  }
  attention_maps.plot(figure := Figure(), record)
  first, *heads, term = (x for x in figure.axes if x.images)
  data = lambda axes: axes.images[0].get_array()
  sums = lambda x: np.add.reduceat(x.reshape(N * H, S), borders[:-1], 1)
  np.testing.assert_allclose(data(first), sums(mean))
  np.testing.assert_allclose(data(term), sums(scores) / np.diff(borders))
  for axes, (layer, head) in zip(heads, ((0, 1), (1, 0), (0, 0)), strict=True):
    np.testing.assert_allclose(data(axes), passage[layer, head])
    assert axes.get_title() == f'passage, layer {layer + 1}, head {head + 1}'
    assert axes.get_yticks().tolist() == [*range(0, P, 3)]  # at most 30 words
    word = axes.get_yticklabels()[1].get_text()
    assert word == ('w3' if axes is heads[0] else '')
  assert first.get_xticks().tolist() == [-0.5, 13.5, 28.5, 43.5]
  edges = [x.get_text() for x in first.get_xticklabels()]
  assert edges == ['0', '42', '87', '130']
  assert [*first.lines[0].get_ydata()] == [1.5, 1.5]  # between the layers
  for axes, shares in ((first, (0.001, 0.01, 0.1, 1)), (term, (-1, 0, 1))):
    image, most = axes.images[0], data(axes).max()
    assert image.norm.vmin == pytest.approx(shares[0] * most)
    ticks = [x.get_text() for x in image.colorbar.ax.get_xticklabels()]
    assert ticks == [f'{share * most:.2g}' for share in shares]
