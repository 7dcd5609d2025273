"""Which paths are in a bucket, and what they need."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from tests import programs
from txl_jax import buckets
from txl_jax.errors import UserError


def test_a_local_path_stays_one():
  assert buckets.place('~/a', 'x') == pathlib.Path('~/a')
  assert type(buckets.place(pathlib.Path('a'))) is type(pathlib.Path('a'))


def test_a_path_in_a_bucket(memory):
  path = buckets.place('gs://my-bucket.a_b/runs/x')
  assert str(path) == 'gs://my-bucket.a_b/runs/x'
  assert buckets.place(path) is path


@pytest.mark.parametrize(
  'text', ['s3://bucket/a', 'gs://', 'gs:///a', 'gs://bucket/a\nb']
)
def test_what_is_no_name_of_a_bucket(text, memory):
  with pytest.raises(
    UserError, match=r'(?s)--workdir=.*allowed: a folder, or gs:'
  ):
    buckets.place(text, '--workdir')


@pytest.mark.parametrize(
  'bucket', ['Runs', 'ab', '-runs', 'runs.', 'b' * 64, 'b.' * 111 + 'b', 'a b']
)
def test_what_no_bucket_is_called(bucket, memory):
  with pytest.raises(UserError) as e:
    buckets.place(f'gs://{bucket}/a', '--workdir')
  begin = f'--workdir=gs://{bucket}/a: the bucket is {bucket!r}; allowed: 3 to '
  assert f'{e.value}'.startswith(begin)


@pytest.mark.parametrize('bucket', ['abc', 'b' * 63, 'b.' * 110 + 'bb'])
def test_what_a_bucket_may_be_called(bucket, memory):
  assert str(buckets.place(f'gs://{bucket}/a')) == f'gs://{bucket}/a'


@pytest.mark.parametrize(
  'flags',
  [
    ['--workdir=gs://bucket/run'],
    ['--config.data.dir=gs://bucket/data'],
    ['--config=gs://bucket/run/config.py'],
    ['--config.train.compilation_cache=gs://bucket/cache'],
  ],
)
@pytest.mark.parametrize('missing', ['gcsfs', 'google.cloud.storage'])
def test_without_the_extra(flags, missing, tmp_path, monkeypatch):
  find = importlib.util.find_spec

  def find_none(name, *rest):
    return None if name == missing else find(name, *rest)

  monkeypatch.setattr(importlib.util, 'find_spec', find_none)
  programs.write_corpus(tmp_path)
  command = programs.command(tmp_path, 'train.batch_size=8')
  done = programs.here([*command, *flags])
  name = flags[0].partition('=')[2]
  programs.assert_refused(done, name, "pip install 'txl_jax[gcs]'")


@pytest.mark.parametrize(
  'flags',
  [
    ['--workdir=s3://bucket/run'],
    ['--config.data.dir=s3://bucket/data'],
    ['--config.data.path=gs://bucket/text'],
    ['--export_file=gs://bucket/model.npz', '--mode=export'],
  ],
)
def test_what_must_be_elsewhere(flags, tmp_path):
  programs.write_corpus(tmp_path)
  done = programs.here([*programs.command(tmp_path), *flags])
  programs.assert_refused(done, flags[0].partition('=')[2], 'allowed: a ')


def test_local_runs_import_nothing_of_it():
  code = """
import sys
import txl_jax
light = {'jax', 'numpy', 'flax', 'etils', 'fsspec'} & set(sys.modules)
import tensorboardX  # which uses Google's package if there is one
before = set(sys.modules)
from txl_jax import main
from txl_jax.runs import checkpoint
checkpoint.Checkpoints('/tmp/none').newest()
heavy = {'gcsfs', 'google.cloud.storage', 'google.auth'} & set(sys.modules)
heavy -= before
print(light, heavy)
"""
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert done.stdout == 'set() set()\n'
