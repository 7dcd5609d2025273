"""Runs that were written by hand, and the report of them."""

import json
import math
import re
import statistics
import sys
from typing import Any

import matplotlib.figure
import pytest

from tests import programs
from txl_jax import report
from txl_jax.configs import wt2
from txl_jax.experiment import collect, sections
from txl_jax.paper import curves, logs, tables
from txl_jax.program import command_line


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
  """Drawn where they matter alone: that takes a second."""
  drawn = test_a_report, test_studies_of_the_gcnn_paper, test_without_matplotlib
  if request.function not in drawn:
    monkeypatch.setattr(curves.pictures, 'draw', lambda *_: False)


def write(folder, experiment, seed=0, figures=(3.0, 2.5), **analyses):
  """A run of 20 steps with an evaluation after each ten."""
  folder.mkdir(parents=True)
  c = sections.compose()
  c.experiment, c.seed = experiment, seed
  c.train.update(steps=20, batch_size=2, segment_len=8, log_every=5)
  (folder / 'config.json').write_text(json.dumps(c.to_dict()))
  records = [
    {'step': s, 'split': 'train', 'nats': 2.0, 'bpc': 3.0, 'time': 100.0 + s}
    for s in (5, 10, 15, 20)
  ]
  records += [
    {'step': s, 'split': 'validation', 'nats': x, 'bpc': x, 'time': 100.0 + s}
    for s, x in zip((10, 20), figures)
  ]
  lines = ''.join(json.dumps(r) + '\n' for r in records)
  (folder / 'metrics.jsonl').write_text(lines)
  for name, found in analyses.items():
    (folder / 'analysis').mkdir(exist_ok=True)
    found = {'trained_on': 'A card', **found}
    (folder / f'analysis/{name}.json').write_text(json.dumps(found))


def sweep(init, best, length):
  lengths = [
    {'attention_length_tokens': L, 'ppl': x}
    for L, x in ((128, init), (length, best))
  ]
  return {'unit': 'ppl', 'split': 'validation', 'init': lengths[0],
          'best': lengths[1], 'lengths': lengths}  # fmt: skip


def reached(name, lengths, **others):
  """Effective context lengths of a model, for r = 1, 0.5 and 0.1."""
  return [
    {'name': name, 'share': share, 'recl_tokens': length} | others
    for share, length in zip((1.0, 0.5, 0.1), lengths, strict=True)
  ]


def speed(ratio, device='A card'):
  lengths = [{'attention_length_tokens': 800, 'times_slower': ratio}]
  return {'lengths': lengths, 'hardware': {'device': device}}


@pytest.fixture
def folder(tmp_path):
  """Runs of several rows, one of them with three seeds."""
  for seed, x in enumerate((27.0, 28.0, 29.0)):
    found = sweep(x + 1, x, 400 + 100 * seed)
    name, experiment = f'xl-{seed}', 'wt103_128m:xl'
    write(tmp_path / name, experiment, seed, attention_length=found)
  tested = {'unit': 'ppl', 'ppl': 23.5}
  write(tmp_path / 'of/base', 'wt103_base', eval_test=tested)
  small = 'pystdlib_ablations:xl'
  write(tmp_path / 'small', small, attention_length=sweep(2.2, 2.1, 64))
  group = {
    'group': [
      {'name': 'a', 'experiment': 'qrnn', 'mean_nats': [3.0, 2.0]},
      {'name': 'b', 'experiment': 'wt103_128m:xl', 'mean_nats': [2.5, 1.5]},
    ],
    'contexts_tokens': [100, 200],
    'results': [*reached('a', (300, 200, 100)), *reached('b', (700, 500, 600))],
  }
  write(tmp_path / 'mine', '', recl=group, eval_speed=speed(412.3))
  return tmp_path


def read(folder) -> Any:
  """The runs in a folder, and errors of what is left out."""
  return list(collect.runs(folder))


def cells(text, table, row, small=''):
  """The cells of a row of a table of report.md, or of its twins in a file."""
  part = text.split(f'## Table {table}: ')[1].split('\n## ')[0]
  part = part.split(f', small: {small}\n')[1] if small else part
  part = part.split('\n### ')[0]
  (line,) = (x for x in part.splitlines() if x.startswith(f'| {row} |'))
  return [x.strip().replace('\\', '') for x in line.split('|')[1:-1]]


