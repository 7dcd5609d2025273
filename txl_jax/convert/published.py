"""The published models: what their checkpoints do not say themselves.

The lengths and rates are those of its scripts (github.com/kimiyoung/
transformer-xl, tf/scripts and pytorch), as in configs/.
"""

from typing import Any, NamedTuple


class Published(NamedTuple):
  """One of the paper's models."""

  name: str  # of our config
  sizes: tuple[int, ...]  # N, D, H, K, F
  vocab_sizes: tuple[int, ...]
  train: tuple[int, int]  # T and M
  test: tuple[int, int, int]  # T, M and clamp_len, 0 for none
  rates: tuple[float, float]  # dropout, dropatt
  data: dict[str, Any]  # keys of the section `data`


_ENWIK8 = {'corpus': 'enwik8', 'newline': 'drop'}
_LM1B = (793_470, 793_471), (32, 32), (32, 128, 0)
_CHARACTERS_24 = (24, 1024, 8, 128, 3072), (768, 768), (128, 3800, 1000)
_CHARACTERS_12 = (12, 512, 8, 64, 2048), (512, 512), (80, 2100, 820)


def _characters(name, V, data, sizes, train, test, rates):
  return Published(name, sizes, (V,), train, test, rates, data)


ALL = (
  _characters('enwik8_12l', 204, _ENWIK8, *_CHARACTERS_12, (0.1, 0.0)),
  _characters('text8_12l', 27, {'corpus': 'text8'}, *_CHARACTERS_12, (0.1, 0)),
  _characters('enwik8_24l', 204, _ENWIK8, *_CHARACTERS_24, (0.15, 0.15)),
  _characters(
    'text8_24l', 27, {'corpus': 'text8'}, *_CHARACTERS_24, (0.15, 0.15)
  ),
  Published(
    'wt103_base',
    (16, 410, 10, 41, 2100),
    (267_735,),
    (150, 150),
    (64, 640, 400),
    (0.1, 0.0),
    {'corpus': 'wt103'},
  ),
  Published(
    'wt103_large',
    (18, 1024, 16, 64, 4096),
    (267_735,),
    (384, 384),
    (128, 1600, 1000),
    (0.2, 0.2),
    {'corpus': 'wt103'},
  ),
  Published(
    'lm1b_base',
    (20, 1024, 8, 128, 6144),
    *_LM1B,
    (0.0, 0.0),
    {'corpus': 'lm1b'},
  ),
  Published(
    'lm1b_base',
    (18, 1024, 8, 128, 4096),
    *_LM1B,
    (0.0, 0.0),
    {'corpus': 'lm1b'},
  ),
  Published(
    'lm1b_large',
    (24, 1280, 16, 80, 8192),
    *_LM1B,
    (0.05, 0.05),
    {'corpus': 'lm1b'},
  ),
)


def like(fields: dict[str, Any], vocab_size: int) -> Published | None:
  """The published model with the sizes of a section `model`, if any."""
  names = 'n_layer', 'd_model', 'n_head', 'd_head', 'd_ff'
  sizes = tuple(fields.get(name) for name in names)
  for one in ALL:
    plain = fields['name'] == 'transformer_xl'
    if plain and sizes == one.sizes and vocab_size in one.vocab_sizes:
      return one
  return None
