import json
import resource
import sys
import time
import zlib

import pytest
from tensorboardX.proto import event_pb2

from tests.runs.checkpoint.saves import contents, names
from txl_jax.program import files
from txl_jax.program.errors import UserError
from txl_jax.runs import metrics_log


def fill(folder, tensorboard=True):
  """Train lines at steps 5, 10, .. 30, evaluations at 10, 20, 30."""
  record = metrics_log.Log(folder, metrics_log.Mark(), tensorboard)
  for step in range(5, 31, 5):
    record.write({'step': step, 'split': 'train', 'bpc': step / 10})
    if step % 10 == 0:
      record.write({'step': step, 'split': 'validation', 'bpc': step / 20})
  mark = record.sync()
  record.close()
  return mark


def mark_of(folder, lines):
  """The mark of the first lines of a record."""
  whole = files.read(folder / 'metrics.jsonl')
  data = b''.join(whole.splitlines(keepends=True)[:lines])
  return metrics_log.Mark(lines, len(data), zlib.crc32(data))


def keys(folder):
  return [
    (r['step'], r['split']) for r in metrics_log.read(folder / 'metrics.jsonl')
  ]


def events(folder):
  """(step, tag, value) of the TensorBoard events, in order.

  An event is a record: 8 bytes of length, 4 of checksum, data, checksum.
  """
  found = []
  for path in sorted((folder / 'tensorboard').iterdir()):
    data, at = path.read_bytes(), 0
    while at < len(data):
      size = int.from_bytes(data[at : at + 8], 'little')
      event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
      found += [
        (event.step, v.tag, v.simple_value) for v in event.summary.value
      ]
      at += size + 16
  return found


def test_lines_are_stamped_and_read_back(tmp_path):
  fill(tmp_path)
  path = tmp_path / 'metrics.jsonl'
  records = metrics_log.read(path)
  assert len(records) == 9
  first = records[0]
  assert first.pop('time') > 1.5e9
  assert first == {'step': 5, 'split': 'train', 'bpc': 0.5}
  sample = {'step': 5, 'split': 'sample', 'text': 'a', 'time': 1.0}
  path.write_text(f'{json.dumps(sample)}\n')
  assert metrics_log.read(path) == [sample]
  assert metrics_log.read(tmp_path / 'nothing') == []


def test_cut_back_to_a_checkpoint(tmp_path):
  """Saved at 20 before its evaluation was known, which comes again."""
  fill(tmp_path)
  record = metrics_log.Log(tmp_path, mark_of(tmp_path, 5), True)
  kept = [(5, 'train'), (10, 'train'), (10, 'validation')]
  kept += [(15, 'train'), (20, 'train')]
  assert keys(tmp_path) == kept
  record.write({'step': 20, 'split': 'validation', 'bpc': 9.0})
  record.write({'step': 25, 'split': 'train', 'bpc': 8.0})
  record.write({'step': 25, 'split': 'sample', 'text': 'a'})  # is no figure
  record.close()
  kept += [(20, 'validation'), (25, 'train'), (25, 'sample')]
  assert keys(tmp_path) == kept
  figures = [
    (r['step'], f'{r["split"]}/bpc', pytest.approx(r['bpc']))
    for r in metrics_log.read(tmp_path / 'metrics.jsonl')[:-1]
  ]
  assert events(tmp_path) == figures


def test_the_clock_may_jump(tmp_path, monkeypatch):
  """What is kept is decided by steps alone."""
  clock = iter(range(10**9, 0, -(10**8)))
  monkeypatch.setattr(time, 'time', lambda: next(clock) + 0.98765)
  record = metrics_log.Log(tmp_path, metrics_log.Mark(), False)
  for step in range(1, 5):
    record.write({'step': step, 'split': 'train'})
  record.close()
  monkeypatch.setattr(time, 'time', lambda: 0.0)
  metrics_log.Log(tmp_path, mark_of(tmp_path, 3), False).close()
  assert keys(tmp_path) == [(step, 'train') for step in (1, 2, 3)]
  times = [r['time'] for r in metrics_log.read(tmp_path / 'metrics.jsonl')]
  assert times == [10**9 + 0.988, 9 * 10**8 + 0.988, 8 * 10**8 + 0.988]


@pytest.mark.parametrize('tensorboard', [False, True])
def test_a_full_disk_is_told(tmp_path, monkeypatch, tensorboard):
  # TensorBoard's events are the larger file, and written with each line.
  monkeypatch.setattr(metrics_log, '_FLUSH', -1.0)
  record = metrics_log.Log(tmp_path, metrics_log.Mark(), tensorboard)
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
  try:
    with pytest.raises(UserError, match='log cannot be written') as e:
      for step in range(1000):
        record.write({'step': step, 'split': 'train', 'a': 1.0, 'b': 2.0})
    # Which of the two files was full.
    size = (tmp_path / 'metrics.jsonl').stat().st_size
    assert (size < 5000) == tensorboard
    record.close()
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    record.close()  # now what is left of its buffer can be written
  assert str(tmp_path) in str(e.value)
  assert 'File too large' in str(e.value) and '\n' not in str(e.value)
  # With space again, it continues behind the lines that were written.
  metrics_log.Log(tmp_path, mark_of(tmp_path, 21), tensorboard).close()
  assert keys(tmp_path) == [(s, 'train') for s in range(21)]


