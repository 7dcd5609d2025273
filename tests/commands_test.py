"""Every command of the pages is run, or says what it needs.

A paragraph of a shell block that begins with "# Needs …" cannot be run on a
laptop without a network. All others of a page are run, one after the other in
one shell, in a folder that has what the page supposes; see tests/shortened.py
for what is small there.
"""

import json
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests import pages, programs, shortened

RUN = {
  pages.name(page): page
  for page in pages.PAGES
  if not all(part.needs for part in pages.parts(page))
}
# What the folder of a page has besides the text of `shortened`.
TEXTS = {
  'docs/own_text.md': ('book.txt', 'warandpeace.txt'),
  'docs/runs.md': ('warandpeace.txt',),
  'docs/results.md': ('source.txt', 'tinyshakespeare.txt'),
}
# Any run does, and any mode of the table.
BEFORE = {
  'docs/evaluation.md': 'python -m txl_jax.main --config=pystdlib_tiny '
  '--workdir=runs/x'
}
STANDS_FOR = {'docs/evaluation.md': ('=NAME', '=attention_maps')}


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_marks(page):
  """They are a sentence and the first line of what they are about."""
  for part in pages.parts(page):
    marks = re.findall(r'(?mi)^ *# *need.*', part.text)
    assert marks == [part.needs] * bool(part.needs), part
    assert re.fullmatch(r'(# Needs \S.*\S\.)?', part.needs), part


@pytest.mark.parametrize('page', pages.PAGES, ids=pages.name)
def test_no_command_is_elsewhere(page):
  """A block without a language is what a program prints, or a table."""
  for line, language, text in pages.blocks(page):
    assert language in ('', 'sh', 'python'), line
    if not language:
      assert not pages.starts(text), line
  assert page.read_text().count('```') == 2 * len([*pages.blocks(page)])


def test_what_pages_suppose():
  for needed in TEXTS, BEFORE, STANDS_FOR:
    assert needed.keys() <= RUN.keys()
  for name, texts in TEXTS.items():
    for text in texts:
      assert text in RUN[name].read_text(), text


def text_of_words():
  """More words than ptb_tiny has in its head and first tail, in lines."""
  rng = np.random.default_rng(0)
  order = [*rng.permutation(6000), *rng.zipf(1.3, 60_000) % 6000]
  words = [f'w{x:x}' for x in order]
  lines = (' '.join(words[i : i + 12]) for i in range(0, len(words), 12))
  return '\n'.join(lines) + '\n'


def write_nanogpt(folder):
  """Characters as nanoGPT's prepare.py leaves them."""
  folder.mkdir(parents=True)
  ids = np.random.default_rng(0).integers(0, 3, 20_000).astype(np.uint16)
  ids[:18_000].tofile(folder / 'train.bin')
  ids[18_000:].tofile(folder / 'val.bin')
  names = dict(enumerate('ab\n'))
  meta = {
    'vocab_size': 3,
    'itos': names,
    'stoi': {x: i for i, x in names.items()},
  }
  (folder / 'meta.pkl').write_bytes(pickle.dumps(meta))


def furnish(folder, name):
  """Puts into a folder what a clone and a reader of the page have."""
  for part in 'configs', 'launch', 'docs/pictures':
    shutil.copytree(programs.ROOT / part, folder / part)
  text = text_of_words()
  for file in (shortened.TEXT, *TEXTS.get(name, ())):
    records = (json.dumps({'text': x}) for x in text.splitlines())
    jsonl = file.endswith('.jsonl')
    (folder / file).write_text('\n'.join(records) if jsonl else text)
  start = f'#!/bin/sh\nexec {sys.executable} -m tests.shortened'
  if name == 'docs/own_text.md':
    write_nanogpt(folder / 'nanoGPT/data/shakespeare_char')
  starts = {
    'bin/python': f'{start} "$@"\n',
    '.venv/bin/python': f'{start} "$@"\n',
    'bin/txl-jax': f'{start} -m txl_jax "$@"\n',
    # It has no torch, which leaves our side of the benchmarks.
    'hf/bin/python': f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n',
  }
  for path, script in starts.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(script)
    (folder / path).chmod(0o755)


def script(name):
  """What a reader of a page types who has no more than a laptop."""
  parts = [x for x in pages.parts(RUN[name]) if not x.needs]
  lines = ['set -euo pipefail', BEFORE.get(name, '')]
  for part in parts:
    lines += [f'echo "{name}, line {part.line}" >&2', part.text]
  # One seed is as good as three.
  text = re.sub(r'for seed in 0( \d)+', 'for seed in 0', '\n'.join(lines))
  return text.replace(*STANDS_FOR.get(name, ('', '')))


@pytest.mark.slow
@pytest.mark.parametrize('name', RUN)
def test_commands_run(name, tmp_path):
  furnish(tmp_path, name)
  environment = programs.environment()
  environment['PATH'] = f'{tmp_path}/bin:{environment["PATH"]}'
  done = subprocess.run(
    ['bash', '-c', script(name)],
    cwd=tmp_path,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=1500,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-5000:]
