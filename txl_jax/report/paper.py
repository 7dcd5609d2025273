"""What Dai et al. 2019 (arXiv 1901.02860, version 3) report, table by table.

All rows are here, also those of models that this project has not. An experiment
is named as its config: FILE:VARIANT of configs/.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a table."""

  model: str
  published: tuple[float | str, ...]  # of each column, () if not in the paper
  experiment: str = ''  # its config
  small: tuple[str, ...] = ()  # those of its twins for a CPU
  length: int = 0  # the attention length that it is of, 0 for the best one

  def twin(self, file: str) -> str:
    """The experiment of a row in a file of small twins, '' for none."""
    return next((x for x in self.small if x.startswith(f'{file}:')), '')


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the paper, or of twins alone."""

  number: int  # 0 for none
  title: str
  columns: tuple[str, ...]  # of the published figures
  rows: tuple[Row, ...]
  kind: str = 'test'  # what they are: see `report.tables`

  @property
  def name(self) -> str:
    """As in 'Table 6', or else the title."""
    return f'Table {self.number}' if self.number else self.title


_XL = 'Transformer-XL'
_NO = 'no recurrence'
# Section 3.3 has the encoding without the biases c and d; the code has both.
_SHAW = 'Shaw et al. (the published code)'
_SHAW_UNBIASED = "Shaw et al., without biases (the paper's text)"
SHARES = (0.1, 0.5, 1.0)  # r, of the hardest positions (Table 8)

_BYTES, _WORDS, _LONG = 'pystdlib_ablations', 'ptb_tiny', 'long_context'
# Of the files of twins: their size and their text.
SMALL: Mapping[str, str] = {
  _BYTES: "0.4M parameters, bytes of the sources of Python's standard library",
  _WORDS: '1.9M parameters, words of Penn Treebank',
  _LONG: '6.2M parameters, subwords of the text in data.path',
}


def _twins(variant: str, *files: str) -> tuple[str, ...]:
  return tuple(f'{file}:{variant}' for file in files)


def _ablation(model: str, figures: tuple, variant: str, *others: str) -> Row:
  """A row with twins of bytes, and in other files."""
  twins = _twins(variant, _BYTES, *others)
  return Row(model, figures, f'wt103_128m:{variant}', twins)


def _besides(model: str, variant: str, *others: str) -> Row:
  """The same, not in the paper: twins alone."""
  return Row(model, (), small=_twins(variant, _BYTES, *others))


# In the small twins of Tables 6 and 8.
_WITH_MEMORY = (
  _besides(_SHAW_UNBIASED, 'shaw_unbiased'),
  _besides(
    'absolute positions (Vaswani et al.) with a memory', 'vaswani_memory', _LONG
  ),
)
_FULL_LOSS = (
  _besides(f'{_NO}, Vaswani et al., full loss', 'vaswani', _WORDS),
  _besides(f'{_NO}, Al-Rfou et al., full loss', 'al_rfou'),
  _besides(f'{_NO}, Al-Rfou et al., full and auxiliary losses', 'al_rfou_aux'),
)

TABLES = (
  Table(
    1,
    'WikiText-103',
    ('perplexity',),
    (
      Row('LSTM (Grave et al. 2016)', (48.7,)),  # of another size than ours
      Row('TCN (Bai et al. 2018)', (45.2,)),
      Row('GCNN-8 (Dauphin et al. 2017)', (44.9,), 'gcnn:8'),
      Row('LSTM + neural cache (Grave et al. 2016)', (40.8,)),
      Row('GCNN-14 (Dauphin et al. 2017)', (37.2,), 'gcnn:14'),
      Row('QRNN, 151M (Merity et al. 2018)', (33.0,), 'qrnn'),
      Row('Hebbian + cache (Rae et al. 2018)', (29.9,)),
      Row(f'{_XL} standard, 151M', (24.0,), 'wt103_base'),
      Row(
        'adaptive input, 247M (Baevski and Auli 2018, contemporary)', (20.5,)
      ),
      Row(f'{_XL} large, 257M', (18.3,), 'wt103_large'),
    ),
  ),
  Table(
    2,
    'enwik8',
    ('bpc',),
    (
      Row('LN HyperNetworks, 27M (Ha et al. 2016)', (1.34,)),
      Row('LN HM-LSTM, 35M (Chung et al. 2016)', (1.32,)),
      Row('RHN, 46M (Zilly et al. 2016)', (1.27,)),
      Row('FS-LSTM-4, 47M (Mujika et al. 2017)', (1.25,)),
      Row('large mLSTM, 46M (Krause et al. 2016)', (1.24,)),
      Row('cmix v13 (Knol 2017)', (1.23,)),
      Row('Al-Rfou et al. 2018, 12 layers, 44M', (1.11,), 'al_rfou:enwik8_12l'),
      Row(f'{_XL}, 12 layers, 41M', (1.06,), 'enwik8_12l'),
      Row(
        'Al-Rfou et al. 2018, 64 layers, 235M', (1.06,), 'al_rfou:enwik8_64l'
      ),
      Row(f'{_XL}, 18 layers, 88M', (1.03,), 'enwik8_18l'),
      Row(f'{_XL}, 24 layers, 277M', (0.99,), 'enwik8_24l'),
    ),
  ),
  Table(
    3,
    'text8',
    ('bpc',),
    (
      Row('BN-LSTM (Cooijmans et al. 2016)', (1.36,)),
      Row('LN HM-LSTM, 35M (Chung et al. 2016)', (1.29,)),
      Row('RHN, 45M (Zilly et al. 2016)', (1.27,)),
      Row('large mLSTM, 45M (Krause et al. 2016)', (1.27,)),
      Row('Al-Rfou et al. 2018, 12 layers, 44M', (1.18,), 'al_rfou:text8_12l'),
      Row('Al-Rfou et al. 2018, 64 layers, 235M', (1.13,), 'al_rfou:text8_64l'),
      Row(f'{_XL}, 24 layers, 277M', (1.08,), 'text8_24l'),
    ),
  ),
  Table(
    4,
    'One Billion Word',
    ('perplexity',),
    (
      Row('Sparse Non-Negative, 33B (Shazeer et al. 2014)', (52.9,)),
      Row('RNN-1024 + 9-gram, 20B (Chelba et al. 2013)', (51.3,)),
      # Published by Dauphin et al. alone.
      Row(
        'GCNN-13 (Dauphin et al. 2017; not in this table)', (38.1,), 'gcnn:13'
      ),
      Row('G-LSTM-2 (Kuchaiev and Ginsburg 2017)', (36.0,)),
      Row('GCNN-14 bottleneck (Dauphin et al. 2017)', (31.9,), 'gcnn:14b'),
      Row('LSTM, 1.8B (Jozefowicz et al. 2016)', (30.6,)),
      Row('LSTM + CNN input, 1.04B (Jozefowicz et al. 2016)', (30.0,)),
      Row('low-budget MoE, about 5B (Shazeer et al. 2017)', (34.1,)),
      Row('high-budget MoE, about 5B (Shazeer et al. 2017)', (28.0,)),
      Row('Mesh TensorFlow, 4.9B (Shazeer et al. 2018)', (24.0,)),
      Row(
        'adaptive input, 0.46B (Baevski and Auli 2018, contemporary)', (24.1,)
      ),
      Row(
        'adaptive input, 1.0B (Baevski and Auli 2018, contemporary)', (23.7,)
      ),
      Row(f'{_XL} base, 0.46B', (23.5,), 'lm1b_base'),
      Row(f'{_XL} large, 0.8B', (21.8,), 'lm1b_large'),
    ),
  ),
  Table(
    5,
    'Penn Treebank',
    ('perplexity',),
    (
      Row('tied variational LSTM, 24M (Inan et al. 2016)', (73.2,)),
      Row('variational RHN, 23M (Zilly et al. 2016)', (65.4,)),
      Row('NAS cell, 25M (Zoph and Le 2016)', (64.0,)),
      Row('AWD-LSTM, 24M (Merity et al. 2017)', (58.8,), 'lstm:ptb'),
      Row('efficient NAS, 24M (Pham et al. 2018)', (58.6,)),
      Row('differentiable NAS, 23M (Liu et al. 2018)', (56.1,)),
      Row('AWD-LSTM-MoS, 22M (Yang et al. 2017)', (55.97,)),
      Row('dropout tuning, 24M (Melis et al. 2018)', (55.3,)),
      Row(f'{_XL}, 24M', (54.52,), 'ptb'),
      Row('AWD-LSTM, two-step finetuning, 24M (Merity et al. 2017)', (57.3,)),
      Row('MoS, two-step finetuning, 22M (Yang et al. 2017)', (54.44,)),
    ),
  ),
  Table(
    6,
    'Ablations, WikiText-103, validation',
    ('ppl init', 'ppl best', 'attention length'),
    (
      _ablation(f'{_XL}, 128M', (27.02, 26.77, 500), 'xl', _WORDS, _LONG),
      _ablation(_SHAW, (27.94, 27.94, 256), 'shaw', _WORDS),
      *_WITH_MEMORY,
      _ablation('half loss', (28.69, 28.33, 460), 'xl_half'),
      _ablation(_NO, (29.59, 29.02, 260), 'xl_no_recurrence', _WORDS, _LONG),
      _ablation(
        f'{_NO}, half loss', (30.10, 30.10, 120), 'xl_no_recurrence_half'
      ),
      _ablation(f'{_NO}, {_SHAW}', (29.75, 29.75, 120), 'shaw_no_recurrence'),
      _ablation(
        f'{_NO}, {_SHAW}, half loss',
        (30.50, 30.50, 120),
        'shaw_no_recurrence_half',
      ),
      _ablation(
        f'{_NO}, Vaswani et al., half loss',
        (30.97, 30.97, 120),
        'vaswani_half',
      ),
      _ablation(
        f'{_NO}, Al-Rfou et al., half loss',
        (31.16, 31.16, 120),
        'al_rfou_half',
      ),
      *_FULL_LOSS,
      Row(f'{_XL}, 151M', (23.43, 23.09, 640), 'wt103_base'),
      Row(f'{_XL}, 151M, at 450', (23.43, 23.16, 450), 'wt103_base', (), 450),
      Row(f'{_XL}, 151M, at 300', (23.43, 23.35, 300), 'wt103_base', (), 300),
    ),
    'lengths',
  ),
  Table(
    7,
    'Ablations, One Billion Word',
    ('perplexity',),
    (
      Row(_XL, (25.2,), 'lm1b_300m:xl', _twins('xl', _WORDS)),
      Row(_SHAW, (25.7,), 'lm1b_300m:shaw', _twins('shaw', _WORDS)),
      Row(
        _NO,
        (27.1,),
        'lm1b_300m:xl_no_recurrence',
        _twins('xl_no_recurrence', _WORDS),
      ),
    ),
  ),
  Table(
    8,
    'Relative effective context length, WikiText-103',
    tuple(f'r = {share:g}' for share in SHARES),
    (
      Row(f'{_XL}, 151M', (900, 800, 700), 'wt103_base'),
      Row('QRNN', (500, 400, 300), 'qrnn', _twins('qrnn', _BYTES)),
      Row(
        'LSTM', (400, 300, 200), 'lstm:wt103', _twins('lstm', _BYTES, _WORDS)
      ),
      _ablation(f'{_XL}, 128M', (700, 600, 500), 'xl', _WORDS, _LONG),
      _ablation(_SHAW, (400, 400, 300), 'shaw', _WORDS),
      *_WITH_MEMORY,
      _ablation(_NO, (300, 300, 300), 'xl_no_recurrence', _WORDS, _LONG),
      _ablation(
        'Transformer (Al-Rfou et al., half loss)',
        (128, 128, 128),
        'al_rfou_half',
      ),
      *_FULL_LOSS,
    ),
    'recl',
  ),
  Table(
    9,
    'Evaluation speed: how many times slower a sliding window is',
    ('times slower',),
    (
      Row('attention length 800', (363,), length=800),
      Row('attention length 1,800', (773,), length=1800),
      Row('attention length 2,800', (1409,), length=2800),
      Row('attention length 3,800', (1874,), length=3800),
    ),
    'speed',
  ),
  Table(
    10,
    'Ablations in the same memory, WikiText-103, validation',
    ('ppl init', 'ppl best', 'attention length'),
    (
      _ablation('recurrence, segments of 128', (27.02, 26.77, 500), 'xl'),
      _ablation('the same, half loss', (28.69, 28.33, 460), 'xl_half'),
      Row(
        f'{_NO}, segments of 176',
        (28.43, 27.98, 400),
        'wt103_128m:xl_no_recurrence_176',
        _twins('xl_no_recurrence_44', _BYTES),
      ),
      Row(
        f'{_NO}, segments of 172, half loss',
        (28.83, 28.83, 120),
        'wt103_128m:xl_no_recurrence_half_172',
        _twins('xl_no_recurrence_half_43', _BYTES),
      ),
    ),
    'lengths',
  ),
)

# No table of the paper, and shown where there are such runs.
STUDIES = Table(
  0,
  'Studies of the GCNN paper (Dauphin et al. 2017), in small',
  (),
  tuple(
    Row(model, (), f'gcnn_studies:{variant}')
    for model, variant in (
      ('gated linear units (GLU)', 'glu'),
      ('gated tanh units (GTU)', 'gtu'),
      ('ReLU', 'relu'),
      ('tanh', 'tanh'),
      ('bilinear', 'bilinear'),
      ('linear', 'linear'),
      ('GLU, no clipping', 'no_clip'),
      ('GLU, no weight normalisation', 'no_weight_norm'),
    )
  ),
  'validation',
)
