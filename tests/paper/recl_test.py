"""--mode=recl of two tiny runs, with memory and without."""

import dataclasses
import math

import pytest
from matplotlib.figure import Figure

from tests import refusing
from tests.modes import runs, subjects
from txl_jax.paper import recl


def config(**others):
  c = subjects.config()
  c.recl.update(step=3, longest=10, positions=9, batch_size=4, resamples=9)
  c.recl.update(others)
  return c


def test_a_group(folder, plain, corpus, capfd):
  c = config(others=(str(plain), str(plain)))
  record = subjects.measure(recl, c, folder, 'recl')
  assert record['contexts_tokens'] == [3, 6, 9] and record['positions'] == 9
  names = ['xl', 'plain', 'plain (2)']
  assert [m['name'] for m in record['group']] == names
  xl, first, second = record['group']
  assert first['mean_nats'] == pytest.approx(second['mean_nats'])
  # The weights are the same, and so is what a first segment shows.
  assert xl['mean_nats'][0] == pytest.approx(first['mean_nats'][0])
  assert xl['mean_nats'][1] != pytest.approx(first['mean_nats'][1])
  assert [m['config']['model.mem_len'] for m in (xl, first)] == [4, 0]
  assert [m['reads_at_most_tokens'] for m in (xl, first)] == [9, 9]
  assert [m['segment_len'] for m in (xl, first)] == [5, None]
  results = {(r['name'], r['share']): r for r in record['results']}
  assert len(results) == 3 * 3 and record['resamples'] == 9
  for found in results.values():
    low, high = found['interval_tokens']
    assert {low, high} <= {3, 6, 9} and low <= high
    assert not found['at_reach']
    k = (3, 6, 9).index(found['recl_tokens'])
    assert all(g >= 0.01 for g in found['gains'][:k])
    assert found['at_end'] or found['gains'][k] < 0.01
  subjects.assert_picture(folder / 'analysis/recl.png')
  lines = capfd.readouterr().out.splitlines()
  assert lines[2].split() == ['r', '=', '0.1', 'r', '=', '0.5', 'r', '=', '1']
  assert [line.split()[0] for line in lines[3:6]] == ['xl', 'plain', 'plain']


@pytest.mark.slow
def test_models_that_are_read_as_far_as_they_were_trained(
  folder, absolute, naive, corpus, capfd
):
  """With segments of 6; without memory it is not measured at 9, nor counted.

  One with memory is read in these, whatever eval.segment_len is.
  """
  c = config(others=(str(absolute), str(naive)), resamples=0, shares=(1.0,))
  c.eval.segment_len = 9
  c.eval.model.mem_len = 9  # not for one that was trained without
  record = subjects.measure(recl, c, folder, 'recl')
  xl, absolute_, naive_ = record['group']
  assert [m['reads_at_most_tokens'] for m in record['group']] == [9, 6, 9]
  assert [m['segment_len'] for m in record['group']] == [9, None, 6]
  assert None not in [*xl['mean_nats'], *naive_['mean_nats']]
  assert None not in absolute_['mean_nats'][:2]
  assert absolute_['mean_nats'][2] is None
  # What a first segment shows is the same, and 6 tokens are one.
  for k in 0, 1:
    first, second = (m['mean_nats'][k] for m in (absolute_, naive_))
    assert first == pytest.approx(second)
  results = record['results']
  assert [r['gains'][1] is None for r in results] == [False, True, False]
  assert {r['interval_tokens'] for r in results} == {None}
  found = results[1]
  assert found['at_reach'] == (found['recl_tokens'] == 6)
  lines = capfd.readouterr().out.splitlines()
  assert lines[-2:] == [
    'absolute reads at most 6 tokens',
    'naive reads segments of 6, as in training',
  ]
  subjects.assert_picture(folder / 'analysis/recl.png')