@pytest.mark.thorough
def test_a_report(folder, tmp_path, capsys):
  found = read(folder)
  output = tmp_path / 'out'
  output.mkdir()
  text = report.page(found, output)
  base = cells(text, 1, 'Transformer-XL standard, 151M')
  assert base[1:] == ['24.0', '23.50', '-0.50', '1']
  empty = cells(text, 1, 'QRNN, 151M (Merity et al. 2018)')
  assert empty[1:] == ['33.0', '', '', '']
  # Means and standard deviations of 28, 29, 30 and of 27, 28, 29.
  xl = cells(text, 6, 'Transformer-XL, 128M')
  assert xl[1:4] == ['27.02', '26.77', '500']
  assert xl[4:10] == [
    '29.00 ± 1.00', '28.00 ± 1.00', '500 ± 100', '2.500 ± 0.000', '+1.23',
    '3',
  ]  # fmt: skip
  assert cells(text, 8, 'QRNN')[4:7] == ['100', '200', '300']
  assert cells(text, 8, 'Transformer-XL, 128M')[4:7] == [
    '600', '500', '700'
  ]  # fmt: skip
  ratio = cells(text, 9, 'attention length 800')
  assert ratio[1:] == ['363', '412.30', '+49.30', '1 (A card)']
  assert '### Table 6, small: pystdlib_ablations' in text
  assert ', small: ptb_tiny' not in text
  base = (
    '| of/base | wt103_base |  | 0 |  | 20 | 320 | 2.5000 bpc | 23.50 ppl |'
  )
  assert f'{base} 0.01 | A card |' in text
  # Every picture is there.
  pictures = re.findall(r'\]\((.*\.png)\)', text)
  assert pictures[:2] == ['runs_learning.png', 'table_1_learning.png']
  assert all((output / x).stat().st_size > 5000 for x in pictures)


@pytest.mark.thorough
def test_the_program(folder, tmp_path):
  """Of folders of runs and of a run that is in one of them."""
  args = f'{folder}', f'{folder}/xl-1', f'--output={tmp_path}/made', '--all'
  command = [sys.executable, '-m', 'txl_jax.report', *args]
  out = programs.run(command)
  assert out.returncode == 0, out.stderr
  assert out.stdout.startswith('6 runs: ')
  assert '\n## Table 2: ' in (tmp_path / 'made/report.md').read_text()


CUT = '{"a": '
OF_ANOTHER = json.dumps(sections.compose().to_dict() | {'model': {'name': 'x'}})


@pytest.mark.parametrize(
  'name, text, runs',
  [
    ('config.json', CUT, 5),
    ('config.json', '{}', 5),
    ('config.json', OF_ANOTHER, 5),
    ('analysis/eval_test.json', CUT, 6),
  ],
)
def test_what_is_damaged_is_told_and_left_out(folder, name, text, runs):
  (folder / 'of/base' / name).write_text(text)
  found = read(folder)
  (error,) = (x for x in found if not isinstance(x, collect.Run))
  assert name in str(error) and '\n' not in str(error)
  assert len(found) == runs + 1


def test_runs_behind_links(folder, tmp_path):
  """Each once, also where links lead in a circle."""
  links = tmp_path / 'links'
  links.mkdir()
  (links / 'a').symlink_to(folder / 'of')
  (links / 'b').symlink_to(folder / 'of/base')
  (links / 'c').symlink_to(links)
  (links / 'd').symlink_to(links)
  (found,) = collect.runs(links)
  assert found.experiment == 'wt103_base'
  for name in 'xl-0', 'xl-1', 'of', 'small', 'mine':
    (folder / name / 'up').symlink_to(folder)
  assert len(read(folder)) == 6


@pytest.mark.parametrize('pause, counted', [(472.5, 472.5), (473, 0)])
def test_time_is_that_of_training(tmp_path, pause, counted):
  """52.5 seconds between two lines; ten times that may be no pause."""
  write(tmp_path / 'run', '')
  path = tmp_path / 'run/metrics.jsonl'
  records = list(map(json.loads, path.read_text().splitlines()))
  for r in records:
    r['time'] *= 10.5
    r['time'] += pause if r['step'] > 15 else 0
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))
  run = collect.read(tmp_path / 'run', 'run')
  # Of four lines, the first has the mean of the other three.
  assert math.isclose(run.seconds, (3 * 52.5 + counted) * 4 / 3)


