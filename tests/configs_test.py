"""The configs: published values and parameter counts."""

import importlib
import itertools
import math
import pathlib
import re

import jax
import pytest

from tests.models.cases import CASES
from txl_jax import models
from txl_jax.data.corpora import preparation
from txl_jax.experiment import sections
from txl_jax.models import base
from txl_jax.models.baselines import gcnn
from txl_jax.program import settings
from txl_jax.program.errors import UserError

ROOT = pathlib.Path(__file__).parents[1]
# What these make depends on a text, see `test_of_a_text`.
OF_TEXT = ('own_text', 'long_context', 'music')
FILES = {p.stem for p in (ROOT / 'configs').glob('*.py')} - {'common', *OF_TEXT}


def variants(file):
  """What a file's get_config takes, as it declares in VARIANTS."""
  return getattr(
    importlib.import_module(f'txl_jax.configs.{file}'), 'VARIANTS', ()
  )


# Those of a file with variants are named as in --config, as file:variant.
NAMES = {
  f'{file}:{variant}' if variant else file
  for file in FILES
  for variant in variants(file) or ('',)
}

# Counted on the published code or by hand. Transformers whose widths were never
# published are not here: `count` has their formula.
PARAMETERS = {
  # Al-Rfou et al. 2018, in training.
  **dict.fromkeys(('al_rfou:enwik8_12l', 'al_rfou:text8_12l'), 44_232_704),
  **dict.fromkeys(('al_rfou:enwik8_64l', 'al_rfou:text8_64l'), 235_339_776),
  'enwik8_12l': 41_055_436,
  'enwik8_24l': 277_231_820,
  'gcnn:13': 307_252_779,  # by hand, see tests of models.baselines
  'gcnn:14': 223_752_436,
  'gcnn:14b': 427_201_730,
  'gcnn:8': 145_437_728,
  'gcnn:8b': 154_287_842,
  'gcnn:9': 159_355_535,
  # By hand: words in and out; W, V, b, c and scales, and the first projection.
  'gcnn:ptb': (
    10_000 * (128 + 257)
    + 2 * (4 * 128 * 256 + 2 * 256)
    + 7 * 2 * (4 * 256 * 256 + 2 * 256)
    + (128 + 1) * 256
  ),
  # By hand: 24,832 for bytes; W, V, b, c and scales.
  'gcnn_studies:glu': 24_832 + 5 * 2 * (4 * 96 * 96 + 2 * 96),
  'lm1b_base': 469_020_530,
  'lm1b_large': 841_354_862,
  # By hand: words, tails, projections of their vectors, and two layers.
  'lstm:lm1b': (
    60_000 * 513
    + 40_000 * 129
    + 540_000 * 33
    + (793_471 - 640_000) * 9
    + 3 * 513
    + (512 + 128 + 32 + 8) * 2048
    + 2 * 4 * 2048 * (2048 + 2049)
  ),
  'lstm:ptb': 24_210_800,  # by hand, see tests/models/baselines/lstm_test.py
  'lstm:wt103': 151_434_146,
  'ptb': 24_040_400,
  # By hand: words and tails, and layers, each with its biases.
  'ptb_tiny:gcnn': 1_290_258 + 5 * 2 * (4 * 128 * 128 + 2 * 128),
  'ptb_tiny:lstm': 1_290_258 + 4 * (256 * (128 + 257) + 128 * (256 + 129)),
  # By hand: bytes and layers, each with its biases.
  'pystdlib_ablations:gcnn': 24_832 + 5 * 2 * (4 * 96 * 96 + 2 * 96),
  'pystdlib_ablations:al_rfou_aux': 368_416 + 5 * 256 * 97,  # outputs
  'pystdlib_ablations:lstm': 24_832 + 4 * (216 * (96 + 217) + 96 * (216 + 97)),
  'pystdlib_ablations:qrnn': (
    24_832 + 3 * (244 * (2 * 96 + 1) + 244 * 245 + 96 * 245)
  ),
  'qrnn': 150_886_638,  # by hand, see tests/models/baselines/qrnn_test.py
  'text8_12l': 40_964_635,
  'text8_24l': 277_050_395,
  'wt103_base': 151_107_538,
  'wt103_large': 285_205_322,
  'wt2': 37_712_881,
}

# Sizes that were published without widths, and our small studies, which are
# alike: parameters, and how near we are.
SIZES = {
  'enwik8_18l': (88e6, 0.01),
  'lm1b_300m:xl': (300e6, 0.01),
  'wt103_128m:xl': (128e6, 0.01),
  **{
    f'gcnn_studies:{x}': (PARAMETERS['gcnn_studies:glu'], 0.01)
    for x in variants('gcnn_studies')
  },
}