@pytest.mark.thorough
def test_a_model_that_cannot_be_read_at_all(folder, absolute, corpus, capfd):
  """Among others it is left out; alone, it is refused."""
  more = dict(step=7, longest=21, shares=(1.0,))
  c = config(others=(str(absolute),), **more)
  record = subjects.measure(recl, c, folder, 'recl')
  alone = subjects.measure(recl, config(**more), folder, 'recl')
  assert record['group'][1]['mean_nats'] == [None] * 3
  found, none = record['results']
  assert [found] == alone['results']
  assert none['recl_tokens'] is none['interval_tokens'] is None
  assert not none['at_end'] and not none['at_reach']
  assert capfd.readouterr().out.splitlines()[4].split() == ['absolute', 'n/a']
  c = subjects.config(name='vaswani', mem_len=0)
  c.recl.update(more)
  message = refused(absolute, c)
  assert message.startswith('recl.step is 7; allowed: at most 6, the most')


def table(contexts, group, results, positions=2000, resamples=0):
  """The lines of a table: group is {name: mean nats}."""
  return recl.table({
    'run': 'xl', 'checkpoint_step': 7, 'corpus': 'c', 'split': 's',
    'tokens': 5000, 'split_tokens': 5000, 'positions': positions,
    'resamples': resamples, 'contexts_tokens': contexts,
    'eval': {'segment_len': 512}, 'results': results,
    'group': [
      {'name': name, 'reads_at_most_tokens': contexts[-1], 'segment_len': None,
       'mean_nats': nats}
      for name, nats in group.items()
    ],
  })  # fmt: skip


def test_what_the_table_shows():
  """Lengths that the reach or the contexts end, and intervals."""
  names = {
    'xl': (900, True, False, [800, 900]),
    'vaswani': (600, False, True, [600, 600]),
    'lstm': (1200, False, False, None),
    'short': (None, False, False, None),
  }
  keys = 'recl_tokens', 'at_end', 'at_reach', 'interval_tokens'
  group = {x: [2.5, 2.4, 2.3, 2.25 + 0.5 * (x == 'lstm')] for x in names}
  results = [
    {'name': x, 'share': 0.5, **dict(zip(keys, found))}
    for x, found in names.items()
  ]
  lines = table([300, 600, 900, 1200], group, results, 40, 1000)
  _, conditions, header, *rows, few, rising = lines
  assert conditions == (
    '40 positions, contexts to 1,200 tokens; in brackets, 95 % of 1,000 '
    'resamples of the positions'
  )
  assert few == (
    'warning: 40 positions are too few for a result to publish, which needs '
    '2,000 (recl.positions)'
  )
  assert rising.startswith(
    'lstm, r = 0.5: the mean nll is 2.400 after 600 and 2.750 after 1,200 '
  )
  assert header.split() == ['r', '=', '0.5']
  assert [row.split(maxsplit=1)[1] for row in rows] == [
    '>= 900 [800, 900]', '600 (its reach) [600, 600]', '1,200', 'n/a',
  ]  # fmt: skip


def notes(nats, lengths, positions=2000):
  """The lines under the table of one model, with a length for each share."""
  contexts = [*range(100, 100 * len(nats) + 1, 100)]
  results = [
    {'name': 'xl', 'share': share, 'recl_tokens': c, 'at_reach': False,
     'at_end': c == contexts[-1], 'interval_tokens': None}
    for share, c in lengths.items()
  ]  # fmt: skip
  return table(contexts, {'xl': nats}, results, positions)[4:]


@pytest.mark.parametrize(
  'nats, lengths, expected',
  [
    # Each step falls by 0.2 %, which is less than half of what r = 1 counts.
    (
      (2.501, 2.498, 2.496, 2.494, 2.492, 2.490),
      {0.1: 600, 1.0: 600},
      {1.0: '2.496 after 300 and 2.490 after 600'},
    ),
    # The last steps bring nothing, whatever the first one did.
    (
      (3.0, 2.5, 2.5, 2.5, 2.4999, 2.4998),
      {0.1: 600, 0.5: 600, 1.0: 200},
      dict.fromkeys((0.1, 0.5), '2.500 after 300 and 2.500 after 600'),
    ),
    # Worse again at the length, but not at the end.
    (
      (2.5, 2.4, 2.44, 2.43, None, None),
      {1.0: 400},
      {1.0: '2.400 after 200 and 2.430 after 400'},
    ),
    (
      (2.5, 2.498, None),
      {1.0: 200},
      {1.0: '2.500 after 100 and 2.498 after 200'},
    ),
    # Supported: 1.1 % a step, and a last step without any among five.
    ((2.5, 2.489, 2.478, 2.467), {0.1: 400, 1.0: 400}, {}),
    ((2.5, 2.489, 2.478, 2.467, 2.456, 2.456), {1.0: 600}, {}),
    # A length of the first context, and none, count no step.
    ((2.5, 2.5, 2.5), {0.5: 100, 1.0: None}, {}),
    ((math.nan, math.nan, math.nan), {1.0: 300}, {}),
  ],
)
def test_lengths_that_the_mean_nll_does_not_support(nats, lengths, expected):
  """Half of the steps to a length bring less than one of them counts."""
  assert notes(nats, lengths) == [
    f'xl, r = {r:g}: the mean nll is {numbers} tokens; losses elsewhere '
    'cancel the gains'
    for r, numbers in expected.items()
  ]