@pytest.mark.parametrize('asked', [False, True])
def test_no_tensorboard(tmp_path, monkeypatch, capsys, asked):
  """Not asked for, or without the package."""
  if asked:
    monkeypatch.setitem(sys.modules, 'tensorboardX', None)
  fill(tmp_path, tensorboard=asked)
  told = capsys.readouterr().err
  assert told.count('\n') == asked and ('tensorboardX' in told) == asked
  assert not (tmp_path / 'tensorboard').exists()
  assert len(keys(tmp_path)) == 9


@pytest.mark.parametrize(
  'torn',
  [
    b'',
    b'{"step": 31, "spl',
    b'{"step": 31, "split": "train", "time": 1.0}',
    b'{"step": 31, "split": "train", "time": 1.0}\n',
    b'{"step": 31, "split": "validation", "time": 1.0}\n{"st',
    b'\x00\x00\xff',
  ],
)
def test_what_came_after_the_checkpoint_goes(tmp_path, capsys, torn):
  mark = fill(tmp_path)
  path = tmp_path / 'metrics.jsonl'
  whole = path.read_bytes()
  path.write_bytes(whole + torn)
  log = metrics_log.Log(tmp_path, mark, False)
  assert log.sync() == mark
  log.close()
  assert path.read_bytes() == whole
  assert capsys.readouterr().err == ''
  assert [p.name for p in tmp_path.iterdir()] == ['metrics.jsonl']


def test_names_to_keep_are_free_for_both(tmp_path):
  mark = fill(tmp_path)
  (tmp_path / 'tensorboard.kept-1').mkdir()
  (tmp_path / 'metrics.jsonl.kept-2').touch()
  (tmp_path / 'metrics.jsonl').write_text('')
  metrics_log.Log(tmp_path, mark, True).close()
  assert len(list((tmp_path / 'tensorboard.kept-3').iterdir())) == 1
  assert (tmp_path / 'metrics.jsonl.kept-3').exists()