@pytest.mark.parametrize(
  'epochs, step, epoch, finished',
  [
    (1, 0, 0, False), (0, 19, 5, False), (0, 20, 1, True), (2, 10, 1, False),
    (2, 10, 2, True), (1, 5, None, False), (None, 5, 1, False),
  ],
)  # fmt: skip
def test_a_run_that_has_ended(tmp_path, epochs, step, epoch, finished):
  record = {'split': 'validation', 'step': step, 'epochs': epoch}
  config = {'train.steps': 20, 'train.epochs': epochs}
  record, config = (
    {k: x for k, x in values.items() if x is not None}
    for values in (record, config)
  )
  run = collect.Run('a', config, [record][: step or 0], {}, folder=tmp_path)
  assert (run.finished, run.step, run.seconds) == (finished, step, 0.0)


def test_runs_of_one_experiment(folder):
  """Another seed is the same experiment, another key is not."""
  a, b, c = (collect.read(folder / f'xl-{i}', '') for i in range(3))
  assert a.identity == b.identity == c.identity
  path = folder / 'xl-2/config.json'
  config = json.loads(path.read_text())
  for section, key in ('optim', 'lr'), ('train', 'batch_size'):
    before = config[section][key]
    config[section][key] = before * 2
    path.write_text(json.dumps(config))
    assert collect.read(folder / 'xl-2', '').identity != a.identity
    config[section][key] = before
  config['data']['dir'], config['seed'] = 'elsewhere', 7
  path.write_text(json.dumps(dict(reversed([*config.items()]))))
  assert collect.read(folder / 'xl-2', '').identity == a.identity


def test_a_figure():
  values = [2.0, 2.25, 2.75]
  deviation = statistics.stdev(values)
  assert str(tables.Figure(values)) == f'2.333 ± {deviation:.3f}'
  shown = {9.9994: '9.999', 10.0: '10.00', 999.5: '999.50', 1000.0: '1000'}
  assert {x: str(tables.Figure([x])) for x in shown} == shown


def test_a_row_that_is_not_implemented(folder, tmp_path):
  runs = read(folder)
  assert '## Table 2: ' not in report.page(runs, tmp_path)
  text = report.page(runs, tmp_path, every=True)
  row = cells(text, 2, 'RHN, 46M (Zilly et al. 2016)')
  assert row[1:] == ['1.27', 'not implemented here', '', '']


def test_other_attention_lengths(tmp_path):
  """Of the sweep, where they were measured."""
  found = sweep(23.5, 23.0, 640)
  found['lengths'].append({'attention_length_tokens': 450, 'ppl': 23.25})
  write(tmp_path / 'base', 'wt103_base', attention_length=found)
  text = report.page(read(tmp_path), tmp_path)
  name = 'Transformer-XL, 151M'
  assert cells(text, 6, '')[4:6] == ['ours, ppl init', 'ours, ppl best']
  assert cells(text, 6, name)[4:7] == ['23.50', '23.00', '640']
  row = cells(text, 6, f'{name}, at 450')
  assert row[4:7] == ['23.50', '23.25', '450'] and row[8] == '+0.09'
  assert cells(text, 6, f'{name}, at 300')[4:7] == ['', '', '']


def test_twins(tmp_path):
  """Also those without a sweep, and those that are not in the paper."""
  file = 'pystdlib_ablations'
  for seed in (0, 1):
    found = sweep(2.25, 2.0 + seed / 4, 64)
    write(tmp_path / f'xl-{seed}', f'{file}:xl', seed, attention_length=found)
  write(tmp_path / 'shaw', f'{file}:shaw', figures=(3.0, 2.75))
  write(tmp_path / 'aux', f'{file}:al_rfou_aux', figures=(3.5, 3.25))
  write(tmp_path / 'long', 'long_context:vaswani_memory')
  write(tmp_path / 'words', 'ptb_tiny:xl')
  write(tmp_path / 'none', 'gcnn_studies:gtu', figures=())
  text = report.page(read(tmp_path), tmp_path)
  assert cells(text, 6, '', file)[4:6] == ['ours, bpc init', 'ours, bpc best']
  header = cells(text, 7, '', 'ptb_tiny')[1:]
  assert header == ['perplexity', 'ours, bpc', 'runs']
  assert cells(text, 6, 'Transformer-XL', file)[4:9] == [
    '2.250 ± 0.000', '2.125 ± 0.177', '64 ± 0', '2.500 ± 0.000',
    '2',
  ]  # fmt: skip
  row = cells(text, 6, 'Shaw et al. (the published code)', file)
  assert row[1:9] == ['27.94', '27.94', '256', '', '', '', '2.750', '1']
  row = cells(
    text, 6, 'no recurrence, Al-Rfou et al., full and auxiliary losses', file
  )
  assert row[1:9] == ['', '', '', '', '', '', '3.250', '1']
  assert "\n| Shaw et al., without biases (the paper's text) |" in text
  absolute = 'absolute positions (Vaswani et al.) with a memory'
  assert cells(text, 6, absolute, 'long_context')[7] == '2.500'
  assert '## Table 8: ' not in text  # without --mode=recl
  assert 'Small studies' not in text  # without a figure
  assert 'The order' not in text and '0.4M parameters, bytes of' in text


