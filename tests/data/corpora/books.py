"""A text of words to prepare, and the same by plain Python."""

import numpy as np

from tests.data.corpora import asking

# 2000 lines, so the cuts at 90 and 95 percent lie near line 1800 and 1900.
RNG = np.random.default_rng(0)
LINES = [
  ' '.join(f'w{i}' for i in RNG.zipf(1.5, 6) if i < 200) for _ in range(2000)
]
TEXT = ''.join(f'{line}\n' for line in LINES)


def prepare(path, **options):
  options = {'level': 'word', 'unk': True} | options
  data_dir = path.parent / 'data'
  return asking.prepare('text', data_dir, path=path, **options)


def split_by_hand(text):
  """90 / 5 / 5 by bytes, cut after newlines."""
  cuts = [text.index('\n', len(text) * p // 100 - 1) + 1 for p in (90, 95)]
  parts = text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]
  return dict(zip(('train', 'validation', 'test'), parts))


def words_of(text, eos=' <eos> '):
  return text.replace('\n', eos).split()