# As published: N, dropout, dropatt, warm-up, lr floor, T, M, B; then T, M and
# clamp_len at test time.
SMALL = (0.1, 0.0, 0, 0.0, 512, 512, 22, 80, 2100, 820)
LARGE = (0.15, 0.15, 4000, 0.01, 768, 768, 64, 128, 3800, 1000)
PUBLISHED = {
  'enwik8_12l': (12, *SMALL),
  'enwik8_18l': (18, *SMALL),
  'enwik8_24l': (24, *LARGE),
  'text8_12l': (12, *SMALL),
  'text8_24l': (24, *LARGE),
}

# The same for words, with steps, lr and init_std before the lengths.
WORDS = {
  'wt103_base': (
    16, 0.1, 0.0, 0, 0.0, 200_000, 2.5e-4, 0.02, 150, 150, 60, 64, 640, 400,
  ),
  'wt103_large': (
    18, 0.2, 0.2, 16_000, 0.01, 4_000_000, 2.5e-4, 0.005, 384, 384, 128, 128,
    1600, 1000,
  ),
  'lm1b_base': (
    20, 0.0, 0.0, 20_000, 0.0, 500_000, 2.5e-4, 0.02, 32, 32, 224, 32, 128, 0,
  ),
  'lm1b_large': (
    24, 0.05, 0.05, 30_000, 0.01, 1_200_000, 1e-4, 0.005, 32, 32, 512, 32, 128,
    0,
  ),
}  # fmt: skip


def load(name):
  file, *variant = name.split(':')
  return importlib.import_module(f'txl_jax.configs.{file}').get_config(*variant)


def at_test_time(config):
  """T, M and clamp_len of evaluation; generation has the same M and clamp."""
  overrides = config.eval.model.to_dict()
  assert overrides == config.generate.model.to_dict()
  given = {k: x for k, x in overrides.items() if x is not None}
  model = config.model.to_dict() | given
  assert model['same_length'] == 'M'
  return config.eval.segment_len, model['mem_len'], model['clamp_len']


def count(config):
  """Parameters of a Transformer by hand: projections, layers, norms, rest."""
  m, V = config.model, preparation.vocab_size(sections.read(config).data)
  H, D, F = m.n_head, m.d_model, m.d_ff
  HK = H * m.d_head
  layer = 4 * D * HK + (D * F + F) + (F * D + D) + 2 * 2 * D
  layer += CASES[m.name].layer(m)
  words, edges = 0, [0, *m.cutoffs, V]
  for i, (start, stop) in enumerate(itertools.pairwise(edges)):
    width = D // m.div_val**i
    words += (stop - start) * (width + 1)
    words += 2 * width * D if m.div_val > 1 else 0  # in and out
  words += len(m.cutoffs) * (D + 1)
  biases = 2 * HK if m.name == 'transformer_xl' else 0  # u, v
  return words + biases + m.n_layer * layer


def test_counts_are_of_configs_and_all_but_transformers_have_one():
  transformers = {n for n in NAMES if 'n_head' in load(n).model}
  known = PARAMETERS.keys() | SIZES.keys()
  assert known <= NAMES <= known | transformers


STUDIES = [(f'context_{c}', 5, c) for c in (6, 11, 26, 36)]
STUDIES += [(f'depth_{n}', n, c) for n, c in ((3, 10), (8, 25), (12, 37))]


@pytest.mark.parametrize('variant, layers, context', [('glu', 5, 16), *STUDIES])
def test_context_of_a_study(variant, layers, context):
  """The one that is documented."""
  blocks = gcnn.parse(load(f'gcnn_studies:{variant}').model.blocks)
  assert len(blocks) == layers
  assert 1 + sum(k - 1 for ((k, _),) in blocks) == context


@pytest.mark.parametrize('name', ['gcnn', 'gcnn_studies'])
def test_rate_and_clipping_of_gcnns(name):
  """A rate of [1, 2], clipped at 0.1 but where a study says otherwise."""
  for variant in variants(name):
    o, m = (getattr(load(f'{name}:{variant}'), x) for x in ('optim', 'model'))
    assert 1 <= o.lr <= 2 and (o.momentum, o.nesterov) == (0.99, True)
    assert o.clip == (0 if 'no_clip' in variant else 0.1)
    assert m.weight_norm == ('no_weight_norm' not in variant)


def test_variants():
  """The first is the default; another text is refused with their names."""
  for file in filter(variants, [*FILES, *OF_TEXT]):
    every = [load(f'{file}:{x}').to_dict() for x in variants(file)]
    assert load(file).to_dict() == every[0]
    assert all(a != b for a, b in itertools.combinations(every, 2))
    with pytest.raises(UserError) as e:
      load(f'{file}:no such one')
    assert '\n' not in str(e.value) and "'no such one'" in str(e.value)
    assert ', '.join(variants(file)) in str(e.value)


@pytest.mark.parametrize('name', sorted(NAMES))
def test_config_is_valid_and_complete(name):
  config = load(name)
  sections.read(config)
  assert config.is_locked
  declared = settings.flatten(sections.compose(config.model.name)).keys()
  assert settings.flatten(config).keys() == declared


# The paper's own sizes, and what is small, are counted by default.
SLOW = re.compile('.*_64l|lm1b_300m:|wt103_128m:')