def test_segments_of_twins(tmp_path):
  """A label has those of its run, 8, not those of the paper's row."""
  file = 'pystdlib_ablations'
  write(tmp_path / 'xl', f'{file}:xl', attention_length=sweep(2.2, 2.1, 64))
  text = report.page(read(tmp_path), tmp_path)
  row = 'recurrence, segments of'
  assert cells(text, 10, f'{row} 8', file)[5] == '2.100'
  assert cells(text, 10, f'no {row} another length', file)[5] == ''


def test_speed_names_its_models(tmp_path):
  """Of equal sizes, but not measured of the same window."""
  for i, window in enumerate(('same', 'al_rfou', 'al_rfou')):
    more = {'experiment': 'enwik8_12l', 'options': {'window': window}}
    found = speed(9.0 + i) | more
    if window == 'same':
      more = {'attention_length_tokens': 1800, 'times_slower': 20.0}
      found['lengths'].append(more)
    write(tmp_path / f'{i}', '', eval_speed=found)
  text = report.page(read(tmp_path), tmp_path)
  row = cells(text, 9, 'attention length 1,800')
  assert row[2:] == ['20.00', '-753.00', '1 (A card, enwik8_12l)']
  row = cells(text, 9, 'attention length 800')
  assert row[2] == '10.50 ± 0.71'
  assert row[4] == ('2 (1 with other options, A card, enwik8_12l, al_rfou)')


@pytest.mark.thorough
def test_studies_of_the_gcnn_paper(folder, tmp_path):
  title = 'Small studies of the GCNN paper (Dauphin et al. 2017)'
  assert title not in report.page(read(folder), tmp_path)
  for seed, x in enumerate((2.25, 2.75)):
    write(tmp_path / f'g-{seed}', 'gcnn_studies:gtu', seed, (3.0, x))
  text = report.page(read(tmp_path), tmp_path).split(f'## {title}\n')[1]
  assert text.splitlines()[1].startswith('|  | ours, bpc | runs |')
  (row,) = (x for x in text.splitlines() if x.startswith('| gated tanh'))
  assert row.split(' | ')[1:3] == ['2.500 ± 0.354', '2 |']
  assert (tmp_path / 'studies_learning.png').exists()


def test_intervals_of_effective_lengths(tmp_path):
  """Of one run; of two, from the lowest end to the highest; and flags."""
  names = 'xl', 'shaw', 'vaswani', 'al_rfou'
  for seed in (0, 1):
    group = [
      {'name': name, 'experiment': f'pystdlib_ablations:{name}',
       'mean_nats': nats}
      for name, nats in zip(
        names, ([3.0, 2.0], [3.0, 2.5], [3.0, None], [None, None])
      )
    ]  # fmt: skip
    results = [
      *reached('xl', (96, 64, 64 + 32 * seed),
               interval_tokens=[64 - 32 * seed, 128 + 32 * seed]),
      *reached('shaw', (64, 64, 64), at_end=not seed),
      *reached('vaswani', (32, 32, 32), at_reach=True,
               interval_tokens=[32, 32]),
      *reached('al_rfou', (None, None, None), at_end=False, at_reach=False,
               interval_tokens=None),
    ]  # fmt: skip
    found = {'group': group, 'contexts_tokens': [32, 64], 'results': results}
    write(tmp_path / f'x-{seed}', 'pystdlib_ablations:xl', seed, recl=found)
    text = report.page(read(tmp_path), tmp_path)
    found = [
      cells(text, 8, name, 'pystdlib_ablations')[4]
      for name in (
        'Transformer-XL', 'Shaw et al. (the published code)',
        'no recurrence, Vaswani et al., full loss',
        'no recurrence, Al-Rfou et al., full loss',
      )
    ]  # fmt: skip
    assert found == [
      ['64 [64, 128]', '≥ 64', '32 [32, 32] (its reach)', 'n/a'],
      ['80 ± 23 [32, 160]', '≥ 64 ± 0', '32 ± 0 [32, 32] (its reach)', 'n/a'],
    ][seed]  # fmt: skip


