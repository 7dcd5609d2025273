"""What Dai et al. 2019 (arXiv 1901.02860) report, table by table.

Rows are those of models that this project has. An experiment is named as its
config: FILE:VARIANT of configs/.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of a table."""

  model: str
  published: tuple[float | str, ...]  # a figure for each column of its table
  experiment: str = ''  # its config
  small: tuple[str, ...] = ()  # those of its twins for a CPU

  def twin(self, file: str) -> str:
    """The experiment of a row in a file of small twins, '' for none."""
    return next((x for x in self.small if x.startswith(f'{file}:')), '')


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of the paper."""

  number: int
  title: str
  columns: tuple[str, ...]  # of the published figures
  rows: tuple[Row, ...]
  kind: str = 'test'  # what they are: see `report.tables`


_XL = 'Transformer-XL'
SHARES = (0.1, 0.5, 1.0)  # r, of the hardest positions (Table 8)


def _bytes(variant: str) -> str:
  return f'pystdlib_ablations:{variant}'


def _words(variant: str) -> str:
  return f'ptb_tiny:{variant}'


def _ablation(
  model: str, figures: tuple, variant: str, small: str = '', words: str = ''
) -> Row:
  twins = _bytes(small or variant), *([_words(words)] if words else [])
  return Row(model, figures, f'wt103_128m:{variant}', twins)


TABLES = (
  Table(
    1,
    'WikiText-103',
    ('perplexity',),
    (
      Row('LSTM (Grave et al. 2016)', (48.7,)),  # of another size than ours
      Row('GCNN-8 (Dauphin et al. 2017)', (44.9,), 'gcnn:8'),
      Row('GCNN-14 (Dauphin et al. 2017)', (37.2,), 'gcnn:14'),
      Row('QRNN, 151M (Merity et al. 2018)', (33.0,), 'qrnn'),
      Row(f'{_XL} standard, 151M', (24.0,), 'wt103_base'),
      Row(f'{_XL} large, 257M', (18.3,), 'wt103_large'),
    ),
  ),
  Table(
    2,
    'enwik8',
    ('bpc',),
    (
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
      Row('GCNN-13 (Dauphin et al. 2017)', (38.1,), 'gcnn:13'),
      Row('GCNN-14 bottleneck (Dauphin et al. 2017)', (31.9,), 'gcnn:14b'),
      Row(f'{_XL} base, 0.46B', (23.5,), 'lm1b_base'),
      Row(f'{_XL} large, 0.8B', (21.8,), 'lm1b_large'),
    ),
  ),
  Table(
    5,
    'Penn Treebank',
    ('perplexity',),
    (
      Row('AWD-LSTM, 24M (Merity et al. 2017)', (58.8,), 'lstm:ptb'),
      Row(f'{_XL}, 24M', (54.52,), 'ptb'),
    ),
  ),
  Table(
    6,
    'Ablations, WikiText-103, validation',
    ('ppl init', 'ppl best', 'attention length'),
    (
      _ablation(f'{_XL}, 128M', (27.02, 26.77, 500), 'xl', words='xl'),
      _ablation(
        'Shaw et al. encoding', (27.94, 27.94, 256), 'shaw', words='shaw'
      ),
      _ablation('half loss', (28.69, 28.33, 460), 'xl_half'),
      _ablation(
        'no recurrence',
        (29.59, 29.02, 260),
        'xl_no_recurrence',
        words='xl_no_recurrence',
      ),
      _ablation(
        'no recurrence, half loss', (30.10, 30.10, 120), 'xl_no_recurrence_half'
      ),
      _ablation(
        'no recurrence, Shaw et al.', (29.75, 29.75, 120), 'shaw_no_recurrence'
      ),
      _ablation(
        'no recurrence, Shaw et al., half loss',
        (30.50, 30.50, 120),
        'shaw_no_recurrence_half',
      ),
      _ablation(
        'no recurrence, Vaswani et al., half loss',
        (30.97, 30.97, 120),
        'vaswani_half',
      ),
      _ablation(
        'no recurrence, Al-Rfou et al., half loss',
        (31.16, 31.16, 120),
        'al_rfou_half',
      ),
      Row(f'{_XL}, 151M', (23.43, 23.09, 640), 'wt103_base'),
    ),
    'lengths',
  ),
  Table(
    7,
    'Ablations, One Billion Word',
    ('perplexity',),
    (
      Row(_XL, (25.2,), 'lm1b_300m:xl', (_words('xl'),)),
      Row('Shaw et al. encoding', (25.7,), 'lm1b_300m:shaw', (_words('shaw'),)),
      Row(
        'no recurrence',
        (27.1,),
        'lm1b_300m:xl_no_recurrence',
        (_words('xl_no_recurrence'),),
      ),
    ),
  ),
  Table(
    8,
    'Relative effective context length, WikiText-103',
    tuple(f'r = {share:g}' for share in SHARES),
    (
      Row(f'{_XL}, 151M', (900, 800, 700), 'wt103_base'),
      Row('QRNN', (500, 400, 300), 'qrnn', (_bytes('qrnn'),)),
      Row(
        'LSTM',
        (400, 300, 200),
        'lstm:wt103',
        (_bytes('lstm'), _words('lstm')),
      ),
      _ablation(f'{_XL}, 128M', (700, 600, 500), 'xl', words='xl'),
      _ablation('Shaw et al. encoding', (400, 400, 300), 'shaw', words='shaw'),
      _ablation(
        'no recurrence',
        (300, 300, 300),
        'xl_no_recurrence',
        words='xl_no_recurrence',
      ),
      _ablation(
        'Transformer', (128, 128, 128), 'al_rfou_half', 'al_rfou', 'vaswani'
      ),
    ),
    'recl',
  ),
  Table(
    9,
    'Evaluation speed: how many times slower a sliding window is',
    ('times slower',),
    (
      Row('attention length 800', (363,)),
      Row('attention length 1,800', (773,)),
      Row('attention length 2,800', (1409,)),
      Row('attention length 3,800', (1874,)),
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
      _ablation(
        'no recurrence, segments of 176',
        (28.43, 27.98, 400),
        'xl_no_recurrence_176',
        'xl_no_recurrence_44',
      ),
      _ablation(
        'no recurrence, segments of 172, half loss',
        (28.83, 28.83, 120),
        'xl_no_recurrence_half_172',
        'xl_no_recurrence_half_43',
      ),
    ),
    'lengths',
  ),
)
