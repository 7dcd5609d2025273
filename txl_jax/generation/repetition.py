"""How much a text repeats itself, or what came before it.

Shapes: n tokens, K length of an n-gram.
"""

import numpy as np


def _grams(tokens, K):
  """The n-grams of integers [n], [max(n - K + 1, 0), K]."""
  tokens = np.asarray(tokens)
  if len(tokens) < K:
    return np.zeros([0, K], tokens.dtype)
  return np.lib.stride_tricks.sliding_window_view(tokens, K)


def repeated(tokens: np.ndarray, K: int) -> float:
  """Share of the n-grams of K tokens that occurred before in the text.

  1 - |unique n-grams| / |n-grams| (seq-rep-n of Welleck et al. 2020, Section
  6.1), of integers [n]; 0 for a text without n-grams.
  """
  grams = _grams(tokens, K)
  return 1 - len(np.unique(grams, axis=0)) / len(grams) if len(grams) else 0.0


def longest(tokens: np.ndarray) -> int:
  """Length of the longest stretch that occurs twice in integers [n].

  The two may overlap. Equal stretches of 2^k tokens get equal names (Karp,
  Miller and Rosenberg 1972); two of those cover any length.
  """
  names = [np.unique(tokens, return_inverse=True)[1].reshape(-1)]
  n = len(names[0])
  while 2 ** len(names) <= n:
    half = 2 ** (len(names) - 1)
    names.append(_pairs(names[-1][:-half], names[-1][half:]))

  def occurs_twice(length):
    k = length.bit_length() - 1
    end = names[k][length - 2**k :]
    both = _pairs(names[k][: len(end)], end)
    return len(np.unique(both)) < len(both)

  low, high = 0, n - 1  # a whole text cannot occur twice in itself
  while low < high:
    middle = (low + high + 1) // 2
    if occurs_twice(middle):
      low = middle
    else:
      high = middle - 1
  return max(low, 0)


def _pairs(a, b):
  """A number for each pair (a[i], b[i]) of names, the same for equal ones."""
  whole = a.astype(np.int64) * (b.max() + 1) + b
  return np.unique(whole, return_inverse=True)[1].reshape(-1)


def copied(tokens: np.ndarray, context: np.ndarray, K: int) -> float:
  """Share of integers [n] that lie in a K-gram that also occurs in a context.

  0 for an empty text.
  """
  there = {gram.tobytes() for gram in _grams(np.asarray(context, np.int64), K)}
  covered = np.zeros(len(tokens), bool)
  for i, gram in enumerate(_grams(np.asarray(tokens, np.int64), K)):
    if gram.tobytes() in there:
      covered[i : i + K] = True
  return float(covered.mean()) if len(covered) else 0.0