def test_few_positions():
  assert notes((2.5, 2.4), {1.0: 200}) == []
  (few,) = notes((2.5, 2.4), {1.0: 200}, positions=1999)
  assert few.startswith('warning: 1,999 positions are too few for a result')


@pytest.mark.slow
def test_all_are_read_in_the_same_way(folder, corpus):
  """The lengths of the command hold for the other runs, too."""
  c = config(others=(str(folder),))
  c.eval.segment_len = 2
  c.eval.model.mem_len = 1
  short = subjects.measure(recl, c, folder, 'recl')
  one, other = (m['mean_nats'] for m in short['group'])
  assert one == pytest.approx(other)
  c.eval.model.mem_len = 9
  long = subjects.measure(recl, c, folder, 'recl')
  one, other = (m['mean_nats'] for m in long['group'])
  assert one == pytest.approx(other)
  assert one != pytest.approx(short['group'][0]['mean_nats'])


def refused(folder, c):
  return refusing.refused(recl.run, runs.job(c, folder))


def test_what_cannot_be_compared(folder, corpus, tmp_path):
  other = dataclasses.replace(runs.VOCABULARY, symbols=(32, 97, 99))
  subjects.write(tmp_path / 'else', vocabulary=other)
  message = refused(folder, config(others=(f'{tmp_path}/else',)))
  assert 'else has another vocabulary (3 symbols) than' in message
  message = refused(folder, config(others=(f'{tmp_path}/none',)))
  assert 'none holds no run' in message and '--workdir' not in message
  c = config()
  c.recl.longest = 81
  assert refused(folder, c).startswith('recl.longest is 81; allowed: fewer')


def test_what_is_drawn():
  nats = {'xl': [3.0, 2.5, 2.0], 'short': [2.75, 2.25, None]}
  gains = {'xl': [0.05, 0.2], 'short': [0.02, None]}
  record = {
    'corpus': 'c', 'split': 's', 'contexts_tokens': [1000, 2000, 3000],
    'group': [{'name': k, 'mean_nats': x} for k, x in nats.items()],
    'results': [
      {'name': k, 'share': share, 'gains': x}
      for share in (0.1, 1.0) for k, x in gains.items()
    ],
  }  # fmt: skip
  recl.plot(figure := Figure(), record)
  mean, *panels = figure.axes
  places = [x.get_subplotspec() for x in figure.axes]
  assert [x.colspan.start for x in places] == [0, 1, 1]
  assert [x.rowspan.start for x in places] == [0, 0, 1]
  data = lambda axes: [[*x.get_ydata()] for x in axes.lines]
  assert data(mean) == [nats['xl'], nats['short'][:2]]
  assert [*mean.lines[1].get_xdata()] == [1000, 2000]
  for panel, share in zip(panels, ('0.1', '1'), strict=True):
    assert data(panel) == [[0.01] * 2, gains['xl'], gains['short'][:1]]
    assert panel.get_title() == f'gain g(c, c + 1,000), r = {share}'
    assert panel.get_ylim() == pytest.approx((0, 1.3 * 0.2 + 0.01))
    ticks = [x.get_text() for x in panel.get_yticklabels()]
    assert ticks == [f'{x} %' for x in (0, 0.3, 1, 3, 10, 30, 100)]
  assert [x.get_xlabel() for x in panels] == ['', 'context c, tokens']
  for result in record['results']:
    result['gains'] = [None]
  recl.plot(figure := Figure(), record)
  assert figure.axes[1].get_ylim() == (0, 0.01)