def test_without_matplotlib(folder, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  assert '.png' not in report.page(read(folder), tmp_path)


def test_what_a_row_counts(folder, tmp_path):
  """Runs that were measured, on the split of the table; and unfinished ones."""
  write(tmp_path / 'xl-3', 'wt103_128m:xl', 3)
  path = folder / 'xl-0/analysis/attention_length.json'
  path.write_text(path.read_text().replace('validation', 'test'))
  path = folder / 'xl-1/metrics.jsonl'
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(x for x in lines if '"step": 20' not in x))
  text = report.page(read(folder), tmp_path)
  row = cells(text, 6, 'Transformer-XL, 128M')
  assert row[4] == '29.50 ± 0.71'
  assert row[9] == '4 (1 not finished, 2 in the sweep)'


def test_effective_lengths_of_several_groups(folder, tmp_path):
  """The largest group counts, by the shares that the paper has."""
  more = {
    'contexts_tokens': [50],
    'group': [{'name': 'a', 'experiment': 'qrnn', 'mean_nats': [3.0]}],
    'results': [{'name': 'a', 'share': x, 'recl_tokens': 9} for x in (0.1, 1)],
  }
  write(tmp_path / 'other', '', recl=more)
  more['results'] += [{'name': 'a', 'share': 0.5, 'recl_tokens': 9}]
  write(tmp_path / 'third', '', recl=more)
  text = report.page(read(folder), tmp_path)
  assert cells(text, 8, 'QRNN')[4:8] == ['100', '200', '300', '1']


def test_measured_in_two_ways(folder, tmp_path):
  """Only equal measurements are averaged, and the others are counted."""
  path = folder / 'xl-1/analysis/attention_length.json'
  cut = json.loads(path.read_text()) | {'options': {'tokens': 10}}
  path.write_text(json.dumps(cut))
  for i, (ratio, device) in enumerate([(9.0, 'B'), (11.0, 'B'), (7.0, 'C')]):
    keys = ('x', 1), ('y', 2)  # in another order they are the same
    found = speed(ratio, device) | {'config': dict(keys[:: 2 * i - 1])}
    write(tmp_path / f's-{i}', '', eval_speed=found)
  text = report.page(read(folder), tmp_path)
  row = cells(text, 6, 'Transformer-XL, 128M')
  assert row[4] == '29.00 ± 1.41'
  assert row[9] == '3 (1 with other options, 2 in the sweep)'
  row = cells(text, 9, 'attention length 800')
  assert row[2] == '10.00 ± 1.41'
  assert row[4] == '2 (2 with other options, B)'


def test_a_finished_run_stands_before_a_trial(folder, tmp_path):
  """Whatever their folders are called."""
  write(tmp_path / 'zz', 'wt103_base', eval_test={'unit': 'ppl', 'ppl': 900.0})
  path = tmp_path / 'zz/config.json'
  path.write_text(path.read_text().replace('"steps": 20', '"steps": 2000'))
  text = report.page(read(folder), tmp_path)
  row = cells(text, 1, 'Transformer-XL standard, 151M')
  assert row[2] == '23.50'


def test_a_figure_of_an_older_checkpoint_is_left_out(folder):
  path = folder / 'of/base/analysis/eval_test.json'
  found = json.loads(path.read_text())
  for step, kept in (20, True), (10, False):
    path.write_text(json.dumps(found | {'checkpoint_step': step}))
    every = read(folder)
    (run,) = (x for x in every if getattr(x, 'name', '') == 'of/base')
    assert ('eval_test' in run.analyses) == kept
    told = [f'{x}' for x in every if not isinstance(x, collect.Run)]
    assert len(told) == (not kept)
    assert kept or ('is from step 10' in told[0] and 'step 20' in told[0])
  # Weights that were converted have no evaluation.
  write(folder / 'new', '', figures=(), eval_test={'checkpoint_step': 0})
  (run,) = read(folder / 'new')
  assert 'eval_test' in run.analyses and run.best == {}