@pytest.mark.default_cases('gcnn_studies:glu')
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(n, marks=pytest.mark.slow if SLOW.match(n) else ())
    for n in sorted(NAMES)
  ],
)
def test_parameters(name):
  config = load(name)
  model = models.build(
    config.model, preparation.vocab_size(sections.read(config).data)
  )
  shapes = base.param_shapes(model)
  found = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
  if name in PARAMETERS or 'n_head' in config.model:
    assert found == (PARAMETERS.get(name) or count(config))
  if name.startswith('al_rfou'):
    used = jax.eval_shape(model.inference_params, shapes)
    expected = 41_212_160 if name.endswith('12l') else 218_661_120
    found = sum(math.prod(x.shape) for x in jax.tree.leaves(used))
    assert found == expected
  if name in SIZES:
    published, distance = SIZES[name]
    assert abs(found / published - 1) < distance


@pytest.mark.parametrize('file', sorted(FILES))
def test_docstring_has_the_hardware_and_parameters(file):
  text = importlib.import_module(f'txl_jax.configs.{file}').__doc__
  if 'on a CPU' in text:
    return
  assert 'Hardware: ' in text
  names = [n for n in NAMES if n.partition(':')[0] == file]
  for expected in {PARAMETERS[n] for n in names if n in PARAMETERS}:
    assert f'{expected:,}' in text


@pytest.mark.thorough
def test_parameters_of_the_ablations_on_bytes_in_results():
  """From the smallest to the largest, and the one with auxiliary losses."""
  counts = {
    n: PARAMETERS.get(n) or count(load(n))
    for n in NAMES
    if n.startswith('pystdlib_ablations:')
  }
  auxiliary = counts.pop('pystdlib_ablations:al_rfou_aux')
  few, many = (round(f(counts.values()), -3) for f in (min, max))
  text = (ROOT / 'docs/results.md').read_text()
  assert f'{few:,} to {many:,} parameters' in text and f'{auxiliary:,}' in text


@pytest.mark.parametrize('name', WORDS)
def test_published_values_of_words(name):
  c = load(name)
  m, o, at_test = c.model, c.optim, at_test_time(c)
  found = (m.n_layer, m.dropout, m.dropatt, o.warmup, o.lr_floor)
  found += (c.train.steps, o.lr, m.init_std)
  assert o.cosine_shifted == name.endswith('large')
  found += (c.train.segment_len, m.mem_len, c.train.batch_size)
  assert (*found, *at_test) == WORDS[name]
  assert (o.name, o.clip, o.schedule) == ('adam', 0.25, 'cosine')
  assert m.tie_weights and m.untie_biases == name.endswith('large')
  assert c.eval.split == 'test'
  wt = name.startswith('wt103')
  assert m.cutoffs == (
    (20_000, 40_000, 200_000) if wt else (60_000, 100_000, 640_000)
  )
  assert m.div_val == (1 if name == 'wt103_base' else 4)
  if m.div_val > 1:
    assert m.tie_projs == ((False, True, True, True) if wt else (False,) * 4)


@pytest.mark.parametrize('name', PUBLISHED)
def test_published_values(name):
  c = load(name)
  m, o, at_test = c.model, c.optim, at_test_time(c)
  found = (m.n_layer, m.dropout, m.dropatt, o.warmup, o.lr_floor)
  found += (c.train.segment_len, m.mem_len, c.train.batch_size)
  assert (*found, *at_test) == PUBLISHED[name]
  assert (c.train.steps, o.name, o.lr) == (400_000, 'adam', 2.5e-4)
  assert (o.clip, o.schedule, m.init_std) == (0.25, 'cosine', 0.02)
  assert o.cosine_shifted == name.endswith('24l')
  assert m.tie_weights and not m.untie_biases
  assert c.eval.split == 'test'
  assert c.data.corpus == name.split('_')[0]
  assert c.data.newline == ('drop' if 'enwik8' in name else 'keep')


@pytest.mark.default_cases('own_text:nanogpt')
@pytest.mark.parametrize(
  'name', [f'{file}:{x}' for file in OF_TEXT for x in variants(file)]
)
def test_of_a_text(name):
  config = load(name)
  with pytest.raises(UserError, match=r"data.path is ''"):
    sections.read(config)
  config.data.path = __file__
  sections.read(config)
  size = config.data.max_size or 256
  shapes = base.param_shapes(models.build(config.model, size))
  found = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
  file, variant = name.split(':')
  expected = {'bytes': 889_856, 'subwords': 1_385_216, 'nanogpt': 889_856}
  if file == 'long_context':
    D, F, V = 256, 1024, 4096
    layer = 4 * D * D + 2 * D * F + F + D + 4 * D
    own = 0 if variant == 'vaswani_memory' else 6 * D * D + 2 * D  # W_r; u, v
    expected = {variant: V * (D + 1) + 6 * layer + own}
  assert found == expected.get(variant, found) and found > 8e5
