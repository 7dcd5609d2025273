"""Counting and encoding in blocks, beside doing it to the whole text."""

import collections
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_jax.data.corpora import counting
from txl_jax.data.vocabularies.words import Words
from txl_jax.program.errors import UserError

texts = st.text('ab \né', max_size=60).map(str.encode)
sizes = st.integers(1, 12)


def cut(text, size):
  return [text[i : i + size] for i in range(0, len(text), size)]


@given(texts, sizes, sizes)
def test_blocks_are_whole_lines_and_together_the_text(text, chunk, size):
  blocks = list(counting.blocks(cut(text, chunk), size))
  assert b''.join(blocks) == text
  assert all(blocks)
  for block in blocks[:-1]:
    assert block.endswith((b'\n', b' '))
    if b'\n' in block:
      assert block.endswith(b'\n')  # a cut at a space is within one line


def test_blocks_have_about_the_size_asked_for():
  lines = b'0123456\n' * 1000
  blocks = list(counting.blocks(cut(lines, 10), 100))
  assert all(len(block) <= 110 for block in blocks)


@pytest.mark.parametrize('processes, size', [(1, 9), (1, 10**6), (2, 500)])
def test_counts_and_token_ids(monkeypatch, processes, size):
  real = counting.blocks
  monkeypatch.setattr(counting, 'blocks', lambda chunks: real(chunks, size))
  rng = np.random.default_rng(0)
  lines = [
    ' '.join(f'w{i}' for i in rng.zipf(1.3, 8) if i < 99) for _ in range(150)
  ]
  text = '\n'.join(lines).encode() + b'\n'
  counts = counting.count(cut(text, 7), '<eos>', False, processes)
  words = text.decode().replace('\n', ' <eos> ').split()
  assert list(counts.items()) == list(collections.Counter(words).items())
  v = Words.from_counts(counts, eos='<eos>')
  blocks = counting.blocks(cut(text, 100))
  ids = np.concatenate([*counting.in_order(v.look_up, blocks, processes)])
  assert ids.dtype == np.int32
  assert [v.symbols[i] for i in ids] == words


def test_progress_passes_chunks_on(capsys):
  assert list(counting.progress([b'a', b'bc'], 'reading')) == [b'a', b'bc']
  assert capsys.readouterr().err == ''  # no terminal, no bar


@pytest.mark.parametrize('stop', [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_is_killed(stop):
  code = """
import itertools
from tests.corpora import counting_test
from txl_jax.data.corpora import counting
for pid in counting.in_order(counting_test.process, itertools.repeat(b''), 2):
  print(pid, flush=True)
"""
  parent = subprocess.Popen(
    [sys.executable, '-c', code],
    cwd=pathlib.Path(counting.__file__).parents[3],
    stdout=subprocess.PIPE,
    text=True,
  )
  assert parent.stdout is not None
  workers = {int(parent.stdout.readline()) for _ in range(9)}
  parent.send_signal(stop)
  try:
    parent.communicate(timeout=20)  # until no process has its output open
  except subprocess.TimeoutExpired:
    for worker in workers:
      os.kill(worker, signal.SIGKILL)
    raise


def test_a_worker_that_dies_is_one_line(monkeypatch):
  real = counting.blocks
  monkeypatch.setattr(counting, 'blocks', lambda chunks: real(chunks, 4))
  with pytest.raises(UserError, match=r'has died.*--processes=1'):
    list(counting.in_order(_die, [b'1', b'2'], 2))


@pytest.mark.parametrize('processes', [1, 2, 3, 5])
def test_results_are_in_the_order_of_the_tasks(processes):
  tasks = [b'%d' % i for i in range(20)]
  assert list(counting.in_order(_slow_if_even, tasks, processes)) == tasks


def test_workers_end_when_nobody_wants_more():
  results = counting.in_order(process, itertools.repeat(b''), 2)
  pid = next(results)
  results.close()
  with pytest.raises(ProcessLookupError):
    os.kill(pid, 0)


def process(_):
  return os.getpid()


def _slow_if_even(task):
  time.sleep(0.05 * (int(task) % 2 == 0))
  return task


def _die(_):
  os._exit(1)