def test_the_record_stays_where_a_new_one_cannot_be_written(
  tmp_path, monkeypatch
):
  fill(tmp_path)
  before = (tmp_path / 'metrics.jsonl').read_bytes()

  def full(_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(files, 'replacing', full)
  with pytest.raises(UserError, match='log cannot be written'):
    metrics_log.Log(tmp_path, metrics_log.Mark(1, 2, 3), True)
  assert (tmp_path / 'metrics.jsonl').read_bytes() == before


def test_files_beside_the_events_stay(tmp_path):
  mark = fill(tmp_path)
  (tmp_path / 'tensorboard/my_notes').write_text('')
  for events in False, True:
    metrics_log.Log(tmp_path, mark, events).close()
    assert (tmp_path / 'tensorboard/my_notes').exists()


def test_a_mark_is_of_what_is_written(tmp_path):
  mark = fill(tmp_path)
  data = (tmp_path / 'metrics.jsonl').read_bytes()
  assert (mark.lines, mark.size) == (9, len(data))
  assert mark.crc32 == zlib.crc32(data)
  assert mark.beginning(data + b'more') == data
  assert mark.beginning(data[:-1]) is None
  assert mark.beginning(data.replace(b'5', b'6')) is None


ODD = (
  b'{"step": 5, "split": "tr\xffin", "time": 1.0}x',
  b'\xff\xfe',
  b'[' * 100_000,
  b'[1]',
  b'{"step": "5", "split": "train", "time": 1.0}',
  b'{"step": 5.0, "split": "train", "time": 1.0}',
  b'{"step": true, "split": "train", "time": 1.0}',
  b'{"step": 5, "split": 5, "time": 1.0}',
  b'{"step": 5, "split": "train", "time": null}',
  b'{"step": 5, "split": "train"}',
  b'{"step": 5, "split": "train", "time": 1.0, "bpc": "1"}',
  b'{"step": 5, "split": "sample", "time": 1.0, "text": null}',
  b'{"step": 5, "split": "sample", "time": 1.0, "text": 1}',
  b'{"step": 5, "split": "train", "time": 1.0, "bpc": 1' + 9000 * b'0' + b'}',
)


@pytest.mark.parametrize('line', ODD)
def test_a_line_that_cannot_be_read(tmp_path, line):
  fill(tmp_path)
  path = tmp_path / 'metrics.jsonl'
  lines = path.read_bytes().splitlines(keepends=True)
  expected = keys(tmp_path)[:4] + keys(tmp_path)[5:]
  path.write_bytes(b''.join([*lines[:4], line + b'\n', *lines[5:]]))
  assert keys(tmp_path) == expected


@pytest.mark.parametrize('damage', [None, b'', b'\n', b'{"step": 5, "spl'])
def test_a_record_that_is_gone(tmp_path, capsys, damage):
  mark = fill(tmp_path)
  path = tmp_path / 'metrics.jsonl'
  path.unlink() if damage is None else path.write_bytes(damage)
  metrics_log.Log(tmp_path, mark, True).close()
  assert path.read_bytes() == b''
  err = capsys.readouterr().err
  assert err.count('\n') == 1 and 'starting a new one' in err
  # The events still have its figures.
  folder = tmp_path / 'kept'
  (folder / 'tensorboard').mkdir(parents=True)
  for events_file in (tmp_path / 'tensorboard.kept-1').iterdir():
    events_file.rename(folder / 'tensorboard' / events_file.name)
  assert len(events(folder)) == 9


def test_a_changed_figure(tmp_path, capsys):
  mark = fill(tmp_path)
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(path.read_bytes().replace(b'"bpc": 0.5', b'"bpc": 0.6', 1))
  before = path.read_bytes()
  log = metrics_log.Log(tmp_path, mark, True)
  log.write({'step': 35, 'split': 'train', 'bpc': 1.0})
  log.close()
  err = capsys.readouterr().err
  assert 'does not match the checkpoint' in err
  assert err.count('\n') == 1 and 'kept as metrics.jsonl.kept-1' in err
  assert (tmp_path / 'metrics.jsonl.kept-1').read_bytes() == before
  assert keys(tmp_path) == [(35, 'train')]
  assert events(tmp_path) == [(35, 'train/bpc', 1.0)]


@pytest.mark.parametrize('name', ['metrics.jsonl', 'tensorboard'])
def test_what_is_in_the_way_is_told_before_anything_is_cut(tmp_path, name):
  fill(tmp_path, tensorboard=False)
  (tmp_path / 'metrics.jsonl').rename(tmp_path / 'before')
  if name == 'tensorboard':
    (tmp_path / 'before').rename(tmp_path / 'metrics.jsonl')
    (tmp_path / name).write_text('')
  else:
    (tmp_path / name).mkdir()
  before = names(tmp_path), contents(tmp_path)
  with pytest.raises(UserError, match=f'{name}|File exists'):
    metrics_log.Log(tmp_path, metrics_log.Mark(), True)
  assert (names(tmp_path), contents(tmp_path)) == before


def test_a_record_in_a_bucket(in_bucket):
  """The same as in a folder: cut back, continued, its events made again."""
  mark = fill(in_bucket)
  before = in_bucket / 'metrics.jsonl'
  assert mark.size == len(files.read(before))
  assert len(list((in_bucket / 'tensorboard').iterdir())) == 1
  record = metrics_log.Log(in_bucket, mark_of(in_bucket, 6), True)
  record.write({'step': 25, 'split': 'train', 'bpc': 1.0})
  assert len(metrics_log.read(before)) == 6  # it is put there by and by
  record.sync()
  assert [r['step'] for r in metrics_log.read(before)][-2:] == [20, 25]
  record.write({'step': 30, 'split': 'train', 'bpc': 1.0})
  record.close()
  assert metrics_log.read(before)[-1]['step'] == 30
  assert len(list((in_bucket / 'tensorboard').iterdir())) == 1


def test_a_bucket_gets_the_lines_of_a_minute(in_bucket, tmp_path, monkeypatch):
  """And a folder the events of ten seconds."""
  clock = lambda now: monkeypatch.setattr(time, 'monotonic', lambda: now)
  clock(1000.0)
  far = metrics_log.Log(in_bucket, metrics_log.Mark(), False)
  near = metrics_log.Log(tmp_path, metrics_log.Mark(), True)
  for now, of_folder, of_bucket in (
    (1010.0, 0, 0), (1010.5, 2, 0), (1020.5, 2, 0), (1060.0, 4, 0),
    (1060.5, 4, 5), (1120.5, 6, 5), (1121.0, 6, 7),
  ):  # fmt: skip
    clock(now)
    for log in far, near:
      log.write({'step': 1, 'split': 'train', 'bpc': 1.0})
    found = len(events(tmp_path)), len(keys(in_bucket))
    assert found == (of_folder, of_bucket)
  near.close()
  far.close()


def test_a_record_that_a_bucket_refuses(bucket, in_bucket):
  record = metrics_log.Log(in_bucket, metrics_log.Mark(), True)
  record.write({'step': 5, 'split': 'train', 'bpc': 1.0})
  bucket.closed = True
  with pytest.raises(UserError, match=r'the log cannot be written: .*403'):
    record.sync()
  record.close()