def test_speed_without_a_run(tmp_path):
  """And nothing to draw, which is no missing program."""
  folder = tmp_path / 'runs/speed/analysis'
  folder.mkdir(parents=True)
  found = speed(99.0) | {'lines': ['a table'], 'checkpoint_step': None}
  (folder / 'eval_speed.json').write_text(json.dumps(found))
  argv = ['report', f'{tmp_path}', f'--output={tmp_path}/a/made']
  out = programs.within(argv, lambda: report.main(command_line.parse(argv, 1)))
  assert (out.returncode, out.stderr) == (0, '')
  path = tmp_path / 'a/made/report.md'
  assert out.stdout == f'0 runs: {path}\n'
  text = path.read_text()
  assert cells(text, 9, 'attention length 800')[2] == '99.00'
  assert '\n### eval_speed\n\n    a table\n' in text
  assert '## Table 2: ' not in text  # without --all
  write(tmp_path / 'runs/one', 'mine')
  out = programs.within(argv, lambda: report.main(command_line.parse(argv, 1)))
  assert out.stdout == f'1 run: {path}\n'


def test_what_the_program_refuses(tmp_path):
  def told(folder):
    argv = ['report', f'{folder}', f'--output={tmp_path}/made']
    run = lambda: report.main(command_line.parse(argv, 1))
    return programs.within(argv, run).stderr

  found = {'eval_test': {}, 'attention_length': {'split': 'validation'}}
  write(tmp_path / 'runs/a', 'wt103_128m:xl', **found)
  (tmp_path / 'none').mkdir()
  assert 'none contains no run; allowed: folders' in told(tmp_path / 'none')
  assert "runs: KeyError: 'lengths'; allowed: " in told(tmp_path / 'runs')
  for name in found:
    (tmp_path / f'runs/a/analysis/{name}.json').write_text(CUT)
  left_out, other = told(tmp_path / 'runs').splitlines()
  assert left_out.startswith('warning: left out: ') and CUT not in other


@pytest.mark.thorough
def test_it_is_a_program(tmp_path):
  done = programs.run([sys.executable, '-m', 'txl_jax.report', f'{tmp_path}'])
  programs.assert_refused(done, f'{tmp_path} contains no run; allowed: ')


def test_a_config_is_named_as_it_was_typed(tmp_path):
  """Beside the keys that were changed; it has no row of the paper."""
  for name in 'wt2', 'mine', 'a':
    write(tmp_path / name, f'{name}++')
  config = wt2.get_config()
  config.experiment, config.seed = 'wt2++', 3
  config.optim.lr, config.train.steps = 0.001, 300
  (tmp_path / 'wt2/config.json').write_text(json.dumps(config.to_dict()))
  write(tmp_path / 'base', 'wt103_base+')
  text = report.page(read(tmp_path), tmp_path)
  assert '\n| wt2 | wt2 | lr 0.001, steps 300 | 3 |' in text
  assert '\n| mine | mine | some keys | 0 |' in text
  assert '\n| a | a | some keys | 0 |' in text
  assert '# The tables' not in text and '+' not in text


def test_everything_that_was_measured(tmp_path):
  """The lines that a mode printed, with its picture; and the last sample."""
  lines = {'lines': ['| a', '```'], 'checkpoint_step': 20}
  run = tmp_path / 'of/a b'
  shown = {
    'attention_maps': lines,
    'recl': {'group': [], 'results': []} | lines,
  }
  write(run, '', **shown, eval_test={})
  for name in shown:
    (run / f'analysis/{name}.png').write_bytes(b'picture')
  with (run / 'metrics.jsonl').open('a') as f:
    for text in 'old', 'lr is 2', 'older', '# <b>\x1b\n```':
      split = 'changed' if text == 'lr is 2' else 'sample'
      r = {'step': 20, 'split': split, 'text': text, 'time': 9.0}
      f.write(json.dumps(r) + '\n')
  write(tmp_path / 'b', '')
  text = report.page(read(tmp_path), tmp_path / 'out')
  assert (
    text.split('# Measurements\n\n')[1]
    == '## of/a b\n\n'
    + ''.join(
      f'### {name}, step 20\n\n    | a\n    ```\n\n'
      f'![{name}](measured/of/a%20b/{name}.png)\n\n'
      for name in shown
    )
    + '### changed, step 20\n\n    lr is 2\n\n'
    + '### sample, step 20\n\n    # <b>\ufffd\n    ```\n'
  )
  copy = tmp_path / 'out/measured/of/a b/recl.png'
  assert copy.read_bytes() == b'picture'


def test_the_step_of_the_newest_checkpoint(tmp_path, monkeypatch):
  """Not of the last line of the log."""
  write(tmp_path / 'a', '')
  saved = property(lambda self: (18, 5, 'A card'))
  monkeypatch.setattr(collect.Run, 'saved', saved)
  monkeypatch.setattr(collect.Run, 'seconds', 360_000)
  text = report.page(read(tmp_path), tmp_path)
  assert '| 5 | 18 of 20 | 288 |' in text
  assert '| 100.00 | A card |' in text


def test_penn_treebank_beside_the_logs(tmp_path, monkeypatch):
  """A table and a picture of four logs and ours, once an epoch has ended."""
  tested = {'unit': 'ppl', 'ppl': 57.0, 'at_temperature': {'ppl': 55.5}}
  write(tmp_path / 'a', 'ptb', eval_test=tested)
  assert 'log, seed' not in report.page(read(tmp_path), tmp_path)
  path = tmp_path / 'a/metrics.jsonl'
  records = [json.loads(x) for x in path.read_text().splitlines()]
  for r, epochs, ppl in zip(records[-3:], (1, 2, 3), (400.0, 230.0, 180.0)):
    r |= {'epochs': epochs, 'nats': math.log(ppl)}
  records[0] |= {'epochs': 0.5, 'nats': 1000.0}  # beyond a float's range
  path.write_text(''.join(json.dumps(r) + '\n' for r in records))
  for name in 'enwik8_24l', 'wt103_base':
    write(tmp_path / name, name)
    (tmp_path / name / 'metrics.jsonl').write_text(path.read_text())
  plots = []
  monkeypatch.setattr(logs.pictures, 'draw', lambda *x: not plots.append(x))
  text = report.page(read(tmp_path), tmp_path)
  compared = re.findall(r'^\| (?:log, seed|ours,) (.*?) \|', text, re.M)
  assert len(compared) == 5 and compared[-1] == 'a'
  # 180 ** (7375 / 7376)
  assert cells(text, 5, 'ours, a')[1:] == ['3', '179.87', '55.50']
  assert cells(text, 5, 'log, seed 1111')[1:] == ['175', '60.05', '55.60']
  assert cells(text, 5, 'log, seed 1111 again')[2:] == ['59.85', '55.27']
  assert cells(text, 5, 'Transformer-XL, 24M')[2] == '57.00'
  name, plot = next(x for x in plots if len(x) == 2)
  assert f']({name.name})' in text
  figure = matplotlib.figure.Figure()
  plot(figure)
  axes = figure.axes[0]
  ticks = [x.get_ticklocs().tolist() for x in (axes.xaxis, axes.yaxis)]
  assert ticks == [[1, 2, 5, 10, 20, 50, 100], [60, 80, 100, 150, 200, 300]]
  second = [line.get_xydata()[1] for line in axes.lines]
  assert [(x, round(y, 2)) for x, y in second] == [
    (2, 237.53), (2, 234.45), (2, 238.24), (2, 232.17), (2, 229.83)
  ]  # fmt: skip


def test_the_logs_of_penn_treebank():
  epochs, found = logs.read()
  at = {e: [x[i] for x in found.values()] for i, e in enumerate(epochs)}
  assert at[1] == [369.31, 370.37, 373.61, 361.06]
  assert at[60] == [69.07, 69.01, 67.97, 68.30]
  assert at[175] == [60.05, 59.88, 59.53, 59.85]
  assert [x[-1] for x in found.values()] == [55.60, 55.36, 55.26, 55.27]


def test_figures_of_a_split():
  figures = (5, 1.0), (6, 3.0), (7, 2.5), (8, math.nan)
  records = [{'step': s, 'split': 'validation', 'bpc': x} for s, x in figures]
  records[0]['split'] = 'train'
  config = {'train.batch_size': 2, 'train.segment_len': 8}
  run = collect.Run('a', config, records, {})
  assert (run.curve('train'), run.best) == ({80: 1.0}, records[2])
  assert run.curve('validation') == {96: 3.0, 112: 2.5}
